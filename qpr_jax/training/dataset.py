"""From settings to all that training and evaluation read: pairs, splits, token ids."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pathlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.clusters import cluster_report
from qpr_jax.data.question_pairs import QuestionPairs
from qpr_jax.data.splits import SPLITS, TRAIN, Splits, without_texts
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.text.token_ids import NO_PARTS, Parts, TokenIds
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.text.vocabulary import Vocabulary
from qpr_jax.text.word_pieces import Tokenizer
from qpr_jax.training.config import TrainConfig, gives_vectors, trains
from qpr_jax.training.model_families import family_of
from qpr_jax.training.sections import refuse_if
from qpr_jax.training.sources import SOURCES, read_negatives, unlabeled_texts
from qpr_jax.training.teacher import Teacher, make_teacher, teacher_words
from qpr_jax.training.translations import TranslationData, load_translations

log = logging.getLogger(__name__)


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
    # int32 [M, 2], a training question and a negative of it, of `data.negatives`, if given.
    hard_negatives: np.ndarray | None = None
    parts: Parts = NO_PARTS  # of the token ids that are not rows of the embedding table
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
        """The rows of sentences and of their translations, int32 [P, 2]; no dictionary's."""
        assert self.translations  # else the settings were refused
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


def load_dataset(
    config: TrainConfig,
    path: pathlib.Path | None,
    start: Encoder | None = None,
    teacher: Encoder | None = None,
) -> TrainDataset:
    """Read, cluster, split and tokenize the data at `path`, None if it is generated.

    `start` comes from `ModelFamily.start`, `teacher` from `read_teacher`. Its vectors are computed.
    """
    words = teacher_words(config, teacher)
    data, clusters, splits = SOURCES[config.data.source].read(config, path or pathlib.Path())
    unread = config.data.labels and "added_labels" not in data.report
    what = f"must be empty: `data.source={config.data.source}` has no labels to add to"
    refuse_if(unread, "data.labels", what)
    kept_out = np.flatnonzero(splits.split_of != TRAIN)
    held_out = {normalized_text(data.questions[i]) for i in kept_out}
    translations = load_translations(config, held_out)
    if translations:
        scored = translations.scored_texts()
        held_out |= scored
        splits = without_texts(splits, data.questions, scored)
    trained_rows = np.flatnonzero(splits.split_of == TRAIN)
    trained = [data.questions[i] for i in trained_rows]
    given, made = unlabeled_texts(config, data.questions, trained, held_out, words)
    unlabeled = given + made
    corpora, fill, texts = [trained + given], words, data.questions + unlabeled
    if translations:
        if copies := config.data.word_translated:
            translations = translations.with_words_translated(trained + unlabeled, copies)
        corpora, fill = translations.corpora(trained + given, words)
        texts = texts + translations.sources + translations.targets
    tokenizer = family_of(start).tokenizer(config, start, corpora, fill)
    max_tokens = min(config.text.max_tokens, start.max_tokens if start else 1 << 30)
    tokens = tokenizer.token_ids(texts, max_tokens)
    parts = tokens.parts
    if config.batch.subword_dropout and trains(config):
        if not (isinstance(tokenizer, Vocabulary) and tokenizer.subwords):
            what, remedy = "the encoder has no sums of n-grams", "set it to 0"
            raise UserError(what, setting="batch.subword_dropout", remedy=remedy)
        parts = parts.joined(tokenizer.spelled())
    hard = None
    if config.data.negatives and config.batch.hard_negatives:
        hard = read_negatives(config, data.questions, clusters, splits)
    dataset = TrainDataset(
        data=data,
        clusters=_with_texts(clusters, trained_rows, len(unlabeled), translations),
        splits=splits,
        tokenizer=tokenizer,
        token_ids=tokens.padded(),
        unlabeled=unlabeled,
        start=start,
        hard_negatives=hard,
        parts=parts,
        translations=translations,
    )
    dataset = dataclasses.replace(dataset, report=_make_report(dataset, tokens))
    if teacher or gives_vectors(config):
        return dataclasses.replace(dataset, teacher=make_teacher(config, dataset, teacher))
    return dataset


def _with_texts(
    clusters: np.ndarray, trained: np.ndarray, unlabeled: int, translations: TranslationData | None
) -> np.ndarray:
    """The clusters of all texts; those of the questions come first, int [Q], of which `trained`."""
    others = np.full(unlabeled, -1, clusters.dtype)
    if not translations:
        return np.concatenate([clusters, others])
    groups = clusters.max(initial=-1) + 1 + translations.groups()
    of_sources = np.concatenate([groups, clusters[trained], others])
    found = [clusters, others, groups, of_sources[translations.source_of]]
    return np.concatenate(found).astype(np.int32)


def _make_report(dataset: TrainDataset, tokens: TokenIds) -> dict[str, Any]:
    """Count what the data are, and log the counts."""
    data, splits, tokenizer = dataset.data, dataset.splits, dataset.tokenizer
    clusters = dataset.clusters[: len(data.questions)]
    known = tokenizer.is_known(tokens.ids).sum()
    counts = {}
    for number, name in enumerate(SPLITS):
        rows = np.flatnonzero(splits.split_of == number)
        counts[name] = {
            "questions": len(rows),
            "clusters": len(np.setdiff1d(clusters[rows], -1)),
            "pairs": len(splits.pairs[name]),
            "queries": len(np.unique(splits.pairs[name][:, 0])),
            "non_duplicates": len(splits.non_duplicates[name]),
        }
    report = {
        "questions": len(data.questions),
        **data.report,
        **cluster_report(clusters, data.pairs, data.is_duplicate),
        "questions_cut": tokens.truncated,
        "words_per_question": float(np.maximum(np.diff(tokens.offsets), 1).mean()),
        "vocabulary": tokenizer.first_bin - 1,
        "hashed_words": float(1 - known / max(1, len(tokens.ids))),
        "unlabelled": len(dataset.unlabeled),
        "splits": counts,
    }
    if dataset.hard_negatives is not None:
        report["hard_negatives"] = len(dataset.hard_negatives)
    known_counts = {name: n for name, n in report.items() if isinstance(n, int) and n}
    for title, found in {"all": known_counts, **counts}.items():
        parts = (f"{count:,} {name.replace('_', ' ')}" for name, count in found.items())
        log.info("data: %s: %s", title, ", ".join(parts))
    return report
