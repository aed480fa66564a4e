"""What `experiments.multilingual` measures: encoders and baselines on the same translations."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.translation_baselines import (
    character_tfidf,
    character_tfidf_retrieval,
    ridge_map,
)
from qpr_jax.data.parallel import Translations
from qpr_jax.data.splits import TRAIN
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.translation import Corpus, Encode, known_shares, score_set
from qpr_jax.index.run import run_encoder
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.teacher import cached_vectors, read_teacher
from qpr_jax.training.translations import TranslationData, load_translations
from qpr_jax.unit_vectors import unit_rows

FOLDER = "$QPR_DATA_DIR/parallel"
HELD_OUT = "held out"
TESTS = ("Tatoeba test", "Multi30k test", "NTREX")  # of every language, in the order of its files

Scores = dict[str, Any]


class Language(NamedTuple):
    """A language of the study: its name, its code of three letters, and its files.

    files: names in `FOLDER` of what trains a student.
    """

    name: str
    long_code: str
    files: tuple[str, ...]


LANGUAGES = {
    "de": Language(
        "German",
        "deu",
        (
            "tatoeba.en-de.tsv.gz",
            "multi30k.train.en.gz+multi30k.train.de.gz",
            "wiktionary.de-en.txt.gz",
        ),
    ),
    "fr": Language(
        "French",
        "fra",
        ("multi30k.train.en.gz+multi30k.train.fr.gz", "wiktionary.fr-en.txt.gz"),
    ),
    "cs": Language("Czech", "ces", ("multi30k.train.en.gz+multi30k.train.cs.gz",)),
}


def language_settings(code: str) -> dict[str, Any]:
    """The settings of `multilingual_distilled` that name the files of a language."""
    language = LANGUAGES[code]
    tatoeba = f"tatoeba_test.{language.long_code}-eng"
    tests = (
        f"{tatoeba}.eng.gz+{tatoeba}.{language.long_code}.gz",
        f"multi30k.test.en.gz+multi30k.test.{code}.gz",
        f"ntrex.eng.gz+ntrex.{language.long_code}.gz",
    )
    return {"data.parallel": _in_folder(language.files), "data.parallel_tests": _in_folder(tests)}


def _in_folder(names: Sequence[str]) -> tuple[str, ...]:
    return tuple("+".join(f"{FOLDER}/{part}" for part in name.split("+")) for name in names)


class Material(NamedTuple):
    """What the encoders of one language are trained and scored with.

    Attributes:
      questions: all Quora questions.
      translations: as a student of the language reads them.
      sets: that are scored: held-out sentences, then `TESTS`.
      teacher: the teacher's vectors of any texts.
      dimension: of these vectors.
      source_language: the teacher's.
    """

    questions: list[str]
    translations: TranslationData
    sets: list[Translations]
    teacher: Encode
    dimension: int
    source_language: str


def read_material(config: TrainConfig) -> Material:
    """Read the questions and the translations of a config as its training reads them."""
    source = SOURCES[config.data.source]
    path = source.find(config) if source.find else None
    data, _, splits = source.read(config, path or pathlib.Path())
    held_out = {
        normalized_text(data.questions[i]) for i in np.flatnonzero(splits.split_of != TRAIN)
    }
    translations, encoder = load_translations(config, held_out), read_teacher(config)
    if translations is None or encoder is None:
        raise UserError("expected settings with translations and a teacher, got none")
    sets = [texts._replace(name=HELD_OUT) for texts in translations.splits.held_out["test"]]
    tests = zip(translations.splits.tests, TESTS, strict=True)
    return Material(
        data.questions,
        translations,
        sets + [texts._replace(name=name) for texts, name in tests],
        lambda texts: np.asarray(cached_vectors(config.teacher.cache, encoder, texts)),
        encoder.dimension,
        config.data.teacher_language,
    )


def score_run(run: pathlib.Path, configs: Mapping[str, TrainConfig]) -> dict[str, Scores]:
    """Score the encoder of a run on languages, whether it was trained with them or not.

    configs: of the students of these languages, by code.
    """
    encoder = run_encoder(run)
    vectors: dict[int, np.ndarray] = {}  # of the questions, which all languages share
    found = {}
    for code, config in configs.items():
        material = read_material(config)
        count = len(material.questions)
        if count not in vectors:
            vectors[count] = encoder.encode(material.questions)
        found[code] = score_encoder(encoder, material, vectors[count])
    return found


def score_encoder(encoder: Encoder, material: Material, vectors: np.ndarray) -> Scores:
    """Score an encoder on the sets of a language.

    vectors: float32 [Q, d], of the questions.

    Returns:
      `sets`: what `score_set` gives of each; cosines only where the encoder has vectors as long as
      the teacher's. `known`: of encoders with a vocabulary of words, `known_shares`.
    """
    teacher = material.teacher if encoder.dimension == material.dimension else None
    corpus = Corpus(material.questions, vectors)
    sets = [
        score_set(
            texts, encoder.encode, teacher=teacher, corpus=corpus if is_held_out(texts) else None
        )
        for texts in material.sets
    ]
    found: Scores = {"sets": sets}
    if isinstance(encoder, CnnEncoder):
        train = material.translations.splits.train
        found["known"] = known_shares(encoder.vocabulary, train, material.source_language)
    return found


def score_tfidf(material: Material) -> Scores:
    """Score TF-IDF of character n-grams, which is fitted on the texts that are scored."""
    sets = []
    for texts in material.sets:
        facts = {"language": texts.language, "name": texts.name, "sentences": len(texts.sources)}
        found = facts | character_tfidf(texts.sources, texts.targets)
        if is_held_out(texts):
            found["retrieval"] = character_tfidf_retrieval(
                texts.targets, texts.sources, material.questions
            )
        sets.append(found)
    return {"sets": sets}


def score_ridge(material: Material) -> Scores:
    """Score a linear map of the other language to the teacher's vectors of the English side.

    It is fitted on the sentences that train a student; the teacher encodes the English sides.
    """
    data, teacher = material.translations, material.teacher
    sentences = np.flatnonzero(data.is_sentence)
    texts = [data.targets[i] for i in sentences]
    vectors = unit_rows(teacher(data.sources)[data.source_of[sentences]])
    encode = ridge_map(texts, vectors)

    def encode_english(texts: Sequence[str]) -> np.ndarray:
        return unit_rows(teacher(texts))

    corpus = Corpus(material.questions, encode_english(material.questions))
    sets = [
        score_set(
            texts,
            encode,
            encode_sources=encode_english,
            teacher=teacher,
            corpus=corpus if is_held_out(texts) else None,
        )
        for texts in material.sets
    ]
    return {"sets": sets}


# What trains no network: name -> what the page calls it, and its scores of a language.
BASELINES: dict[str, tuple[str, Callable[[Material], Scores]]] = {
    "tfidf": ("TF-IDF of characters", score_tfidf),
    "ridge": ("linear map; English by the teacher", score_ridge),
}


def score_baseline(name: str, material: Material) -> Scores:
    """Score a baseline of `BASELINES`; also the `seconds` that it took."""
    start = time.perf_counter()
    scores = BASELINES[name][1](material)
    return scores | {"seconds": time.perf_counter() - start}


def is_held_out(texts: Translations) -> bool:
    """Whether these are sentences held out of the training files."""
    return texts.name == HELD_OUT
