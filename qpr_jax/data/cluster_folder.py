"""The folder of clusters: written from the questions of logs, judged, read for training."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qpr_jax.data.columns import read_values, table_files, write_json_lines, write_tsv
from qpr_jax.data.log_clusters import (
    NAME_COLUMNS,
    UNDECIDED,
    Cluster,
    LogQuestions,
    Logs,
    Method,
    draw,
    find_clusters,
    read_questions,
    read_questions_on_spark,
    remove_overlap,
    sample_pairs,
    split_clusters,
)
from qpr_jax.data.question_pairs import QuestionPairs, parse_label
from qpr_jax.data.spark import open_session
from qpr_jax.data.splits import SPLITS, SplitData, Splits
from qpr_jax.errors import UserError, counted
from qpr_jax.files import (
    StrPath,
    read_json,
    refuse_existing,
    replace_folder,
    require_file,
    sha256_of,
    write_json,
)

CLUSTERS, QUESTIONS, REPORT = "clusters.jsonl", "questions.jsonl", "report.json"
PAIR_COLUMNS = ("question1", "question2")
_METHOD = ("coherence", "least", "pairs_of_a_cluster", "seed")  # keys of `Method` in the report
_REMEDY = "make the folder again with `qpr clusters`"
SAMPLE = 200  # clusters in the sample for labels, as in the paper's spot check
SAMPLE_COLUMNS = ("label", "answer", "size", "coherence", "questions")
_SHOWN = 10  # questions of a cluster
_FILL_IN = "fill in a sample.tsv of `qpr clusters`, and keep it tab-separated UTF-8"


def is_made(folder: StrPath) -> bool:
    """Return whether `write_clusters` wrote a folder."""
    return pathlib.Path(folder, CLUSTERS).is_file()


def cluster_files(folder: StrPath) -> list[pathlib.Path]:
    """Return the files that `read_clusters` reads; UserError if one is missing."""
    names = (CLUSTERS, QUESTIONS, *map(_pairs_of, SPLITS))
    return [require_file(pathlib.Path(folder, name), remedy=_REMEDY) for name in names]


def content_hash(path: StrPath) -> str:
    """Return a hash of tables at `path`, in any order, or of a folder of `make_folder`."""
    files = cluster_files(path) if is_made(path) else table_files([str(path)])
    digests = sorted(map(sha256_of, files))
    every = hashlib.sha256("".join(digests).encode()).hexdigest()
    return digests[0] if len(digests) == 1 else every


def make_folder(
    folder: StrPath, logs: Logs, method: Method, *, skip_bad_rows: bool = False, spark: str = ""
) -> dict[str, Any]:
    """Make the clusters of logs in a new folder (see `write_clusters`) and return the report.

    UserError if none is left. spark: the master of a Spark cluster that reads the logs; "": none.
    """
    refuse_existing(folder)
    if not spark:
        return write_clusters(folder, read_questions(logs, skip_bad_rows=skip_bad_rows), method)
    with open_session(spark, "qpr clusters") as session:
        questions = read_questions_on_spark(session, logs, skip_bad_rows=skip_bad_rows)
    return write_clusters(folder, questions, method)


def write_clusters(folder: StrPath, log: LogQuestions, method: Method) -> dict[str, Any]:
    """Write the clusters of logs to a new folder, whole or not at all, and return the report.

    The folder has clusters.jsonl, an object for each cluster (`cluster` (0, 1, ...), `answer`,
    `coherence`, `split`, `questions`); pairs_{train,validation,test}.tsv, a header, then two
    questions a line; questions.jsonl, all distinct questions, for the index; report.json, what was
    kept and removed; sample.tsv, a random sample of clusters for labels.
    """
    found = find_clusters(log.questions, method)
    kept = _coherent(found, log, method)
    split_of = split_clusters(kept, method)
    apart = [*remove_overlap(kept, split_of)]
    clusters = [cluster for cluster in apart if len(cluster.questions) > 1]
    clustered, clustered_kept, left = (
        sum(len(cluster.questions) for cluster in some) for some in (found, kept, apart)
    )
    rows, overlap = [], clustered_kept - left
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    splits = {split: Counter(clusters=0, questions=0, pairs=0) for split in SPLITS}
    for number, (answer, questions, coherence) in enumerate(clusters):
        split = split_of[answer]
        row = {"cluster": number, "answer": answer, "coherence": coherence, "split": split}
        rows.append(row | {"questions": questions})
        sample = [*sample_pairs(questions, answer, method)]
        pairs[split] += sample
        splits[split].update(clusters=1, questions=len(questions), pairs=len(sample))
    if empty := [split for split in SPLITS if not splits[split]["clusters"]]:
        what = f"expected clusters in each split, got none for {empty[0]} without the {overlap:,} "
        remedy = "give more logs, lower `min_coherence`, or try another `seed`"
        raise UserError(f"{what}questions that are also in train", remedy=remedy)
    texts = sorted(question.text for question in log.questions)
    undecided = sum(question.answer == UNDECIDED for question in log.questions)
    report = {
        "rows": log.rows,
        "bad_rows": log.bad_rows,
        "questions": len(texts),
        "questions_of_several_answers": sum(q.answers > 1 for q in log.questions),
        "undecided_questions": undecided,
        "questions_alone": len(texts) - undecided - clustered,
        "overlapping_questions": overlap,
        "repeated_rows": log.rows - len(texts),
        "clusters": len(found),
        "clustered_questions": clustered,
        "clusters_removed": len(found) - len(kept),
        "questions_removed": clustered - clustered_kept,
        "clusters_kept": len(kept),
        "questions_kept": clustered_kept,
        "clusters_lost_to_overlap": len(kept) - len(clusters),
        "splits": splits,
        "method": dict(zip(_METHOD, dataclasses.astuple(method), strict=True)),
    }
    with replace_folder(folder) as part:
        write_json_lines(part / CLUSTERS, rows)
        write_json_lines(part / QUESTIONS, ({"question": text} for text in texts))
        for split in SPLITS:
            write_tsv(part / _pairs_of(split), PAIR_COLUMNS, pairs[split])
        order = sorted(kept, key=lambda cluster: draw("sample", method.seed, cluster.answer))
        write_sample(part / "sample.tsv", order[:SAMPLE])
        write_json(part / REPORT, report)
    return report


def _pairs_of(split: str) -> str:
    return f"pairs_{split}.tsv"


def _coherent(found: Sequence[Cluster], log: LogQuestions, method: Method) -> list[Cluster]:
    """Return the clusters that are coherent enough; UserError if there are none."""
    if not found:
        got = f"got none in {counted(log.rows, 'row')} ({log.bad_rows:,} more are bad)"
        what = f"expected answers with two questions or more, {got}"
        raise UserError(what, remedy=NAME_COLUMNS)
    kept = [cluster for cluster in found if cluster.coherence >= method.min_coherence]
    if not kept:
        most = max(cluster.coherence for cluster in found)
        what = f"expected clusters of a coherence of {method.min_coherence:g} or more, got none: "
        what += f"the most coherent of {len(found):,} has {most:.3g}"
        remedy = 'lower `min_coherence`, or use `coherence="pairwise"` if it is paper'
        raise UserError(what, remedy=remedy)
    return kept


def read_clusters(folder: StrPath) -> SplitData:
    """Read a folder of `write_clusters`, whose pairs are all duplicates.

    A question in no cluster is in no split. UserError if a file is missing or inconsistent.
    """
    path = pathlib.Path(folder)
    cluster_files(path)
    try:
        questions = [row["question"] for row in _objects(path / QUESTIONS)]
        row_of = {text: i for i, text in enumerate(questions)}
        clusters = np.full(len(questions), -1, np.int32)
        split_of = np.full(len(questions), -1, np.int8)
        for number, row in enumerate(_objects(path / CLUSTERS)):
            members = [row_of[text] for text in row["questions"]]
            clusters[members] = number
            split_of[members] = SPLITS.index(row["split"])
        pairs = {}
        for split in SPLITS:
            file = str(path / _pairs_of(split))
            found = read_values(
                file, PAIR_COLUMNS, lambda *pair: [row_of[text] for text in pair], expected="a pair"
            )
            pairs[split] = np.array([*found], np.int32).reshape(-1, 2)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{path}: expected clusters of the questions in {QUESTIONS}, got others ({error!r})"
        raise UserError(what, remedy=_REMEDY) from None
    report = read_report(path)
    facts = {"skipped_rows": report["bad_rows"], "distant_supervision": report}
    data = QuestionPairs.of_duplicates(questions, np.concatenate([*pairs.values()]), **facts)
    return SplitData(data, clusters, Splits(split_of, pairs))


def _objects(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def read_report(folder: StrPath) -> dict[str, Any]:
    """Read report.json of `write_clusters`."""
    path = pathlib.Path(folder, REPORT)
    report = read_json(path)
    if not isinstance(report, dict) or not {"bad_rows", "method"} <= report.keys():
        raise UserError(f"{path}: expected a report of `qpr clusters`", remedy=_REMEDY)
    return report


def write_sample(path: pathlib.Path, sample: Iterable[Cluster]) -> None:
    """Write clusters as TSV with an empty column `label`, for 1 or yes, 0 or no."""
    rows = (
        ("", answer, len(some), f"{coherence:.4f}", " | ".join(some[:: -(-len(some) // _SHOWN)]))
        for answer, some, coherence in sample
    )
    write_tsv(path, SAMPLE_COLUMNS, rows)


def score_labels(path: str) -> dict[str, Any]:
    """Return the share of judged clusters that are coherent, with Wilson's 95 % interval."""

    def parse(label: object) -> bool | str | None:
        return parse_label(label) if str(label).strip() else ""

    columns, expected = ["label"], "a `label` 1 or yes, 0 or no, or nothing"
    how = {"expected": expected, "format": "tsv", "remedy": _FILL_IN}
    cells = [*read_values(path, columns, parse, **how)]
    labels = [label for label in cells if isinstance(label, bool)]
    if not labels:
        what = f"{path}: expected labels, got {len(cells)} blank ones"
        raise UserError(what, remedy="fill in the column `label`")
    low, high = wilson(sum(labels), len(labels))
    return {
        "judged": len(labels),
        "not_judged": len(cells) - len(labels),
        "coherent": sum(labels),
        "accuracy": sum(labels) / len(labels),
        "low": low,
        "high": high,
    }


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's score interval of a share."""
    share, scale = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    root = math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    half = z / scale * root
    return max(0.0, middle - half), min(1.0, middle + half)
