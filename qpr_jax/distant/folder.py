"""The folder of clusters: written from the result of either engine, read for training."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from qpr_jax.data.splits import SPLITS
from qpr_jax.data.tables import read_rows
from qpr_jax.distant.method import Cluster, FinishedCluster, Method
from qpr_jax.distant.report import histogram, write_sample
from qpr_jax.errors import UserError
from qpr_jax.files import (
    StrPath,
    read_json,
    refuse_existing,
    replace_folder,
    write_atomically,
    write_json,
)

CLUSTERS, QUESTIONS, REPORT = "clusters.jsonl", "questions.jsonl", "report.json"
PAIR_COLUMNS = ("question1", "question2")
_METHOD = ("coherence", "least", "pairs_of_a_cluster", "seed")  # keys of `Method` in the report
_REMEDY = "make the folder again with `qpr clusters`"


class ClusterResult(NamedTuple):
    """What an engine makes of logs.

    Attributes:
      counts: `rows`, `bad_rows`, `questions` (distinct ones), `questions_of_several_answers`,
        `undecided_questions` (without a most frequent answer), `questions_alone` (no other question
        has their answer), `overlapping_questions` (of validation and test, with the same words as a
        training question).
      sizes, coherences, kept: of each cluster of at least two questions, [C].
      sample: some of the kept clusters.
      clusters: the kept ones, sorted by answer.
      texts: all distinct questions, sorted by code points.
    """

    counts: dict[str, int]
    sizes: np.ndarray
    coherences: np.ndarray
    kept: np.ndarray
    sample: list[Cluster]
    clusters: Iterable[FinishedCluster]
    texts: Iterable[str]


def is_made(folder: StrPath) -> bool:
    """Whether `write_clusters` wrote a folder."""
    return pathlib.Path(folder, CLUSTERS).is_file()


def cluster_files(folder: StrPath) -> list[pathlib.Path]:
    """Return the files that `read_clusters` reads; UserError if one is missing."""
    files = [pathlib.Path(folder, name) for name in (CLUSTERS, QUESTIONS, *map(_pairs_of, SPLITS))]
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: expected a file, found none", remedy=_REMEDY)
    return files


def _pairs_of(split: str) -> str:
    return f"pairs_{split}.tsv"


def check_clusters_left(
    counts: dict[str, int], kept: np.ndarray, coherences: np.ndarray, method: Method
) -> None:
    """Raise UserError if there is no cluster, or the filter removes all of them."""
    if not len(kept):
        raise UserError(
            f"expected answers with two questions or more, got none in {counts['rows']:,} rows "
            f"and {counts['bad_rows']:,} bad ones",
            remedy="name the columns with `qpr clusters --question --answer`",
        )
    if not kept.any():
        raise UserError(
            f"expected clusters with a coherence of at least {method.least:g}, got none: the most "
            f"coherent of {len(kept):,} has {coherences.max():.3g}",
            remedy="lower `min_coherence`, or use `coherence=pairwise` if it is `paper`",
        )


def write_clusters(folder: StrPath, result: ClusterResult, method: Method) -> dict[str, Any]:
    """Write the clusters to a new folder, whole or not at all, and return the report.

    The folder has clusters.jsonl, an object for each cluster (`cluster` (0, 1, ...), `answer`,
    `coherence`, `split`, `questions`); pairs_{train,validation,test}.tsv, a header, then two
    questions a line; questions.jsonl, all distinct questions, for the index; report.json, what was
    kept and removed; sample.tsv, a random sample of clusters for verdicts.
    """
    refuse_existing(folder)
    with replace_folder(folder) as part:
        splits = _write_files(part, result)
        _check_splits(splits, result.counts)
        report = _report(result, splits, method)
        write_sample(part / "sample.tsv", result.sample)
        write_json(part / REPORT, report)
    return report


def _write_files(folder: pathlib.Path, result: ClusterResult) -> dict[str, Counter[str]]:
    counts = {split: Counter(clusters=0, questions=0, pairs=0) for split in SPLITS}
    with contextlib.ExitStack() as stack:

        def open_file(name: str) -> IO[str]:
            return stack.enter_context(write_atomically(folder / name, "w"))

        lines = open_file(CLUSTERS)
        pairs = {split: open_file(_pairs_of(split)) for split in SPLITS}
        for file in pairs.values():
            file.write("\t".join(PAIR_COLUMNS) + "\n")
        for number, cluster in enumerate(result.clusters):
            lines.write(f'{{"cluster": {number}, {cluster.line[1:]}\n')
            pairs[cluster.split].writelines(f"{pair}\n" for pair in cluster.pairs)
            counts[cluster.split].update(
                clusters=1, questions=cluster.questions, pairs=len(cluster.pairs)
            )
        open_file(QUESTIONS).writelines(
            json.dumps({"question": text}, ensure_ascii=False) + "\n" for text in result.texts
        )
    return counts


def _check_splits(splits: dict[str, Counter[str]], counts: dict[str, int]) -> None:
    for split, of_split in splits.items():
        if not of_split["clusters"]:
            raise UserError(
                f"expected clusters in each split, got none for {split} without the "
                f"{counts['overlapping_questions']:,} questions that are also in train",
                remedy="give more logs, lower `min_coherence`, or try another `split_seed`",
            )


def _report(
    result: ClusterResult, splits: dict[str, Counter[str]], method: Method
) -> dict[str, Any]:
    kept = result.kept
    written = sum(counts["clusters"] for counts in splits.values())
    return {
        **result.counts,
        "repeated_rows": result.counts["rows"] - result.counts["questions"],
        "clusters": len(kept),
        "clustered_questions": int(result.sizes.sum()),
        "clusters_removed": int((~kept).sum()),
        "questions_removed": int(result.sizes[~kept].sum()),
        "clusters_kept": int(kept.sum()),
        "questions_kept": int(result.sizes[kept].sum()),
        "clusters_lost_to_overlap": int(kept.sum()) - written,
        "splits": {split: dict(counts) for split, counts in splits.items()},
        "method": dict(zip(_METHOD, dataclasses.astuple(method), strict=True)),
        "histogram": histogram(result.coherences, result.sizes),
    }


class ClusterData(NamedTuple):
    """The content of a folder of clusters.

    Attributes:
      questions: all Q questions.
      clusters: int32 [Q], -1 for none.
      split_of: int8 [Q], a position in SPLITS, -1 for a question in no cluster.
      pairs: by split, int32 [P, 2], rows of questions, the query first.
    """

    questions: list[str]
    clusters: np.ndarray
    split_of: np.ndarray
    pairs: dict[str, np.ndarray]
    report: dict[str, Any]


def read_clusters(folder: StrPath) -> ClusterData:
    """Read a folder of `write_clusters`; UserError if a file is missing or inconsistent."""
    path = pathlib.Path(folder)
    questions = [str(row["question"]) for _, row in _rows(path / QUESTIONS, ["question"])]
    row_of = {text: i for i, text in enumerate(questions)}
    clusters = np.full(len(questions), -1, np.int32)
    split_of = np.full(len(questions), -1, np.int8)
    for line, row in _rows(path / CLUSTERS, ["cluster", "split", "questions"]):
        number, split, texts = row["cluster"], row["split"], row["questions"]
        valid = type(number) is int and 0 <= number < len(questions) and split in SPLITS
        if not valid or not isinstance(texts, list):
            raise _inconsistent(path / CLUSTERS, line)
        members = [_row_of(row_of, text, path / CLUSTERS, line) for text in texts]
        clusters[members] = number
        split_of[members] = SPLITS.index(split)
    pairs = {}
    for split in SPLITS:
        file = path / _pairs_of(split)
        found = [
            [_row_of(row_of, row[name], file, line) for name in PAIR_COLUMNS]
            for line, row in _rows(file, PAIR_COLUMNS)
        ]
        pairs[split] = np.array(found, np.int32).reshape(-1, 2)
    return ClusterData(questions, clusters, split_of, pairs, read_report(path))


def read_report(folder: StrPath) -> dict[str, Any]:
    """Read report.json of `write_clusters`."""
    path = pathlib.Path(folder, REPORT)
    report = read_json(path)
    if not isinstance(report, dict) or not {"bad_rows", "method"} <= report.keys():
        raise UserError(
            f"{path}: expected a report of `qpr clusters`, got other JSON", remedy=_REMEDY
        )
    return report


def _rows(path: pathlib.Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, fields in read_rows(str(path), columns):
        if isinstance(fields, str):
            raise UserError(f"{path}, line {line}: {fields}", remedy=_REMEDY)
        yield line, fields


def _row_of(row_of: dict[str, int], text: object, path: pathlib.Path, line: int) -> int:
    if not isinstance(text, str) or text not in row_of:
        raise _inconsistent(path, line)
    return row_of[text]


def _inconsistent(path: pathlib.Path, line: int) -> UserError:
    return UserError(
        f"{path}, line {line}: expected a cluster or pair of the questions in {QUESTIONS}, got "
        "another row",
        remedy=_REMEDY,
    )
