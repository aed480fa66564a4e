"""What a training leaves, made up: an encoder of random weights, the ranks of a row."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from qpr_jax.encoders.load import load_encoder, save_encoder
from qpr_jax.files import write_json
from qpr_jax.locations import save_pair_model
from qpr_jax.pair_model.plain import PlainModel
from qpr_jax.pair_model.words import WordsModel
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary
from tests.encoders.examples import cnn_encoder
from tests.pair_model.models import plain_model, words_model
from tests.xla import QUICK_XLA

ROOT = pathlib.Path(__file__).parent.parent
WORDS = tuple(tokenize("how can i learn python quickly what is the best way to cook rice"))


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def start_python(*words: Any, folder: Any = ROOT, **variables: str | None) -> subprocess.Popen[str]:
    """Start Python with pipes; it compiles little, and commands start no program again.

    variables: of the environment; None leaves one out.
    """
    own = {"XLA_FLAGS": QUICK_XLA, "PYTHONPATH": str(ROOT)}
    own |= {"GLIBC_TUNABLES": "", "OMP_WAIT_POLICY": "passive"}
    environment = os.environ | own | variables
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={name: value for name, value in environment.items() if value is not None},
        text=True,
        **pipes,
    )


def run_python(*words: Any, given: str = "", **how: Any) -> tuple[str, str]:
    """Run Python, which must succeed; returns its output and what it says."""
    process = start_python(*words, **how)
    out, err = process.communicate(given)
    assert process.returncode == 0, err
    return out, err


def start_training(
    workdir: pathlib.Path, settings: Mapping[str, Any], xla: str = QUICK_XLA, **variables: str
) -> subprocess.Popen[str]:
    """Start a smoke run with some settings."""
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    words = ("-m", "experiments.main", "--config=synthetic_sdml:smoke", *flags)
    return start_python(*words, f"--workdir={workdir}", XLA_FLAGS=xla, **variables)


def write_encoder(run: pathlib.Path, seed: int = 0, **settings: Any) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(WORDS, bins=50)
    encoder = cnn_encoder(
        embedding=rng.normal(size=(vocabulary.size, 8)),
        kernels=[0.3 * rng.normal(size=(3, 8, 12))],
        biases=[rng.normal(size=12)],
        projection=rng.normal(size=(12, 6)),
        vocabulary=vocabulary,
        max_tokens=64,
        settings=settings,
    )
    save_encoder(run / "export", encoder)


def write_words(run: pathlib.Path, **changes: Any) -> WordsModel:
    """Write a words model of random weights beside the encoder of a run."""
    model = words_model(load_encoder(run / "export"), **{"farthest": 1e9} | changes)
    save_pair_model(run / "export", model)
    return model


def calibrate(run: pathlib.Path, middle: float = 2.0) -> PlainModel:
    """Write a plain model: the score is .5 at a squared distance of `middle`."""
    model = plain_model(load_encoder(run / "export").fingerprint, middle)
    save_pair_model(run / "export", model)
    return model


def keep_row(
    folder: pathlib.Path, name: str, hit_rate: float, seed: int = 0, queries: int = 400
) -> dict[str, np.ndarray]:
    """A finished trial with this share of first places on either split, half of the rest 4th."""
    rng = np.random.default_rng([seed, int(1000 * hit_rate)])
    arrays = {}
    for split in ("validation", "test"):
        first = rng.random(queries) < hit_rate
        arrays |= {
            f"{split}_ids": np.arange(queries),
            f"{split}_clusters": np.arange(queries) // 2,
            f"{split}_pairs": 1 + np.arange(queries) % 3,
            f"{split}_index": np.where(first, 1, 4 * (rng.random(queries) < 0.5)).astype(np.uint8),
            f"{split}_exact": np.ones(queries, np.uint8),
        }
    path = folder / (f"{name}-seed{seed}" if seed else name)
    path.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path / "ranks.npz", **arrays)
    write_json(path / "report.json", {})
    return arrays
