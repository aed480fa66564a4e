"""Train, dev and test for three tasks, without shared questions, from one file of labeled pairs.

The tasks are those of sentence-transformers' "Quora Duplicate Questions" (see its README and
create_splits.py): decide whether two questions are duplicates (classification), find all duplicates
in a corpus (mining), and find the duplicates of a new question (retrieval).
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.beir import write_beir
from qpr_jax.data.cells import write_tsv
from qpr_jax.data.clusters import (
    cluster_pairs,
    in_one_cluster,
    pair_count,
    transitive_clusters,
)
from qpr_jax.data.pairs import IDS, PAIRS_HEADER, QuestionPairs
from qpr_jax.data.splits import group_questions
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, refuse_existing, replace_folder, write_atomically, write_json
from qpr_jax.text.tokenizer import normalized_text

PARTS = ("train", "dev", "test")
EVAL_PARTS = ("dev", "test")
TRAIN, DEV, TEST = range(3)
QUESTIONS = ("qid", "question")
RELEVANT = ("qid", "corpus_qid")


@dataclass(frozen=True)
class Sizes:
    """Shares of all questions, the largest number of queries, and the seed of all samples.

    The defaults are those of sentence-transformers.
    """

    dev: float = 0.05
    test: float = 0.1
    dev_queries: int = 5_000
    test_queries: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in EVAL_PARTS:
            share, most = getattr(self, name), getattr(self, f"{name}_queries")
            if not (math.isfinite(share) and 0 < share < 1):
                raise UserError(f"expected a share between 0 and 1, got {share:g}", setting=name)
            if most < 1:
                raise UserError(f"expected 1 or more, got {most}", setting=f"{name}_queries")
        if self.dev + self.test >= 1:
            got = f"{self.dev:g} and {self.test:g}"
            what = f"expected shares that leave some to train on, got {got}"
            raise UserError(what, remedy="lower `--dev` or `--test`")
        if self.seed < 0:
            raise UserError(f"expected 0 or more, got {self.seed}", setting="seed")


@dataclass(frozen=True)
class Tasks:
    """The part of each question, and the queries.

    Attributes:
      data: the file without blank questions.
      clusters: int32 [Q], of duplicates by transitivity, -1 for none.
      groups: int64 [Q], the component that is kept together.
      part_of: int8 [Q], a position in PARTS.
      queries: part -> positions int64 [n], at most one of a cluster; no other question has the
        normalized text of a query.
      blank_questions: the number of blank questions left out.
      blank_pairs: the number of pairs with one of them.
      sizes: of the parts.
    """

    data: QuestionPairs
    clusters: np.ndarray
    groups: np.ndarray
    part_of: np.ndarray
    queries: dict[str, np.ndarray]
    blank_questions: int
    blank_pairs: int
    sizes: Sizes


def make_tasks(data: QuestionPairs, sizes: Sizes) -> Tasks:
    """Divide the questions of a file, the same way on every machine.

    Duplicates, by transitivity, and questions with the same normalized text are one component,
    which goes to one part as a whole. Components are taken in random order. Each goes with those
    that a pair of non-duplicates links to it and that have no part yet; otherwise few
    such pairs would have both questions in one held-out part. They go to dev unless dev would then
    exceed its share, else to test by the same rule, else to train.

    UserError where a part gets no duplicates or no queries.
    """
    known, labeled = len(data.questions), len(data.pairs)
    data = _remove_blank(data)
    if not data.is_duplicate.any():
        raise UserError("expected pairs labeled as duplicates, got none", remedy="give more pairs")
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    groups = group_questions(data.questions, clusters)
    part_of = _assign_parts(data, groups, sizes)
    for part, name in enumerate(PARTS):
        if not (clusters[part_of == part] >= 0).any():
            share = getattr(sizes, name, 1 - sizes.dev - sizes.test)
            got = f"none for {name}, which is {share:g} of {len(data.questions):,} questions"
            what = f"expected duplicates in each part, got {got}"
            raise UserError(what, remedy="change `--dev` or `--test`, or give more pairs")
    queries = _queries(data, clusters, part_of, sizes)
    blank = known - len(data.questions), labeled - len(data.pairs)
    return Tasks(data, clusters, groups, part_of, queries, *blank, sizes)


def write_tasks(folder: StrPath, tasks: Tasks) -> dict[str, Any]:
    """Write the tasks to a new folder, whole or not at all, and return the report.

    classification/{train,dev,test}_pairs.tsv: `qid1 qid2 question1 question2 is_duplicate`, the
    labeled pairs with both questions in the part, in the order of the file.
    mining/{dev,test}_corpus.tsv: `qid question`; {dev,test}_duplicates.tsv: `qid1 qid2`, all pairs
    of its duplicates, by transitivity.
    retrieval/corpus.tsv: `qid question`, all questions but the queries; {dev,test}-queries.tsv:
    `qid question`; {dev,test}-relevant.tsv: `qid corpus_qid`, a row for each duplicate of a query.
    beir/: retrieval in BEIR's format (`data.beir`).
    report.json: the report.

    All tables but those of beir/ are written by `data.cells.write_tsv`; all but the labeled pairs
    are sorted by qid.
    """
    refuse_existing(folder)
    data, ids = tasks.data, tasks.data.ids
    relevant = {name: _relevant(tasks, name) for name in EVAL_PARTS}
    queries = np.concatenate([*tasks.queries.values()])
    corpus = np.setdiff1d(np.arange(len(ids)), queries)
    with replace_folder(folder) as part:
        kept = kept_pairs(tasks)
        for name in PARTS:
            labeled = _pair_rows(data, kept[name])
            _write(part / "classification" / f"{name}_pairs.tsv", PAIRS_HEADER, labeled)
        for number, name in enumerate(EVAL_PARTS, start=DEV):
            there = np.flatnonzero(tasks.part_of == number)
            _write(part / "mining" / f"{name}_corpus.tsv", QUESTIONS, _question_rows(data, there))
            of_part = np.where(tasks.part_of == number, tasks.clusters, -1)
            duplicates = _sort_rows(np.sort(ids[cluster_pairs(of_part)], axis=1))
            _write(part / "mining" / f"{name}_duplicates.tsv", IDS, duplicates.tolist())
        _write(part / "retrieval" / "corpus.tsv", QUESTIONS, _question_rows(data, corpus))
        for name, rows in relevant.items():
            questions = _question_rows(data, tasks.queries[name])
            _write(part / "retrieval" / f"{name}-queries.tsv", QUESTIONS, questions)
            _write(part / "retrieval" / f"{name}-relevant.tsv", RELEVANT, rows.tolist())
        corpus_texts, query_texts = (
            ((f"{qid}", text) for qid, text in _question_rows(data, positions))
            for positions in (corpus, queries)
        )
        qrels = {
            name: ((f"{a}", f"{b}", 1) for a, b in rows.tolist()) for name, rows in relevant.items()
        }
        write_beir(part / "beir", corpus_texts, query_texts, qrels)
        report = _report(tasks, kept, {name: len(rows) for name, rows in relevant.items()})
        write_json(part / "report.json", report)
    return report


def kept_pairs(tasks: Tasks) -> dict[str, np.ndarray]:
    """The labeled pairs of each part, as rows int64 [n].

    Non-duplicates of two parts are left out, and those of one cluster, whose label is contradicted.
    """
    ends = tasks.part_of[tasks.data.pairs]
    inside = in_one_cluster(tasks.clusters, tasks.data.pairs)
    kept = (ends[:, 0] == ends[:, 1]) & (tasks.data.is_duplicate | ~inside)
    return {name: np.flatnonzero(kept & (ends[:, 0] == i)) for i, name in enumerate(PARTS)}


def _remove_blank(data: QuestionPairs) -> QuestionPairs:
    """Remove blank questions and their pairs."""
    kept = np.array([bool(text.strip()) for text in data.questions], np.bool_)
    rows = kept[data.pairs].all(axis=1)
    number = np.cumsum(kept, dtype=np.int32) - 1
    texts = [text for text in data.questions if text.strip()]
    pairs = number[data.pairs[rows]].astype(np.int32)
    return QuestionPairs(texts, data.ids[kept], pairs, data.is_duplicate[rows], data.report)


def _assign_parts(data: QuestionPairs, groups: np.ndarray, sizes: Sizes) -> np.ndarray:
    """The part of each question, int8 [Q]; see `make_tasks`."""
    count = int(groups.max(initial=-1)) + 1
    weights = np.bincount(groups, minlength=count)
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, groups, data.ids)
    links = groups[data.pairs[~data.is_duplicate]]
    links = np.concatenate([links, links[:, ::-1]])
    links = links[np.argsort(links[:, 0], kind="stable")]
    # The neighbors of group i are links[starts[i] : starts[i + 1], 1].
    starts = np.searchsorted(links[:, 0], np.arange(count + 1))
    room = {DEV: int(sizes.dev * len(groups)), TEST: int(sizes.test * len(groups))}
    part_of_group = np.full(count, -1, np.int8)
    for group in _shuffle(smallest, sizes.seed, 0).tolist():
        if part_of_group[group] >= 0:
            continue
        others = links[starts[group] : starts[group + 1], 1]
        together = np.unique(np.append(others[part_of_group[others] < 0], group))
        weight = int(weights[together].sum())
        part = next((part for part in (DEV, TEST) if weight <= room[part]), TRAIN)
        if part != TRAIN:
            room[part] -= weight
        part_of_group[together] = part
    return part_of_group[groups]


def _shuffle(keys: np.ndarray, seed: int, stream: int) -> np.ndarray:
    """Positions of distinct `keys` in random order, whatever order the keys are given in."""
    # The stream of a bit generator is the same in all versions of NumPy; the permutations that a
    # Generator makes from it may change (NEP 19).
    numbers = np.random.PCG64([seed, stream]).random_raw(len(keys))
    return np.argsort(keys)[np.argsort(numbers, kind="stable")]


def _queries(
    data: QuestionPairs, clusters: np.ndarray, part_of: np.ndarray, sizes: Sizes
) -> dict[str, np.ndarray]:
    """Choose one question from each of the clusters that have a possible query, up to the limit."""
    texts = [normalized_text(question) for question in data.questions]
    times = Counter(texts)
    able = (clusters >= 0) & np.array([times[text] == 1 for text in texts], np.bool_)
    queries = {}
    for part, name in enumerate(EVAL_PARTS, start=DEV):
        candidates = np.flatnonzero(able & (part_of == part))
        candidates = candidates[_shuffle(data.ids[candidates], sizes.seed, 2 * part)]
        _, first = np.unique(clusters[candidates], return_index=True)
        chosen = candidates[first]
        most = getattr(sizes, f"{name}_queries")
        # Shuffled again: otherwise large clusters would be more likely to come first.
        chosen = chosen[_shuffle(data.ids[chosen], sizes.seed, 2 * part + 1)][:most]
        if not len(chosen):
            reason = "each question of its clusters has the text of another"
            share = f"(share of {name}: {getattr(sizes, name):g})"
            what = f"expected queries in {name}, got none: {reason} {share}"
            raise UserError(what, remedy="raise `--dev` or `--test`, or give more pairs")
        queries[name] = chosen[np.argsort(data.ids[chosen])]
    return queries


def _relevant(tasks: Tasks, name: str) -> np.ndarray:
    """The pairs of a query and another question of its cluster: qids int64 [n, 2], sorted."""
    queries = tasks.queries[name]
    query_of = np.full(int(tasks.clusters.max(initial=-1)) + 1, -1)
    query_of[tasks.clusters[queries]] = queries
    clustered = np.flatnonzero(tasks.clusters >= 0)
    owner = query_of[tasks.clusters[clustered]]
    rows = np.stack([owner, clustered], axis=1)[(owner >= 0) & (owner != clustered)]
    return _sort_rows(tasks.data.ids[rows])


def _sort_rows(pairs: np.ndarray) -> np.ndarray:
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _question_rows(data: QuestionPairs, positions: np.ndarray) -> Iterator[tuple[int, str]]:
    for position in positions[np.argsort(data.ids[positions])].tolist():
        yield int(data.ids[position]), data.questions[position]


def _pair_rows(data: QuestionPairs, rows: np.ndarray) -> Iterator[tuple[int, int, str, str, int]]:
    pairs, labels = data.pairs[rows], data.is_duplicate[rows]
    for (a, b), label in zip(pairs.tolist(), labels.tolist(), strict=True):
        ids = int(data.ids[a]), int(data.ids[b])
        yield *ids, data.questions[a], data.questions[b], int(label)


def _write(path: pathlib.Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with write_atomically(path, "w") as file:
        write_tsv(file, header, rows)


def _report(tasks: Tasks, kept: dict[str, np.ndarray], relevant: dict[str, int]) -> dict[str, Any]:
    """Counts of questions, clusters, pairs and what was left out, and the settings.

    In a part, `duplicates` and `non_duplicates` are labeled pairs; `linked_duplicates` are all
    duplicates by transitivity.
    """
    data = tasks.data
    ends = tasks.part_of[data.pairs]
    across = (ends[:, 0] != ends[:, 1]) & ~data.is_duplicate
    inside = in_one_cluster(tasks.clusters, data.pairs) & ~data.is_duplicate
    parts: dict[str, dict[str, int]] = {}
    for number, name in enumerate(PARTS):
        there = tasks.part_of == number
        clusters = tasks.clusters[there]
        labels = data.is_duplicate[kept[name]]
        parts[name] = {
            "questions": int(there.sum()),
            "components": len(np.unique(tasks.groups[there])),
            "clusters": len(np.unique(clusters[clusters >= 0])),
            "clustered_questions": int((clusters >= 0).sum()),
            "duplicates": int(labels.sum()),
            "non_duplicates": int((~labels).sum()),
            "linked_duplicates": pair_count(clusters),
        }
        if name in tasks.queries:
            parts[name] |= {"queries": len(tasks.queries[name]), "relevant": relevant[name]}
    return {
        **data.report,
        "blank_questions": tasks.blank_questions,
        "questions": len(data.questions),
        "components": int(tasks.groups.max(initial=-1)) + 1,
        "clusters": int(tasks.clusters.max(initial=-1)) + 1,
        "duplicates": int(data.is_duplicate.sum()),
        "non_duplicates": int((~data.is_duplicate).sum()),
        "dropped": {
            "non_duplicates_across_parts": int(across.sum()),
            "non_duplicates_of_one_cluster": int(inside.sum()),
            "pairs_with_a_blank_question": tasks.blank_pairs,
        },
        "parts": parts,
        "retrieval_corpus": len(data.questions) - sum(map(len, tasks.queries.values())),
        "settings": dataclasses.asdict(tasks.sizes),
    }
