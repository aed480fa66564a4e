"""From settings to all that training and evaluation read: pairs, splits, token ids."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import Any

import numpy as np

from qpr_jax.data.question_pairs import cluster_report
from qpr_jax.data.splits import SPLITS, TRAIN, without_texts
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import TokenIds, normalized_text
from qpr_jax.text.vocabulary import Vocabulary
from qpr_jax.training import distributed
from qpr_jax.training.config import TrainConfig, gives_vectors, refuse_if, trains
from qpr_jax.training.model_families import family_of
from qpr_jax.training.sources import SOURCES, unlabeled_texts
from qpr_jax.training.teacher import (
    ROTATED,
    SAMPLE,
    Teacher,
    cached_vectors,
    given_vectors,
    nearest_rotation,
    principal_components,
    teacher_words,
)
from qpr_jax.training.train_data import TrainDataset
from qpr_jax.training.translations import TranslationData, load_translations

log = logging.getLogger(__name__)


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
    collected, derived = unlabeled_texts(config, data.questions, trained, held_out, words)
    unlabeled = collected + derived
    corpora, fill, texts = [trained + collected], words, data.questions + unlabeled
    if translations:
        translations = translations.with_words_translated(trained + unlabeled)
        corpora, fill = translations.corpora(trained + collected, words)
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
    dataset = TrainDataset(
        data=data,
        clusters=_with_texts(clusters, trained_rows, len(unlabeled), translations),
        splits=splits,
        tokenizer=tokenizer,
        token_ids=tokens.padded(),
        unlabeled=unlabeled,
        start=start,
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
    """Return the clusters of all texts, first of the questions, int [Q], of which `trained`."""
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
    in_vocabulary = tokenizer.is_known(tokens.ids).sum()
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
        "hashed_words": float(1 - in_vocabulary / max(1, len(tokens.ids))),
        "unlabelled": len(dataset.unlabeled),
        "splits": counts,
    }
    known_counts = {name: n for name, n in report.items() if isinstance(n, int) and n}
    for title, found in {"all": known_counts, **counts}.items():
        parts = (f"{count:,} {name.replace('_', ' ')}" for name, count in found.items())
        log.info("data: %s: %s", title, ", ".join(parts))
    return report


def make_teacher(config: TrainConfig, dataset: TrainDataset, encoder: Encoder | None) -> Teacher:
    """Make the teacher of a training; its vectors are computed unless they are cached.

    `encoder`: of `teacher.model`; None if that is a file of vectors. UserError if it has fewer
    dimensions than the student. A student that starts from an encoder learns the teacher's vectors
    rotated to be near its own.
    """
    sources = dataset.translations.sources if dataset.translations else []
    questions = [dataset.data.questions, dataset.unlabeled, sources]
    dimension = dataset.start.dimension if dataset.start else config.encoder.output_dim
    parts = [] if encoder else [given_vectors(config.teacher.model, questions)]
    size = encoder.dimension if encoder else parts[0].shape[1]
    what = f"expected at most {size} dimensions, as the teacher's, got {dimension}"
    remedy = f"set `encoder.output_dim={size}`, or, for a transformer, another teacher"
    refuse_if(dimension > size, "encoder.output_dim", what, remedy)
    if encoder:  # process 0 computes the vectors, and the others read them
        parts = distributed.in_turn(
            lambda: [cached_vectors(encoder, part) for part in questions if len(part)]
        )
    teacher = Teacher(tuple(parts), None, encoder)
    if dimension == size and not dataset.start:
        return teacher
    rows = dataset.trainable_rows
    encoded = rows[rows < dataset.first_target]
    sample = np.random.default_rng(0).permutation(encoded)[: ROTATED if dataset.start else SAMPLE]
    sample.sort()
    vectors = teacher.vectors(sample)
    components = principal_components(vectors, dimension)
    if dataset.start:
        texts = [text for part in questions for text in part]
        start_vectors = dataset.start.encode([texts[row] for row in sample])
        components = components @ nearest_rotation(vectors @ components, start_vectors)
    return teacher._replace(components=distributed.from_first(components))
