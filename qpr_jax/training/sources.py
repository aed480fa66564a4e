"""Where the data of a training comes from: one entry of SOURCES for each kind."""

from __future__ import annotations

import hashlib
import itertools
import logging
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.labels import add_labels, read_labeled
from qpr_jax.data.pairs import QuestionPairs, read_question_pairs
from qpr_jax.data.sources import find_logs, find_quora
from qpr_jax.data.splits import SPLITS, Splits, split_by_cluster, split_by_text
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.data.synthetic_noise import generate_noisy_log
from qpr_jax.distant import content_hash, make_folder
from qpr_jax.distant.folder import is_made, read_clusters, read_report
from qpr_jax.distant.logs import Logs, log_files
from qpr_jax.distant.method import LEAST, Method
from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of
from qpr_jax.training.config import TrainConfig, has_teacher
from qpr_jax.training.lists import listed_files, read_listed
from qpr_jax.training.sections import refuse_if

log = logging.getLogger(__name__)

SYNTHETIC_CLUSTERS = 6_000
CLUSTERS = "clusters"  # the folder of clusters of logs, in a work directory


class SplitData(NamedTuple):
    """Q questions with their pairs, clusters, integers [Q] (-1 for none), and splits."""

    data: QuestionPairs
    clusters: np.ndarray
    splits: Splits


@dataclass(frozen=True)
class Source:
    """A kind of data.

    Attributes:
      read: the data at a path, which generated data ignores.
      settings: of the section `data` that this kind reads and another does not.
      find: the path that the config names, downloaded if need be; None if data is generated.
      digest: hash of what is read there.
      prepare: (config, path, work directory) -> the path to read instead, made by process 0.
      has_pairs: whether there are pairs to train on.
    """

    read: Callable[[TrainConfig, pathlib.Path], SplitData]
    settings: frozenset[str]
    find: Callable[[TrainConfig], pathlib.Path] | None = None
    digest: Callable[[TrainConfig, pathlib.Path], str] = lambda _, path: sha256_of(path)
    prepare: Callable[[TrainConfig, pathlib.Path, pathlib.Path], pathlib.Path] | None = None
    has_pairs: bool = True


def _read_pairs(config: TrainConfig, path: pathlib.Path) -> SplitData:
    skip, most = config.data.skip_bad_rows, config.data.max_rows
    data = read_question_pairs(path, skip_bad_rows=skip, max_rows=most)
    return _split(config, data)


def _generate(config: TrainConfig, _: pathlib.Path) -> SplitData:
    clusters, rate = config.data.max_rows or SYNTHETIC_CLUSTERS, config.data.false_negatives
    if rate < 0:
        return _split(config, synthetic_pairs(clusters=clusters))
    made = generate_noisy_log(rate, pairs=clusters, batch_size=config.batch_size)
    return SplitData(made.data, made.clusters, made.splits)


def _split(config: TrainConfig, data: QuestionPairs) -> SplitData:
    """Cluster labeled pairs by transitivity, and split them by cluster."""
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    splits = split_by_cluster(data, clusters, held_out_pairs=config.data.held_out_pairs)
    if config.data.labels:
        return SplitData(*add_labels(data, splits, read_labeled(str(labels_file(config)))))
    return SplitData(data, clusters, splits)


def labels_digest(config: TrainConfig) -> dict[str, str]:
    """The hash of `data.labels` for the identity of a run; empty where none is read."""
    if not config.data.labels or "labels" not in SOURCES[config.data.source].settings:
        return {}
    return {"data.labels.sha256": sha256_of(labels_file(config))}


def labels_file(config: TrainConfig) -> pathlib.Path:
    """Return the path of `data.labels`; UserError if it is not a file."""
    path = pathlib.Path(config.data.labels).expanduser()
    if not path.is_file():
        raise UserError(
            f"expected a file of labeled pairs, found none at {path}",
            setting="data.labels",
            remedy="make one with `qpr review`",
        )
    return path


def _read_clusters(_: TrainConfig, path: pathlib.Path) -> SplitData:
    """Clusters of logs as if of labeled pairs, all of them duplicates."""
    made = read_clusters(path)
    pairs = np.concatenate([made.pairs[split] for split in SPLITS])
    for split in SPLITS:
        if not len(made.pairs[split]):
            raise UserError(
                f"expected pairs in each split, got none for {split}",
                remedy="give more logs",
            )
    none = np.zeros((0, 2), np.int32)
    report = {"skipped_rows": made.report["bad_rows"], "distant_supervision": made.report}
    ids, duplicates = np.arange(len(made.questions)), np.ones(len(pairs), np.bool_)
    data = QuestionPairs(made.questions, ids, pairs, duplicates, report)
    splits = Splits(made.split_of, made.pairs, dict.fromkeys(SPLITS, none))
    return SplitData(data, made.clusters, splits)


def _find_list(config: TrainConfig) -> pathlib.Path:
    """The first file of a list, of one file or several."""
    if not config.data.path:
        expected = "a file of questions (one a line, or TSV, CSV, JSON lines, Parquet)"
        raise UserError(f"expected {expected}, got ''", setting="data.path")
    return listed_files(config, "data.path")[0]


def _list_digest(config: TrainConfig, path: pathlib.Path) -> str:
    return list_digest([*map(sha256_of, listed_files(config, "data.path"))])


def list_digest(digests: Sequence[str]) -> str:
    """The hash of a list of files with these hashes: that of the only one, or of all in order."""
    every = hashlib.sha256(" ".join(digests).encode()).hexdigest()
    return digests[0] if len(digests) == 1 else every


def _read_list(config: TrainConfig, _: pathlib.Path) -> SplitData:
    """A list of questions, of which nothing else is known: there are no pairs."""
    every = read_listed(config, "data.path")
    questions = list(itertools.islice(every, config.data.max_rows or None))
    none = np.zeros((0, 2), np.int32)
    ids = np.arange(len(questions))
    data = QuestionPairs(questions, ids, none, np.zeros(0, np.bool_), {"skipped_rows": 0})
    split_of = split_by_text(questions, most=config.data.held_out_pairs)
    pairs = dict.fromkeys(SPLITS, none)
    return SplitData(data, np.full(len(questions), -1, np.int32), Splits(split_of, pairs, pairs))


def _make_clusters(config: TrainConfig, logs: pathlib.Path, workdir: pathlib.Path) -> pathlib.Path:
    """The folder of clusters of `logs`, made in `workdir` unless `logs` is one itself."""
    if is_made(logs):
        _require_method(config, logs)
        return logs
    folder = workdir / CLUSTERS
    if not folder.exists():
        data = config.data
        method = Method(data.coherence, LEAST[data.coherence])
        given = Logs(log_files([str(logs)]))
        make_folder(folder, given, method, skip_bad_rows=data.skip_bad_rows)
    return folder


def _require_method(config: TrainConfig, folder: pathlib.Path) -> None:
    """Raise UserError where `data.coherence` is not its default, nor that of the clusters."""
    value, made = config.data.coherence, read_report(folder)["method"]["coherence"]
    if value not in (TrainConfig().data.coherence, made):
        raise UserError(
            f"{folder}: expected clusters made with {value}, got {made}",
            setting="data.coherence",
            remedy="make them again with `qpr clusters`, or leave the setting out",
        )


SOURCES = {
    "quora": Source(
        _read_pairs,
        frozenset({"path", "skip_bad_rows", "max_rows", "labels"}),
        find=lambda config: find_quora(config.data.path),
    ),
    "qa_logs": Source(
        _read_clusters,
        frozenset({"path", "skip_bad_rows", "coherence"}),
        find=lambda config: find_logs(config.data.path),
        digest=lambda _, path: content_hash(path),
        prepare=_make_clusters,
    ),
    "questions": Source(
        _read_list,
        frozenset({"path", "skip_bad_rows", "max_rows", "question_column"}),
        find=_find_list,
        digest=_list_digest,
        has_pairs=False,
    ),
    "synthetic": Source(_generate, frozenset({"max_rows", "false_negatives", "labels"})),
}


def check_source(config: TrainConfig) -> None:
    """Raise UserError where there is nothing to train on, or to score, or to re-rank by."""
    has_pairs, taught = SOURCES[config.data.source].has_pairs, has_teacher(config)
    metric, candidates = config.early_stopping.metric, config.rerank.candidates
    refuse_if(
        config.job == "cross_encoder" and not has_pairs,
        "data.source",
        f"must have pairs for a cross-encoder, got {config.data.source!r}",
    )
    refuse_if(
        taught and not has_pairs and config.max_epochs,
        "max_epochs",
        f"must be 0: a list of questions has no pairs, got {config.max_epochs}",
    )
    refuse_if(
        not taught and not (has_pairs and config.max_epochs) and not config.encoder.pretrained,
        "",
        "there is nothing to train on: neither pairs nor a teacher",
        "set `teacher.model`, or, with pairs, `max_epochs=10`",
    )
    refuse_if(
        not has_pairs and metric not in ("agreement", "translation"),
        "early_stopping.metric",
        f"must be agreement or translation: a list of questions has no pairs, got {metric}",
    )
    refuse_if(
        candidates and not (has_pairs or taught),
        "rerank.candidates",
        f"must be 0: there are neither pairs nor a teacher to learn from, got {candidates}",
    )
