"""Commands of a run: train, encode."""

from __future__ import annotations

import logging
from typing import Any

import click

from qpr_jax.commands.streams import NamedPath, questions_input, questions_of
from qpr_jax.console import counted, use_huge_pages
from qpr_jax.errors import Interrupted

log = logging.getLogger("qpr_jax")


@click.command()
@click.argument("folder", type=NamedPath(file_okay=False))
@click.argument("pairs", type=NamedPath())
@click.option("--config", type=NamedPath(), help="Settings as TOML; see training/settings.py.")
def train(folder: str, pairs: str, config: str | None) -> int:
    """Train on a file of labelled PAIRS, then index and score its questions, in FOLDER.

    PAIRS is in the format of Quora's question pairs, with or without `id`. The same command goes on
    after a kill.

    Example: qpr train runs/mine pairs.tsv --config mine.toml
    """
    use_huge_pages()
    from qpr_jax.training.run import train_and_evaluate
    from qpr_jax.training.settings import default_settings, from_toml

    settings = from_toml(config) if config else default_settings()
    settings.data.path = pairs
    try:
        train_and_evaluate(settings, folder)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


@click.command()
@click.argument("folder", type=NamedPath())
@click.argument("questions", default="-")
@click.option("--out", type=NamedPath(dir_okay=False), required=True, help="A .npy file.")
@questions_input
def encode(folder: str, questions: str, out: str, **how: Any) -> None:
    """Write the vectors of QUESTIONS, float32 [n, d] in their order, to a .npy file.

    NumPy maps it with np.load(OUT, mmap_mode="r"). The same command goes on after a kill.

    Example: qpr encode runs/quora_sdml questions.tsv --out vectors.npy
    """
    from qpr_jax.retrieval.vectors_file import encode_to_file
    from qpr_jax.retriever import run_encoder

    encoder = run_encoder(folder)
    texts = (entry.question for entry in counted(questions_of(questions, **how), "encoded"))
    rows = encode_to_file(
        out,
        texts,
        encoder.encode,
        dimension=encoder.dimension,
        encoder=encoder.identity,
        log=log.info,
    )
    log.info("%s: %s vectors of %d numbers", out, f"{rows:,}", encoder.dimension)
