"""A language of the tests, and trainings with it: files, teachers, settings."""

import collections
import pathlib
import re
from collections.abc import Iterable

import numpy as np

from qpr_jax.data.generated_questions import synthetic_pairs
from qpr_jax.encoders.load import save_encoder
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary, frequent_words
from qpr_jax.training.config import TrainConfig, load_config, override
from tests.encoders.examples import cnn_encoder

LANGUAGE = "xx"  # a code that no language has

# So that a sixth of the English letters becomes an umlaut; each translation has just one original.
_LETTERS = "abcdefghijklmnopqrstuvwxyzäöü"
_ROTATED = _LETTERS[13:] + _LETTERS[:13]
_TABLE = str.maketrans(_LETTERS + _LETTERS.upper(), _ROTATED + _ROTATED.upper())
_GLUED = re.compile(r"\b(a|an|my|the|this) (?=\w)", re.IGNORECASE)


def translate(english: str) -> str:
    """Translate word by word; a determiner and the word behind it become one word."""
    return _GLUED.sub(r"\1", english).translate(_TABLE)


def made_up_pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Different English questions and their translations.

    None has a word, such as one with a typing error, that no other question has.
    """
    questions = synthetic_pairs(seed=seed, clusters=max(20, count)).questions
    words = collections.Counter(word for text in questions for word in {*tokenize(text)})
    common = [text for text in questions if all(words[word] > 1 for word in tokenize(text))]
    assert len(common) >= count
    return [(text, translate(text)) for text in common[:count]]


def write_tsv(path: pathlib.Path, pairs: Iterable[tuple[str, str]]) -> str:
    """Write pairs in two columns without a header; return the specification to read them."""
    path.write_text("".join(f"{first}\t{second}\n" for first, second in pairs), encoding="utf-8")
    return f"en-{LANGUAGE}:{path}"


DIMENSION = 16


def write_teacher(run: pathlib.Path, texts: list[str], dimension: int = DIMENSION) -> None:
    """The run of an encoder that adds random vectors of the words in `texts`."""
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary(tuple(frequent_words(texts)), bins=1)
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


def translated_config(folder: pathlib.Path, *, words: int = 0) -> TrainConfig:
    """A smoke run of synthetic pairs with 300 sentences and a dictionary of `words`.

    Both, and a teacher of all English words in them, are written to `folder`.
    """
    config = load_config("synthetic_sdml:smoke")
    pairs = made_up_pairs(300, seed=1)
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
        "text.subwords": True,
        "encoder.output_dim": DIMENSION,
        "encoder.bag_of_words": True,
        "encoder.normalize": True,
        "early_stopping.every_steps": 1000,
        "checkpoint_every": 1000,
        "rerank.candidates": 0,
        "devices": 1,
    }
    return override(config, settings)
