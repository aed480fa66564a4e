"""Encoders without training, and words of the made-up language that are added to them."""

import pathlib

import numpy as np

from qpr_jax.encoders.cnn_encoder import CnnEncoder, read_cnn
from qpr_jax.encoders.load import save_encoder
from qpr_jax.index.run import run_encoder_folder
from qpr_jax.text.vocabulary import build_vocabulary
from qpr_jax.training.config import TrainConfig, load_config, override
from tests.encoders.examples import cnn_encoder
from tests.made_up_language import made_up_pairs, translate

PAIRS = 1500
# Words that English questions have, the other language has, too, and the encoder has no row for.
COMMON = ("please", "actually")


def write_english(run: pathlib.Path, *, subwords: bool, normalize: bool = True) -> CnnEncoder:
    """An encoder of random weights, which distinguishes the words of English questions."""
    rng = np.random.default_rng(0)
    english = [source for source, _ in made_up_pairs(PAIRS)]
    words = " ".join(english).lower()
    for word in COMMON:
        words = words.replace(word, "")
    vocabulary = build_vocabulary([words], size=400, bins=100, subwords=subwords)
    table = rng.normal(size=(vocabulary.size, 16))
    table[vocabulary.first_bin :] *= 0.3
    encoder = cnn_encoder(
        embedding=table,
        kernels=[0.2 * rng.normal(size=(w, 16, 24)) for w in (1, 3)],
        biases=[np.zeros(24)] * 2,
        projection=rng.normal(size=(64, 32)),
        vocabulary=vocabulary,
        max_tokens=30,
        settings={"encoder.embedding_dim": 16, "encoder.filters": 24, "batch_size": 7},
        normalize=normalize,
    )
    save_encoder(run / "export", encoder)
    return encoder


def config_of(folder: pathlib.Path, run: pathlib.Path, *, times: int = 1, **changes) -> TrainConfig:
    """The preset, small: translations to the language of letters that are rotated `times`."""
    pairs = made_up_pairs(PAIRS)
    pairs += [
        (f"{word} {source}", f"{word} {target}")
        for word in COMMON
        for source, target in made_up_pairs(20)
    ]
    for _ in range(times - 1):
        pairs = [(source, translate(target)) for source, target in pairs]
    path = folder / f"pairs{times}.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    given = {
        "data.source": "synthetic",
        "data.max_rows": 300,
        "data.held_out_pairs": 200,
        "data.parallel": (f"en-{'xyz'[times - 1] * 2}:{path}",),
        "data.parallel_tests": (),
        "index.factory": "IVF20,Flat",
        "encoder.pretrained": str(run),
        "text.added_words": 2000,
        "text.min_count": 1,
        "teacher.batch_size": 64,
        "teacher.epochs": 3,
        "optimizer.learning_rate": 0.02,
        "devices": 4,
    }
    return override(load_config("add_language"), given | changes)


def write_extended(run: pathlib.Path, to: pathlib.Path, *words: str) -> CnnEncoder:
    """Write the encoder of `run` with more words, and random embeddings of them."""
    encoder = read_cnn(run_encoder_folder(run))
    vocabulary = encoder.vocabulary.with_words(words, len(words))
    rows = np.random.default_rng(1).normal(size=(len(words), encoder.embedding.shape[1]))
    extended = encoder.with_words(vocabulary, rows.astype(np.float32), {})
    save_encoder(to / "export", extended)
    return extended
