"""From settings to all that training and evaluation read: pairs, splits, word ids."""

from __future__ import annotations

import logging
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from qpr_jax.data.clusters import cluster_report, transitive_clusters
from qpr_jax.data.noisy import noisy_log
from qpr_jax.data.quora import QuestionPairs, read_quora
from qpr_jax.data.splits import (
    HELD_OUT,
    SPLITS,
    Splits,
    other_candidates,
    split_by_cluster,
)
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.distant.folder import Supervised, read_clusters
from qpr_jax.errors import UserError
from qpr_jax.text.vocabulary import Vocabulary, build_vocabulary
from qpr_jax.training.batches import lengths_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """The data of a run: Q questions, their clusters int32 [Q], splits, word ids int32 [Q, L].

    others: for each held-out split, int [P], a question of another cluster for each pair: the
      negatives of ROC AUC.
    """

    data: QuestionPairs
    clusters: np.ndarray
    splits: Splits
    others: dict[str, np.ndarray]
    vocabulary: Vocabulary
    words: np.ndarray
    report: dict[str, Any]


def prepare(settings: ConfigDict, path: pathlib.Path | None) -> Prepared:
    """Read, cluster, split and tokenise the data at `path`.

    That is the pair file; of logs of questions and answers, a folder that `qpr clusters` made; None
    for a generated log.
    """
    data, clusters, splits = _read(settings, path)
    others = {split: other_candidates(splits.pairs[split], clusters, seed=0) for split in HELD_OUT}
    seen = np.flatnonzero(splits.split_of == 0)
    vocabulary = build_vocabulary(
        (data.questions[i] for i in seen),
        size=settings.vocabulary_size,
        bins=settings.hash_bins,
        fewest=settings.fewest_uses,
        char_ngrams=settings.char_ngrams,
    )
    words, cut = vocabulary.word_ids(data.questions, settings.max_words)
    report: dict[str, Any] = {
        "questions": len(data.questions),
        **data.report,
        **cluster_report(clusters, data.pairs, data.is_duplicate),
        "questions_cut": cut,
        "words_per_question": float(lengths_of(words).mean()),
        "vocabulary": len(vocabulary.words),
        "hashed_words": float((words > len(vocabulary.words)).sum() / max(1, (words > 0).sum())),
        "splits": {
            name: {
                "questions": int((splits.split_of == i).sum()),
                "clusters": len(np.unique(clusters[(splits.split_of == i) & (clusters >= 0)])),
                "pairs": len(splits.pairs[name]),
                "queries": len(np.unique(splits.pairs[name][:, 0])),
                "non_duplicates": len(splits.non_duplicates[name]),
            }
            for i, name in enumerate(SPLITS)
        },
    }
    _log_report(report)
    return Prepared(data, clusters, splits, others, vocabulary, words, report)


def _read(
    settings: ConfigDict, path: pathlib.Path | None
) -> tuple[QuestionPairs, np.ndarray, Splits]:
    if settings.data.source == "qa_logs" and path is not None:
        return _supervised(read_clusters(path))
    if path is None and settings.data.false_negatives != -1:
        made = noisy_log(
            settings.data.false_negatives,
            pairs=settings.data.synthetic_clusters,
            batch_size=settings.batch_size,
            seed=settings.data.split_seed,
        )
        return made.data, made.clusters, made.splits
    if path is None:
        data = synthetic_pairs(
            seed=settings.data.split_seed, clusters=settings.data.synthetic_clusters
        )
    else:
        data = read_quora(
            path, skip_bad_rows=settings.data.skip_bad_rows, max_rows=settings.data.max_rows
        )
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    splits = split_by_cluster(
        data,
        clusters,
        seed=settings.data.split_seed,
        held_out_pairs=settings.data.held_out_pairs,
        max_held_out_cluster=settings.data.max_held_out_cluster,
    )
    return data, clusters, splits


def _supervised(made: Supervised) -> tuple[QuestionPairs, np.ndarray, Splits]:
    """Clusters of logs as if of labelled pairs, all of them duplicates."""
    pairs = np.concatenate([made.pairs[split] for split in SPLITS])
    for split in SPLITS:
        if not len(made.pairs[split]):
            raise UserError(
                f"expected pairs in each split, got none for {split}; give more logs, or lower "
                "`data.min_coherence`"
            )
    none = np.zeros((0, 2), np.int32)
    report = {"skipped_rows": made.report["bad_rows"], "distant_supervision": made.report}
    data = QuestionPairs(
        made.questions,
        np.arange(len(made.questions)),
        pairs,
        np.ones(len(pairs), np.bool_),
        report,
    )
    splits = Splits(made.split_of, made.pairs, dict.fromkeys(SPLITS, none))
    return data, made.clusters, splits


def _log_report(report: dict[str, Any]) -> None:
    log.info(
        "data: %s questions, %s clusters, largest %s, %s non-duplicates inside a cluster",
        *(
            f"{report[name]:,}"
            for name in (
                "questions",
                "clusters",
                "largest_cluster",
                "non_duplicates_inside_clusters",
            )
        ),
    )
    if report["skipped_rows"]:
        log.warning("data: %s malformed rows skipped", f"{report['skipped_rows']:,}")
    if report["questions_cut"]:
        log.info("data: %s questions cut to `max_words`", f"{report['questions_cut']:,}")
    for name, split in report["splits"].items():
        log.info("data: %s: %s", name, ", ".join(f"{v:,} {k}" for k, v in split.items()))
