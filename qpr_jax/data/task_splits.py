"""Train, dev and test that share no question, for three tasks, from one file of labelled pairs.

The tasks are those of sentence-transformers' "Quora Duplicate Questions" (its README and
create_splits.py): telling duplicates apart (classification), finding all of a corpus (mining), and
finding those of a new question (retrieval).
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
from qpr_jax.data.clusters import cluster_pairs, pair_count, transitive_clusters
from qpr_jax.data.labeled_pairs import DUPLICATES
from qpr_jax.data.quora import PAIRS_HEADER, QuestionPairs
from qpr_jax.data.quoted_tsv import QUESTIONS, write_rows
from qpr_jax.data.splits import groups_of
from qpr_jax.errors import UserError
from qpr_jax.files import Path, refuse_existing, replace_folder, write_atomically, write_json
from qpr_jax.text.tokenizer import normalized_text

PARTS = ("train", "dev", "test")
EVAL_PARTS = ("dev", "test")
TRAIN, DEV, TEST = range(3)
RELEVANT = ("qid", "corpus_qid")


@dataclass(frozen=True)
class Sizes:
    """Shares of all questions, the most queries of each held-out part, and the seed of all draws.

    The shares and the most queries are those of sentence-transformers.
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
                raise UserError(f"`--{name}`: expected a share between 0 and 1, got {share:g}")
            if most < 1:
                raise UserError(f"`--{name}-queries`: expected 1 or more, got {most}")
        if self.dev + self.test >= 1:
            raise UserError(
                "`--dev` and `--test`: expected shares that leave some to train on, got "
                f"{self.dev:g} and {self.test:g}; lower one"
            )
        if self.seed < 0:
            raise UserError(f"`--seed`: expected 0 or more, got {self.seed}")


@dataclass(frozen=True)
class Tasks:
    """Where each question goes.

    data: what is divided: the file without blank questions. clusters: int32 [Q], of the
    duplicates by transitivity, -1 for none. groups: int64 [Q], the component that is kept together.
    part_of: int8 [Q], a position in PARTS. queries: part -> positions int64 [n], at most one of a
    cluster, with a text that, normalised, no other question has. blank_questions, blank_pairs: that
    were left out, and the pairs that they were in.
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
    """Divide the questions of a file, the same on every machine.

    Duplicates, by transitivity, and questions with the same normalised text are one component,
    which goes to one part as a whole. Components are drawn, each with those that are linked to it
    by a pair of non-duplicates and not yet placed, without which few such pairs would have both
    questions in one held-out part; they go to dev unless that would lift it above its share, else
    to test by the same rule, else to train.

    UserError where a part gets no duplicates, or no queries.
    """
    known, labeled = len(data.questions), len(data.pairs)
    data = _without_blank(data)
    if not data.is_duplicate.any():
        raise UserError("expected pairs labelled as duplicates, got none; give more pairs")
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    groups = groups_of(data.questions, clusters)
    part_of = _parts(data, groups, sizes)
    for part, name in enumerate(PARTS):
        if not (clusters[part_of == part] >= 0).any():
            share = 1 - sizes.dev - sizes.test if name == "train" else getattr(sizes, name)
            raise UserError(
                f"expected duplicates in each part, got none for {name}, which is {share:g} of "
                f"{len(data.questions):,} questions; change `--dev` or `--test`, or give more pairs"
            )
    queries = _queries(data, clusters, part_of, sizes)
    blank = known - len(data.questions), labeled - len(data.pairs)
    return Tasks(data, clusters, groups, part_of, queries, *blank, sizes)


def write_tasks(folder: Path, tasks: Tasks) -> dict[str, Any]:
    """Write the tasks to a new folder, whole or not at all; the report, also in report.json.

    classification/{train,dev,test}_pairs.tsv: `qid1 qid2 question1 question2 is_duplicate`, the
    labelled pairs with both questions in the part, in the order of the file.
    mining/{dev,test}_corpus.tsv: `qid question`; {dev,test}_duplicates.tsv: `qid1 qid2`, all pairs
    of its duplicates, by transitivity.
    retrieval/corpus.tsv: `qid question`, all questions but the queries; {dev,test}-queries.tsv:
    `qid question`; {dev,test}-relevant.tsv: `qid corpus_qid`, a row for each duplicate of a query.
    beir/: the same in BEIR's format (`data.beir`).

    All but beir/ are tables of `data.quoted`; all but the labelled pairs have rows by qid.
    """
    refuse_existing(folder)
    data, ids = tasks.data, tasks.data.ids
    relevant = {name: _relevant(tasks, name) for name in EVAL_PARTS}
    everyone = np.ones(len(ids), np.bool_)
    everyone[np.concatenate([*tasks.queries.values()])] = False
    corpus = np.flatnonzero(everyone)
    with replace_folder(folder) as part:
        kept = kept_pairs(tasks)
        for name in PARTS:
            rows = _pair_rows(data, kept[name])
            _write(part / "classification" / f"{name}_pairs.tsv", PAIRS_HEADER, rows)
        for number, name in enumerate(EVAL_PARTS, start=DEV):
            there = np.flatnonzero(tasks.part_of == number)
            _write(part / "mining" / f"{name}_corpus.tsv", QUESTIONS, _question_rows(data, there))
            of_part = np.where(tasks.part_of == number, tasks.clusters, -1)
            duplicates = _sorted(ids[cluster_pairs(of_part)])
            _write(part / "mining" / f"{name}_duplicates.tsv", DUPLICATES, duplicates.tolist())
        _write(part / "retrieval" / "corpus.tsv", QUESTIONS, _question_rows(data, corpus))
        for name, queries in tasks.queries.items():
            questions = _question_rows(data, queries)
            _write(part / "retrieval" / f"{name}-queries.tsv", QUESTIONS, questions)
            _write(part / "retrieval" / f"{name}-relevant.tsv", RELEVANT, relevant[name].tolist())
        write_beir(
            part / "beir",
            _named(data, corpus),
            _named(data, np.concatenate([*tasks.queries.values()])),
            {
                name: ((f"{a}", f"{b}", 1) for a, b in relevant[name].tolist())
                for name in EVAL_PARTS
            },
        )
        report = _report(tasks, kept, {name: len(rows) for name, rows in relevant.items()})
        write_json(part / "report.json", report)
    return report


def kept_pairs(tasks: Tasks) -> dict[str, np.ndarray]:
    """The rows int64 [n] of the labelled pairs of each part.

    Left out are non-duplicates of two parts, and of one cluster, which contradicts the label.
    """
    ends = tasks.part_of[tasks.data.pairs]
    kept = (ends[:, 0] == ends[:, 1]) & ~_contradicted(tasks)
    return {name: np.flatnonzero(kept & (ends[:, 0] == i)) for i, name in enumerate(PARTS)}


def _contradicted(tasks: Tasks) -> np.ndarray:
    of_pair = tasks.clusters[tasks.data.pairs]
    inside = (of_pair[:, 0] == of_pair[:, 1]) & (of_pair[:, 0] >= 0)
    return inside & ~tasks.data.is_duplicate


def _without_blank(data: QuestionPairs) -> QuestionPairs:
    """The file without questions that have no text, and their pairs."""
    kept = np.array([bool(text.strip()) for text in data.questions], np.bool_)
    rows = kept[data.pairs].all(axis=1)
    number = np.cumsum(kept, dtype=np.int32) - 1
    return QuestionPairs(
        questions=[text for text in data.questions if text.strip()],
        ids=data.ids[kept],
        pairs=number[data.pairs[rows]].astype(np.int32),
        is_duplicate=data.is_duplicate[rows],
        report=data.report,
    )


def _parts(data: QuestionPairs, groups: np.ndarray, sizes: Sizes) -> np.ndarray:
    count = int(groups.max(initial=-1)) + 1
    weights = np.bincount(groups, minlength=count)
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, groups, data.ids)
    near, starts = _neighbours(groups[data.pairs[~data.is_duplicate]], count)
    room = {DEV: int(sizes.dev * len(groups)), TEST: int(sizes.test * len(groups))}
    part_of_group = np.full(count, -1, np.int8)
    for group in _drawn(smallest, sizes.seed, 0).tolist():
        if part_of_group[group] >= 0:
            continue
        others = near[starts[group] : starts[group + 1]]
        together = np.unique(np.append(others[part_of_group[others] < 0], group))
        weight = int(weights[together].sum())
        part = next((part for part in (DEV, TEST) if weight <= room[part]), TRAIN)
        if part != TRAIN:
            room[part] -= weight
        part_of_group[together] = part
    return part_of_group[groups]


def _neighbours(links: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes linked to each of `count`: those of node i are near[starts[i] : starts[i + 1]]."""
    both = np.concatenate([links, links[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    return both[:, 1], np.searchsorted(both[:, 0], np.arange(count + 1))


def _drawn(keys: np.ndarray, seed: int, stream: int) -> np.ndarray:
    """Positions of distinct `keys`, in an order that is drawn for the keys in their order."""
    # A bit generator's stream stays what it is from version to version; that of what a Generator
    # makes of it (permutations) does not have to (NEP 19).
    numbers = np.random.PCG64([seed, stream]).random_raw(len(keys))
    return np.argsort(keys)[np.argsort(numbers, kind="stable")]


def _queries(
    data: QuestionPairs, clusters: np.ndarray, part_of: np.ndarray, sizes: Sizes
) -> dict[str, np.ndarray]:
    """One question of each cluster where one can be a query, of as many clusters as wanted."""
    texts = [normalized_text(question) for question in data.questions]
    times = Counter(texts)
    able = (clusters >= 0) & np.array([times[text] == 1 for text in texts], np.bool_)
    queries = {}
    for part, name in enumerate(EVAL_PARTS, start=DEV):
        candidates = np.flatnonzero(able & (part_of == part))
        candidates = candidates[_drawn(data.ids[candidates], sizes.seed, 2 * part)]
        _, first = np.unique(clusters[candidates], return_index=True)
        chosen = candidates[first]
        most = getattr(sizes, f"{name}_queries")
        # Drawn once more, so that a large cluster is not the more likely to be among them.
        chosen = chosen[_drawn(data.ids[chosen], sizes.seed, 2 * part + 1)][:most]
        if not len(chosen):
            raise UserError(
                f"expected queries in {name}, got none: no question of its clusters has a text of "
                f"its own; raise `--{name}` (now {getattr(sizes, name):g}), or give more pairs"
            )
        queries[name] = chosen[np.argsort(data.ids[chosen])]
    return queries


def _relevant(tasks: Tasks, name: str) -> np.ndarray:
    """(query, another question of its cluster), as qids int64 [n, 2], by qid."""
    queries = tasks.queries[name]
    query_of = np.full(int(tasks.clusters.max(initial=-1)) + 1, -1)
    query_of[tasks.clusters[queries]] = queries
    clustered = np.flatnonzero(tasks.clusters >= 0)
    owner = query_of[tasks.clusters[clustered]]
    rows = np.stack([owner, clustered], axis=1)[(owner >= 0) & (owner != clustered)]
    ids: np.ndarray = tasks.data.ids[rows]
    return ids[np.lexsort((ids[:, 1], ids[:, 0]))]


def _sorted(pairs: np.ndarray) -> np.ndarray:
    """Pairs of qids, the lower first, by the first and then the second."""
    pairs = np.sort(pairs, axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _question_rows(data: QuestionPairs, positions: np.ndarray) -> Iterator[tuple[int, str]]:
    for position in positions[np.argsort(data.ids[positions])].tolist():
        yield int(data.ids[position]), data.questions[position]


def _named(data: QuestionPairs, positions: np.ndarray) -> Iterator[tuple[str, str]]:
    return ((f"{qid}", text) for qid, text in _question_rows(data, positions))


def _pair_rows(data: QuestionPairs, rows: np.ndarray) -> Iterator[tuple[int, int, str, str, int]]:
    pairs, labels = data.pairs[rows], data.is_duplicate[rows]
    for (a, b), label in zip(pairs.tolist(), labels.tolist(), strict=True):
        ids = int(data.ids[a]), int(data.ids[b])
        yield *ids, data.questions[a], data.questions[b], int(label)


def _write(path: pathlib.Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with write_atomically(path, "w") as file:
        write_rows(file, header, rows)


def _report(tasks: Tasks, kept: dict[str, np.ndarray], relevant: dict[str, int]) -> dict[str, Any]:
    """Counts of questions, clusters and pairs, what was left out, and the settings.

    Of a part, `duplicates` and `non_duplicates` are labelled pairs, `linked_duplicates` those that
    transitivity makes of them.
    """
    data = tasks.data
    ends = tasks.part_of[data.pairs]
    contradicted = _contradicted(tasks)
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
            "non_duplicates_across_parts": int(
                ((ends[:, 0] != ends[:, 1]) & ~data.is_duplicate).sum()
            ),
            "non_duplicates_of_one_cluster": int(contradicted.sum()),
            "pairs_with_a_blank_question": tasks.blank_pairs,
        },
        "parts": parts,
        "retrieval_corpus": len(data.questions) - sum(map(len, tasks.queries.values())),
        "settings": dataclasses.asdict(tasks.sizes),
    }
