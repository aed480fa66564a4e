"""The data of a run, in rows: questions, unlabeled ones, and sentences with their translations."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.question_pairs import QuestionPairs
from qpr_jax.data.splits import TRAIN, Splits
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.text.tokenizer import NO_BAGS, SubwordBags
from qpr_jax.text.vocabulary import Tokenizer
from qpr_jax.training.teacher import Teacher
from qpr_jax.training.translations import TranslationData


class SortedLists(NamedTuple):
    """Questions and the scores of their candidates, rows of the dataset."""

    queries: np.ndarray  # int [n]
    candidates: np.ndarray  # int [n, k]
    scores: np.ndarray  # float32 [n, k]; the softmax of a row is what a student learns


@dataclass(frozen=True)
class TrainDataset:
    """The data of a run: Q questions, and more texts that a student learns a teacher's vectors of.

    These are, in this order, U unlabeled questions, S sources and T targets of translations. A
    teacher encodes all texts but the targets: they learn the vectors of their sources.
    """

    data: QuestionPairs  # the Q questions and their pairs
    clusters: np.ndarray  # int32 [Q + U + S + T], from 0; -1: none; of a source and its targets one
    splits: Splits  # of the Q questions
    tokenizer: Tokenizer
    token_ids: np.ndarray  # int32 [Q + U + S + T, L], 0 pads
    unlabeled: list[str]  # the U others
    start: Encoder | None = None  # what training starts from; None for fresh parameters
    teacher: Teacher | None = None
    parts: SubwordBags = NO_BAGS  # of the token ids that are not rows of the embedding table
    translations: TranslationData | None = None
    lists: SortedLists | None = None  # of training questions, if `teacher.lists` is not 0
    report: dict[str, Any] = dataclasses.field(default_factory=dict)  # counts, as in report.json

    @property
    def first_source(self) -> int:
        """The row of the first source of the translations, Q + U."""
        return len(self.data.questions) + len(self.unlabeled)

    @property
    def first_target(self) -> int:
        """The row of the first target of the translations, Q + U + S."""
        return len(self.token_ids) - (len(self.translations.targets) if self.translations else 0)

    @functools.cached_property
    def trainable_questions(self) -> np.ndarray:
        """The rows of the training questions and the unlabeled ones."""
        more = np.arange(len(self.data.questions), self.first_source)
        return np.concatenate([np.flatnonzero(self.splits.split_of == TRAIN), more])

    @functools.cached_property
    def trainable_rows(self) -> np.ndarray:
        """Rows that training may read: the training questions and all others."""
        more = np.arange(self.first_source, len(self.token_ids))
        return np.concatenate([self.trainable_questions, more])

    @functools.cached_property
    def target_rows(self) -> np.ndarray:
        """The row whose teacher's vector each row learns: int32 [Q + U + S + T]."""
        rows = np.arange(len(self.token_ids), dtype=np.int32)
        if self.translations:
            sources = np.arange(self.first_source, self.first_target)
            # Those of questions follow the sources in `source_of`.
            of_source = np.concatenate([sources, self.trainable_questions])
            rows[self.first_target :] = of_source[self.translations.source_of]
        return rows

    def translation_pairs(self) -> np.ndarray:
        """Return the rows of sentences and of their translations, int32 [P, 2]; no dictionary's."""
        if not self.translations:
            return np.zeros((0, 2), np.int32)
        rows = self.first_target + np.flatnonzero(self.translations.is_sentence)
        return np.column_stack([self.target_rows[rows], rows]).astype(np.int32)

    @functools.cached_property
    def subword_ids(self) -> np.ndarray:
        """For each row of the embedding table, the id of the word's n-grams, if it has one.

        int32 [V]; those ids are the last of `parts`.
        """
        rows = np.arange(self.tokenizer.size, dtype=np.int32)
        words = self.tokenizer.first_bin - 1
        rows[1 : 1 + words] = self.tokenizer.size + self.parts.tokens - words + np.arange(words)
        return rows
