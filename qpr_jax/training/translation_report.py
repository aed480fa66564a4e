"""The scores of a run on translations: each language, held-out sentences and test files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from qpr_jax.data.splits import HELD_OUT
from qpr_jax.data.translations import Translations, file_names
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.translation import Corpus, Encode, known_shares, score_set
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.teacher import cached_vectors

E = TypeVar("E", bound=Encoder)


def with_languages(encoder: E, start: Encoder | None, dataset: TrainDataset) -> E:
    """Note in the settings of a trained encoder which translations it has learned.

    Under `translations`, `source_language` and `files` as in the report, after those that `start`,
    the encoder that it was trained from, has learned.
    """
    known = start.settings.get("translations", {}) if start else {}
    if dataset.translations is not None:
        files = [*known.get("files", []), *_files(dataset.translations.splits.train)]
        known = {"source_language": dataset.translations.source_language, "files": files}
    added = {"translations": known} if known else {}
    # Every encoder that is trained is a dataclass.
    return dataclasses.replace(encoder, settings=encoder.settings | added)  # type: ignore[type-var]


def translation_scores(
    dataset: TrainDataset, encoder: Encoder, vectors: np.ndarray
) -> dict[str, Any]:
    """Score an encoder on the translations of a run; an empty dictionary if there are none.

    vectors: float32 [Q, d], of the indexed questions.

    Returns:
      `source_language`. `files`: the `name`, `language` and `rows` of what was trained with, and
      whether it is a `dictionary`. `counts`: by language, as of `split_translations`. `known`: by
      language, the share of tokens with a row of their own. `sets`: for each what `score_set`
      gives, of held-out sentences with `retrieval` among the indexed questions.
    """
    if dataset.translations is None:
        return {}
    splits = dataset.translations.splits
    teacher, corpus = _teacher_of(dataset), Corpus(dataset.data.questions, vectors)
    held_out = [texts._replace(name=name) for name in HELD_OUT for texts in splits.held_out[name]]
    tests = [texts._replace(name=file_names(texts.name)) for texts in splits.tests]
    sets = [score_set(t, encoder.encode, teacher=teacher, corpus=corpus) for t in held_out]
    sets += [score_set(texts, encoder.encode, teacher=teacher) for texts in tests]
    return {
        "source_language": dataset.translations.source_language,
        "files": _files(splits.train),
        "counts": splits.report,
        "known": known_shares(dataset.tokenizer, splits.train),
        "sets": sets,
    }


def _files(train: Sequence[Translations]) -> list[dict[str, Any]]:
    return [
        {
            "name": file_names(file.name),
            "language": file.language,
            "rows": len(file.sources),
            "dictionary": file.dictionary,
        }
        for file in train
    ]


def _teacher_of(dataset: TrainDataset) -> Encode | None:
    """What the student learned for a text; None where the teacher's encoder is not there."""
    teacher = dataset.teacher
    if not teacher or not teacher.encoder:
        return None
    encoder, components = teacher.encoder, teacher.components

    def encode(texts: Sequence[str]) -> np.ndarray:
        vectors = cached_vectors(encoder, texts)
        return vectors if components is None else vectors @ components

    return encode
