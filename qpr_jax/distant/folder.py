"""The folder of clusters: what is written, by one engine or the other, and read for training."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from qpr_jax.data.splits import SPLITS
from qpr_jax.data.tables import read_rows
from qpr_jax.distant.method import Cluster, Finished, Method
from qpr_jax.distant.report import histogram, write_page, write_sample
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


class Made(NamedTuple):
    """What an engine makes of logs.

    counts: `rows`, `bad_rows`, `questions` (distinct ones), `questions_of_several_answers`,
    `undecided_questions` (of which no answer was the most frequent), `questions_alone` (with their
    answer), `overlapping_questions` (of validation and test, with the words of one that trains).
    sizes, coherences, kept: of each cluster of two or more, [C]. largest_removed, largest_kept,
    sample: some clusters, without their questions but those shown. clusters: those kept, by
    answer. texts: every distinct question in the order of code points.
    """

    counts: dict[str, int]
    sizes: np.ndarray
    coherences: np.ndarray
    kept: np.ndarray
    largest_removed: list[Cluster]
    largest_kept: list[Cluster]
    sample: list[Cluster]
    clusters: Iterable[Finished]
    texts: Iterable[str]


def is_made(folder: StrPath) -> bool:
    """Whether a folder is one of `write_clusters`."""
    return pathlib.Path(folder, CLUSTERS).is_file()


def made_files(folder: StrPath) -> list[pathlib.Path]:
    """The files of `write_clusters` that `read_clusters` reads; UserError where one is missing."""
    files = [pathlib.Path(folder, name) for name in (CLUSTERS, QUESTIONS, *map(_pairs_of, SPLITS))]
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: expected a file, found none; make the folder anew")
    return files


def _pairs_of(split: str) -> str:
    return f"pairs_{split}.tsv"


def refuse_nothing_left(
    counts: dict[str, int], kept: np.ndarray, coherences: np.ndarray, method: Method
) -> None:
    """UserError where the filter removes every cluster."""
    if not len(kept):
        raise UserError(
            f"expected answers with two questions or more, got none in {counts['rows']:,} rows "
            f"and {counts['bad_rows']:,} bad ones; `--question` and `--answer` name columns"
        )
    if not kept.any():
        raise UserError(
            f"the filter leaves nothing: of {len(kept):,} clusters the most coherent has "
            f"{coherences.max():.3g}, below {method.least:g}; lower `--min-coherence` (training: "
            "`data.min_coherence`)"
            + ("" if method.coherence != "paper" else ", or take the coherence `pairwise`")
        )


def write_clusters(folder: StrPath, made: Made, method: Method) -> dict[str, Any]:
    """Write what was made to a new folder, whole or not at all; its report.

    clusters.jsonl: an object a cluster, `cluster` (0, 1, ...), `answer`, `coherence`, `split`,
    `questions`. pairs_{train,validation,test}.tsv: a header, then two questions a line.
    questions.jsonl: every distinct question, for the index. report.json, report.html: what was
    kept and removed. sample.tsv: a random sample of the clusters, for verdicts.
    """
    refuse_existing(folder)
    with replace_folder(folder) as part:
        splits = _write_files(part, made)
        _refuse_empty_split(splits, made.counts)
        report = _report(made, splits, method)
        write_sample(part / "sample.tsv", made.sample)
        write_page(part / "report.html", report)
        write_json(part / REPORT, report)
    return report


def _write_files(folder: pathlib.Path, made: Made) -> dict[str, Counter[str]]:
    counts = {split: Counter(clusters=0, questions=0, pairs=0) for split in SPLITS}
    with contextlib.ExitStack() as stack:

        def opened(name: str) -> IO[str]:
            return stack.enter_context(write_atomically(folder / name, "w"))

        lines = opened(CLUSTERS)
        pairs = {split: opened(_pairs_of(split)) for split in SPLITS}
        for file in pairs.values():
            file.write("\t".join(PAIR_COLUMNS) + "\n")
        for number, cluster in enumerate(made.clusters):
            lines.write(f'{{"cluster": {number}, {cluster.line[1:]}\n')
            pairs[cluster.split].writelines(f"{pair}\n" for pair in cluster.pairs)
            counts[cluster.split].update(
                clusters=1, questions=cluster.questions, pairs=len(cluster.pairs)
            )
        opened(QUESTIONS).writelines(
            json.dumps({"question": text}, ensure_ascii=False) + "\n" for text in made.texts
        )
    return counts


def _refuse_empty_split(splits: dict[str, Counter[str]], counts: dict[str, int]) -> None:
    for split, of_split in splits.items():
        if not of_split["clusters"]:
            removed = f"{counts['overlapping_questions']:,} questions that training has too"
            raise UserError(
                f"expected clusters in each split, got none for {split} without the {removed}; "
                "give more logs, lower `--min-coherence`, or try another `--seed`"
            )


def _report(made: Made, splits: dict[str, Counter[str]], method: Method) -> dict[str, Any]:
    kept = made.kept
    written = sum(counts["clusters"] for counts in splits.values())
    return {
        **made.counts,
        "repeated_rows": made.counts["rows"] - made.counts["questions"],
        "clusters": len(kept),
        "clustered_questions": int(made.sizes.sum()),
        "clusters_removed": int((~kept).sum()),
        "questions_removed": int(made.sizes[~kept].sum()),
        "clusters_kept": int(kept.sum()),
        "questions_kept": int(made.sizes[kept].sum()),
        "clusters_lost_to_overlap": int(kept.sum()) - written,
        "splits": {split: dict(counts) for split, counts in splits.items()},
        "method": {
            "coherence": method.coherence,
            "least": method.least,
            "pairs_of_a_cluster": method.pairs,
            "seed": method.seed,
        },
        "histogram": histogram(made.coherences, made.sizes),
        "largest_removed": [_shown(cluster) for cluster in made.largest_removed],
        "largest_kept": [_shown(cluster) for cluster in made.largest_kept],
        "sample": [_shown(cluster) for cluster in made.sample],
    }


def _shown(cluster: Cluster) -> dict[str, Any]:
    return {
        "answer": cluster.answer,
        "size": cluster.size,
        "coherence": cluster.coherence,
        "questions": cluster.shown,
    }


class ClusterData(NamedTuple):
    """A folder of clusters, read: all its questions, and which of them are clustered and paired.

    clusters: int32 [Q], -1 for none. split_of: int8 [Q], a position in SPLITS, -1 for a question
    in no cluster. pairs: split -> int32 [P, 2], the query first.
    """

    questions: list[str]
    clusters: np.ndarray
    split_of: np.ndarray
    pairs: dict[str, np.ndarray]
    report: dict[str, Any]


def read_clusters(folder: StrPath) -> ClusterData:
    """Read what `write_clusters` wrote; UserError where a file is missing or does not fit."""
    path = pathlib.Path(folder)
    questions = [str(row["question"]) for _, row in _rows(path / QUESTIONS, ["question"])]
    place = {text: i for i, text in enumerate(questions)}
    clusters = np.full(len(questions), -1, np.int32)
    split_of = np.full(len(questions), -1, np.int8)
    for line, row in _rows(path / CLUSTERS, ["cluster", "split", "questions"]):
        number, split, texts = row["cluster"], row["split"], row["questions"]
        if (
            type(number) is not int
            or not 0 <= number < len(questions)
            or split not in SPLITS
            or not isinstance(texts, list)
        ):
            raise _unfit(path / CLUSTERS, line)
        members = [_place(place, text, path / CLUSTERS, line) for text in texts]
        clusters[members] = number
        split_of[members] = SPLITS.index(split)
    pairs = {}
    for split in SPLITS:
        file = path / _pairs_of(split)
        found = [
            [_place(place, row[name], file, line) for name in PAIR_COLUMNS]
            for line, row in _rows(file, PAIR_COLUMNS)
        ]
        pairs[split] = np.array(found, np.int32).reshape(-1, 2)
    return ClusterData(questions, clusters, split_of, pairs, read_report(path))


def read_report(folder: StrPath) -> dict[str, Any]:
    """The report of `write_clusters`; UserError where it is none."""
    path = pathlib.Path(folder, REPORT)
    report = read_json(path)
    if not isinstance(report, dict) or not {"bad_rows", "method"} <= report.keys():
        raise UserError(
            f"{path}: expected a report of `qpr clusters`; make the folder anew with it"
        )
    return report


def _rows(path: pathlib.Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, fields in read_rows(str(path), columns):
        if isinstance(fields, str):
            raise UserError(f"{path}, line {line}: {fields}; make the folder anew")
        yield line, fields


def _place(place: dict[str, int], text: object, path: pathlib.Path, line: int) -> int:
    if not isinstance(text, str) or text not in place:
        raise _unfit(path, line)
    return place[text]


def _unfit(path: pathlib.Path, line: int) -> UserError:
    return UserError(
        f"{path}, line {line}: expected a cluster or pair of the questions of {QUESTIONS}; make "
        "the folder anew with `qpr clusters`"
    )
