"""Labeled pairs of questions, and the clusters that the duplicates form.

The pairs are Quora's file, or any table with its columns. A cluster is the transitive closure of
duplicates: questions with one meaning.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from qpr_jax import kinds
from qpr_jax.data.columns import BadRows, read_rows, require
from qpr_jax.data.decoding import format_of
from qpr_jax.data.entries import Id, id_key, is_missing
from qpr_jax.data.typed_rows import Fields, input_name
from qpr_jax.errors import UserError, short, shortened
from qpr_jax.files import StrPath

log = logging.getLogger("qpr_jax")

COLUMNS = ("question1", "question2", "is_duplicate")
IDS = ("qid1", "qid2")
PAIRS_HEADER = (*IDS, *COLUMNS)  # of the pair files that `qpr splits` writes
WEIGHT, SCORE = "weight", "score"
HIT_SCORE = "hit_score"  # of labels on hits of a search
_LABELS = dict.fromkeys(("1", "1.0", "true", "yes", "y"), True)
_LABELS |= dict.fromkeys(("0", "0.0", "false", "no", "n"), False)
_NAMES = "name its columns so, and the file by its format, as .csv"
Row = tuple[Id, Id, str, str, bool]  # qid1, qid2, question1, question2, is_duplicate
_LARGE = 20  # questions of a cluster that wrong labels may have joined, at least
_TRIED, _SHOWN = 20, 3  # questions or rows that may have joined it


@dataclass(frozen=True)
class QuestionPairs:
    """Q distinct questions, in order of first appearance, and their labeled pairs.

    Attributes:
      ids: int64 [Q].
      pairs, is_duplicate: int32 [P, 2], positions of two questions, and bool [P].
      report: counts: `rows` (good ones), `skipped_rows` (bad ones), `same_text_ids` (ids left out,
        since an earlier id has their text), `changed_texts` (ids with several texts, of which the
        first that is not blank is kept), `blank_pairs` and `self_pairs` (rows left out, that have
        a blank question, or pair a question with itself).
      weights: float64 [P], how many found pairs each stands for; None: the pairs are no sample.
      scores: float64 [P], those that the pairs were found with, NaN where there is none; or None.
    """

    questions: list[str]
    ids: np.ndarray
    pairs: np.ndarray
    is_duplicate: np.ndarray
    report: dict[str, Any]
    weights: np.ndarray | None = None
    scores: np.ndarray | None = None

    @classmethod
    def of_duplicates(cls, questions: list[str], pairs: np.ndarray, **report: Any) -> Self:
        """Questions without ids of their own, and pairs int32 [P, 2] that are all duplicates."""
        ids, report = np.arange(len(questions)), {"skipped_rows": 0} | report
        return cls(questions, ids, pairs, np.ones(len(pairs), np.bool_), report)

    def subset(self, kept: np.ndarray) -> QuestionPairs:
        """Return the questions that are `kept`, bool [Q], and their pairs without weights."""
        rows = kept[self.pairs].all(axis=1)
        texts = [*itertools.compress(self.questions, kept)]
        pairs = (np.cumsum(kept, dtype=np.int32) - 1)[self.pairs[rows]]
        return QuestionPairs(texts, self.ids[kept], pairs, self.is_duplicate[rows], self.report)


def read_question_pairs(
    path: StrPath,
    *,
    format: str | None = None,
    skip_bad_rows: bool = False,
    max_rows: int = 0,
    weighted: bool = False,
) -> QuestionPairs:
    """Read a file with the columns question1, question2 and is_duplicate, such as Quora's, or "-".

    A question's id is the one in `qid1` or `qid2`, if the file has these columns and they hold
    whole numbers; else questions are numbered by first appearance. The first bad row is a UserError
    with its line, unless they are skipped and counted.

    format: of `data.decoding`; if None, the suffix of the file's name decides, else "tsv".
    max_rows: stop after so many good rows; 0: read all.
    weighted: read `weight`, 1 where there is none, and `score`, and no ids.
    """
    kinds.refuse_kind(path, kinds.LABELS, kinds.TABLE, kinds.PACKED)
    get_some = f"{_NAMES}; {kinds.instead(kinds.LABELS, path, kinds.kind_of(path))}"
    name, kind = input_name(str(path)), format or format_of(path) or "tsv"
    bad = BadRows(name, skip=skip_bad_rows)

    def choose(names: Sequence[str]) -> list[str]:
        require(names, COLUMNS, remedy=get_some, source=name)
        if weighted and HIT_SCORE in names:
            what = f"{name}: expected labels of found pairs, got labels of first hits"
            raise UserError(what, remedy=kinds.instead(kinds.LABELS))
        return [column for column in names if column in (*PAIRS_HEADER, WEIGHT, SCORE)]

    rows = bad.good(
        read_rows(str(path), choose, format=kind),
        lambda _, fields: parse_labeled(fields, weighted=weighted),
    )
    good = [*itertools.islice(rows, max_rows or None)]
    if not good:
        what = f"{name}: expected rows of question pairs, got no good row and {bad.count} bad ones"
        raise UserError(what, remedy="give a file with pairs")
    facts = np.array([values for _, *values in good]) if weighted else None
    data = gather_pairs([row for row, *_ in good], name, facts)
    data.report["skipped_rows"] = bad.count
    return data


def parse_label(cell: object) -> bool | None:
    """Parse a label: 0 or 1, true or false, yes or no; None for anything else."""
    return _LABELS.get(str(cell).strip().lower())


def parse_labeled(fields: Fields, *, weighted: bool) -> tuple[Row, float, float]:
    """Parse a labeled pair, its weight and score; a UserError says what is wrong with the row."""
    if missing := [name for name in COLUMNS if name not in fields]:
        raise UserError(f"expected `{missing[0]}`, got {short(sorted(fields))}")
    first, second, cell = ("" if is_missing(fields[name]) else fields[name] for name in COLUMNS)
    for name, text in zip(COLUMNS, (first, second), strict=False):
        if not isinstance(text, str):
            raise UserError(f"expected a question in `{name}`, got {short(text)}")
    first, second = str(first), str(second)
    label = parse_label(cell)
    if label is None:
        raise UserError(f"expected `{COLUMNS[2]}` 0 or 1, got {short(cell)}")
    number, found = (_cell(fields.get(name)) if weighted else "" for name in (WEIGHT, SCORE))
    weight, score = _float(number), _float(found)
    if number and not 0 < weight < math.inf:
        raise UserError(f"expected a `{WEIGHT}` above 0, got {short(number)}")
    if found and not 0 <= score <= 1:
        raise UserError(f"expected a `{SCORE}` from 0 to 1, got {short(found)}")
    has_ids = {*IDS} <= fields.keys() and not weighted
    ids = [_cell(fields[name]) if has_ids else "" for name in IDS]
    a, b = (id_key(i) if i else f"={t}" for i, t in zip(ids, (first, second), strict=True))
    return (a, b, first, second, label), weight, score


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _cell(value: object) -> str:
    return "" if is_missing(value) else str(value).strip()


def gather_pairs(
    rows: Iterable[Row], source: str = "", facts: np.ndarray | None = None
) -> QuestionPairs:
    """Number the questions of `rows` by first appearance; equal texts are one, blank ones none.

    Their ids are those of the rows, if all are whole numbers. Else they are numbered, too, and a
    warning names the source unless no row has an id. facts: [P, 2], weights and scores of the rows.
    """
    rows = list(rows)
    each = [pair for id1, id2, *texts, _ in rows for pair in zip((id1, id2), texts, strict=True)]
    text_of: dict[Id, str] = {}
    changed: set[Id] = set()
    for identity, text in each:
        first_text = text_of.setdefault(identity, text)
        if first_text != text:
            changed.add(identity)
            if not first_text.strip():
                text_of[identity] = text
    whole = all(isinstance(identity, int) for identity in text_of)
    if not whole and any(not str(identity).startswith("=") for identity in text_of):
        text = "%s: not all ids are whole numbers; questions are numbered from 0 instead"
        log.warning(text, source)
    if changed:
        log.warning("%s: ids with several texts, the first is kept: %d", source, len(changed))
    kept_texts = {identity: text for identity, text in text_of.items() if text.strip()}
    id_of: dict[str, Id] = {}  # the first one of each text
    for number, (identity, text) in enumerate(kept_texts.items()):
        id_of.setdefault(text, identity if whole else number)
    position = {text: at for at, text in enumerate(id_of)}
    found = [position.get(text_of[identity], -1) for identity, _ in each]  # -1: blank
    pairs = np.array(found, np.int32).reshape(-1, 2)
    blank = (pairs < 0).any(axis=1)
    kept = ~blank & (pairs[:, 0] != pairs[:, 1])
    report = {
        "rows": len(rows),
        "skipped_rows": 0,
        "same_text_ids": len(kept_texts) - len(id_of),
        "changed_texts": len(changed),
        "blank_pairs": int(blank.sum()),
        "self_pairs": int((~kept & ~blank).sum()),
    }
    labels = np.array([row[-1] for row in rows], np.bool_)
    weights = None
    if facts is not None and not np.isnan(facts[:, 0]).all():
        weights = np.nan_to_num(facts[kept, 0], nan=1.0)
    return QuestionPairs(
        [*id_of],
        np.array([*id_of.values()], np.int64),
        pairs[kept],
        labels[kept],
        report,
        weights=weights,
        scores=None if facts is None else facts[kept, 1],
    )


def transitive_clusters(count: int, duplicates: np.ndarray) -> np.ndarray:
    """The cluster of each of `count` questions by their `duplicates`, int [P, 2] of positions.

    Returns int32 [count], numbers in order of first appearance; -1 for one without a duplicate.
    """
    components = connect(count, duplicates)
    clustered = np.bincount(components, minlength=1)[components] > 1
    clusters = np.full(count, -1, np.int32)
    clusters[clustered] = np.unique(components[clustered], return_inverse=True)[1]
    return clusters


def connect(count: int, links: np.ndarray) -> np.ndarray:
    """Return the connected component of each of `count` nodes by their `links`, int [P, 2].

    Returns int64 [count], numbers in order of first appearance. Each round hooks roots to the least
    root that a link joins them to, then shortens the paths (Shiloach and Vishkin, 1982, "An
    O(log n) parallel connectivity algorithm"). Finding duplicates needs no SciPy.
    """
    roots = np.arange(count)
    left, right = links[:, 0], links[:, 1]
    while True:
        a, b = roots[left], roots[right]
        apart = a != b
        if not apart.any():
            return np.unique(roots, return_inverse=True)[1]
        left, right, a, b = left[apart], right[apart], a[apart], b[apart]
        np.minimum.at(roots, np.maximum(a, b), np.minimum(a, b))
        while ((shorter := roots[roots]) != roots).any():
            roots = shorter


def say_joined(questions: Sequence[str], duplicates: np.ndarray, clusters: np.ndarray) -> str:
    """Say which labels join most pairs in one cluster, as few wrong ones do; "" if none does.

    Args:
      questions: the texts.
      duplicates: int [P, 2], positions of questions.
      clusters: of `transitive_clusters`.
    """
    sizes = np.bincount(clusters[clusters >= 0])
    largest = int(sizes.max(initial=0))
    if largest <= _LARGE or largest * (largest - 1) < pair_count(clusters):
        return ""
    members = np.flatnonzero(clusters == sizes.argmax())
    of_cluster = duplicates[clusters[duplicates[:, 0]] == sizes.argmax()]
    links = np.unique(np.searchsorted(members, np.sort(of_cluster, axis=1)), axis=0)
    most_linked = np.argsort(-np.bincount(links.ravel()), kind="stable")[:_TRIED]
    start = f"the labels join {largest:,} of {len(questions):,} questions in one cluster"
    parts, hub = max((len(_parts(links, node)), -node) for node in most_linked.tolist())
    if parts > 2:
        text = shortened(questions[members[-hub]], 60)
        return f"{start}: {text!r} alone joins {parts:,} clusters; check the rows that name it"
    pairs = "; ".join(
        " = ".join(repr(shortened(questions[members[end]], 40)) for end in link)
        for link in _weakest_links(links, largest)
    )
    return f"{start}, also by the rows {pairs}; check them" if pairs else start


def _parts(links: np.ndarray, node: int) -> np.ndarray:
    """Return the sizes of the parts of two or more nodes that a node alone joins."""
    others = links[(links != node).all(axis=1)]
    sizes = np.bincount(connect(int(links.max()) + 1, others))
    return sizes[sizes > 1]


def _weakest_links(links: np.ndarray, count: int) -> list[list[int]]:
    """Return the links without which the cluster falls into the most equal parts."""
    parts = []
    for at in np.random.default_rng(0).permutation(len(links))[: 10 * _TRIED].tolist():
        sizes = np.bincount(connect(count, np.delete(links, at, axis=0)))
        if len(sizes) > 1:
            parts.append((-int(sizes.min()), at))
    return [links[at].tolist() for _, at in sorted(parts)[:_SHOWN]]


def cluster_pairs(clusters: np.ndarray) -> np.ndarray:
    """Return all pairs (a, b), a < b, of each cluster: int32 [P, 2], by cluster, then a, then b."""
    members = np.flatnonzero(clusters >= 0)
    members = members[np.argsort(clusters[members], kind="stable")].astype(np.int32)
    ends = np.searchsorted(clusters[members], clusters[members], side="right")
    later = ends - np.arange(len(members)) - 1  # members of the cluster after each
    first = np.repeat(np.arange(len(members)), later)
    second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
    return np.stack([members[first], members[second]], axis=1)


def linking_pairs(pairs: np.ndarray, clusters: np.ndarray, most: int, *, seed: int) -> np.ndarray:
    """Sample about `most` of `cluster_pairs`, int [P, 2], that link each cluster.

    With the questions of a cluster in a row, at random, those are kept that are nearest: each
    question is in about as many.
    """
    order = np.lexsort((np.random.default_rng(seed).permutation(len(clusters)), clusters))
    apart = np.abs(np.diff(np.argsort(order)[pairs], axis=1)[:, 0])
    return pairs[apart < max(np.sort(apart)[most], 2)] if len(pairs) > most else pairs


def pair_count(clusters: np.ndarray) -> int:
    """Return the number of pairs that `cluster_pairs` returns."""
    sizes = np.bincount(clusters[clusters >= 0])
    return int((sizes * (sizes - 1) // 2).sum())


def in_one_cluster(clusters: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return whether both questions of a pair, int [P, 2], are in the same cluster: bool [P]."""
    first, second = clusters[pairs].T
    return (first == second) & (first >= 0)


def cluster_report(
    clusters: np.ndarray, pairs: np.ndarray, is_duplicate: np.ndarray
) -> dict[str, Any]:
    """Counts for a report. `sizes` maps a size to its number of clusters.

    `non_duplicates_inside_clusters` is label noise: other pairs link their questions.
    """
    sizes = np.bincount(clusters[clusters >= 0])
    inside = in_one_cluster(clusters, pairs)
    values, counts = np.unique(sizes, return_counts=True)
    return {
        "questions": len(clusters),
        "clusters": len(sizes),
        "clustered_questions": int(sizes.sum()),
        "largest_cluster": int(sizes.max(initial=0)),
        "cluster_pairs": pair_count(clusters),
        "sizes": {str(size): int(count) for size, count in zip(values, counts, strict=True)},
        "duplicates": int(is_duplicate.sum()),
        "non_duplicates": int((~is_duplicate).sum()),
        "non_duplicates_inside_clusters": int((inside & ~is_duplicate).sum()),
    }
