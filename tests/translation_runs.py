"""A small training with translations to a made-up language: its files, its teacher, its config."""

import pathlib
from typing import Any

import numpy as np

from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.encoders.load import save_encoder
from qpr_jax.text.vocabulary import build_vocabulary
from qpr_jax.training.config import TrainConfig, load_config, override
from tests.encoders.examples import cnn_encoder
from tests.made_up_language import made_up_pairs, translate, write_tsv

DIMENSION = 16


def write_teacher(run: pathlib.Path, texts: list[str], dimension: int = DIMENSION) -> None:
    """The run of an encoder that adds random vectors of the words in `texts`."""
    rng = np.random.default_rng(0)
    vocabulary = build_vocabulary(texts, bins=1)
    encoder = cnn_encoder(
        embedding=rng.normal(size=(vocabulary.size, dimension)),
        kernels=[np.zeros((1, dimension, 1))],
        biases=[np.zeros(1)],
        projection=np.eye(1 + dimension, dimension, -1),
        vocabulary=vocabulary,
        max_tokens=64,
        settings={},
        normalize=True,
    )
    save_encoder(run / "export", encoder)


def translated_config(
    folder: pathlib.Path, *, sentences: int = 300, words: int = 0, **changes: Any
) -> TrainConfig:
    """A smoke run of synthetic pairs with `sentences` and a dictionary of `words`.

    Both, and a teacher of all English words in them, are written to `folder`.
    """
    config = load_config("synthetic_sdml:smoke")
    pairs = made_up_pairs(sentences, seed=1)
    english = [source for source, _ in pairs]
    questions = synthetic_pairs(clusters=config.data.max_rows).questions
    folder.mkdir(parents=True, exist_ok=True)
    write_teacher(folder / "teacher", [*questions, *english])
    files = [write_tsv(folder / "sentences.tsv", pairs)]
    if words:
        entries = dict.fromkeys(word for text in english for word in text.lower().split())
        known = [word for word in entries if word.isalpha()][:words]
        files.append(write_tsv(folder / "words.tsv", [(w, translate(w)) for w in known]))
    settings = {
        "data.parallel": tuple(files),
        "teacher.model": str(folder / "teacher"),
        "teacher.epochs": 1,
        "teacher.batch_size": 64,
        "text.subwords": True,
        "encoder.output_dim": DIMENSION,
        "encoder.bag_of_words": True,
        "encoder.normalize": True,
        "early_stopping.every_steps": 1000,
        "checkpoint_every": 1000,
        "rerank.candidates": 0,
        "devices": 1,
    }
    return override(config, settings | changes)
