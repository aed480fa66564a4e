"""Training, validation and test questions; the questions of one meaning are in one split."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from qpr_jax.data.columns import write_tsv
from qpr_jax.data.question_pairs import (
    COLUMNS,
    QuestionPairs,
    cluster_pairs,
    connect,
    in_one_cluster,
    linking_pairs,
    say_joined,
    transitive_clusters,
)
from qpr_jax.data.typed_rows import write_json_lines
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.text.tokenizer import normalized_text

log = logging.getLogger("qpr_jax")

SPLITS = ("train", "validation", "test")
HELD_OUT = ("validation", "test")
PAIR = ("id1", "id2")
TRAIN, VALIDATION, TEST = range(3)
MOST_HELD_OUT = 5000  # pairs or questions of each held-out split, by default


def no_pairs() -> dict[str, np.ndarray]:
    """No pair in any split."""
    return dict.fromkeys(SPLITS, np.zeros((0, 2), np.int32))


@dataclass(frozen=True)
class Splits:
    """The split of each question, int8 [Q], a position in SPLITS or -1, and pairs int32 [P, 2].

    pairs: by split, those of the split's clusters, the query first; all, unless clusters are large.
    non_duplicates: by split, those labeled so, of two of its questions in different clusters.
    """

    split_of: np.ndarray
    pairs: dict[str, np.ndarray]
    non_duplicates: dict[str, np.ndarray] = field(default_factory=no_pairs)


class SplitData(NamedTuple):
    """Q questions with their pairs, clusters, int32 [Q] from 0 (-1 for none), and splits."""

    data: QuestionPairs
    clusters: np.ndarray
    splits: Splits


def without_texts(splits: Splits, questions: Sequence[str], texts: Set[str]) -> Splits:
    """Take training questions with these normalized texts, and their pairs, out of all splits."""
    split_of = splits.split_of.copy()
    for row in np.flatnonzero(split_of == TRAIN).tolist():
        if normalized_text(questions[row]) in texts:
            split_of[row] = -1

    def kept(pairs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        train = pairs["train"]
        return pairs | {"train": train[(split_of[train] == TRAIN).all(axis=1)]}

    return Splits(split_of, kept(splits.pairs), kept(splits.non_duplicates))


def split_by_cluster(
    data: QuestionPairs,
    clusters: np.ndarray,
    *,
    held_out_pairs: int = 0,
    largest_cluster: int = 20,
    seed: int = 0,
) -> Splits:
    """Split the questions by cluster, the same way for the same file.

    UserError if a split gets no pair.
    Clusters that share a normalized text form one group. Groups with a cluster of more than
    `largest_cluster` questions are for training. The others, ordered by their smallest question
    id, are permuted. Each goes to validation unless that would then have more than
    `held_out_pairs` (0: a tenth of all pairs, at most MOST_HELD_OUT), else to test by the same
    rule, else to training. Questions in no cluster are split 80:10:10 by normalized text.

    If validation or test would be empty, each gets a tenth of the groups that are for training or
    do not fit, at least one, and a tenth of the others; their pairs are sampled.
    """
    if joined := say_joined(data.questions, data.pairs[data.is_duplicate], clusters):
        log.warning("%s", joined)
    groups = group_questions(data.questions, clusters)
    sizes = np.bincount(clusters[clusters >= 0])
    of_cluster = np.zeros(len(sizes), np.int64)
    of_cluster[clusters[clusters >= 0]] = groups[clusters >= 0]
    # A group of questions in no cluster has no pairs.
    count = int(groups.max(initial=-1)) + 1
    pairs = np.bincount(of_cluster, sizes * (sizes - 1) // 2, minlength=count).astype(np.int64)
    held_back = np.zeros(count, np.bool_)
    held_back[of_cluster[sizes > largest_cluster]] = True
    # A question in no cluster follows its group, but does not decide the order of groups.
    decides = (clusters >= 0) | (pairs[groups] == 0)
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, groups[decides], data.ids[decides])

    most = held_out_pairs or min(int(pairs.sum()) // 10, MOST_HELD_OUT)
    split_of_group = np.full(count, TRAIN, np.int8)
    filled = {VALIDATION: 0, TEST: 0}
    for group in _shuffle((pairs > 0) & ~held_back, smallest, seed):
        for split in (VALIDATION, TEST):
            if filled[split] + pairs[group] <= most:
                filled[split] += pairs[group]
                split_of_group[group] = split
                break

    if not all(filled.values()):
        large = held_back | ((pairs > most) & (most > 0))
        orders = [_shuffle(kind & (pairs > 0), smallest, seed) for kind in (large, ~large)]
        weights = np.bincount(groups[clusters >= 0], minlength=count)
        split_of_group = _split_large(orders, weights, most)
    alone = _shuffle(pairs == 0, smallest, [seed, 1])
    _hold_out(split_of_group, alone, len(alone) // 10)
    splits = _collect_splits(data, clusters, split_of_group[groups])
    for name in HELD_OUT:
        splits.pairs[name] = linking_pairs(splits.pairs[name], clusters, most, seed=seed)
    for name in SPLITS:
        if not len(splits.pairs[name]):
            got = f"none for {name}, of {pairs.sum():,} in all (clusters: {len(sizes):,})"
            what = f"expected pairs of duplicates in each split, got {got}"
            remedy = joined or "give more duplicates, or change `data.held_out_pairs`"
            raise UserError(what, remedy=remedy)
    return splits


def _split_large(orders: Sequence[np.ndarray], questions: np.ndarray, most: int) -> np.ndarray:
    """Return the split of each group, int8 [G]: a tenth of each of two orders is held out, twice.

    These have at most `most` questions, but one group of the first order, of large ones, is taken.
    """
    split_of_group = np.full(len(questions), TRAIN, np.int8)
    for order, least in zip(orders, (1, 0), strict=True):
        room = int(np.searchsorted(np.cumsum(questions[order]), most, side="right"))
        if len(order) > len(HELD_OUT):
            _hold_out(split_of_group, order, max(min(len(order) // 10, room), least))
    return split_of_group


def split_by_text(questions: Sequence[str], *, most: int = 0) -> np.ndarray:
    """Split questions 80:10:10 by normalized text: int8 [Q], the split of each.

    Validation and test get at most `most` texts each (0: MOST_HELD_OUT).
    UserError if one gets none.
    """
    groups = group_questions(questions, np.full(len(questions), -1))
    count = int(groups.max(initial=-1)) + 1
    held_out = min(count // 10, most or MOST_HELD_OUT)
    if not held_out:
        what = f"expected at least 10 different questions, got {count}"
        raise UserError(what, remedy="give more")
    split_of_group = np.full(count, TRAIN, np.int8)
    _hold_out(split_of_group, np.random.default_rng([0, 1]).permutation(count), held_out)
    return split_of_group[groups]


def _hold_out(split_of_group: np.ndarray, order: np.ndarray, count: int) -> None:
    """Put the first `count` groups of an order into validation, and as many into test."""
    split_of_group[order[:count]] = VALIDATION
    split_of_group[order[count : 2 * count]] = TEST


def group_questions(questions: Sequence[str], clusters: np.ndarray) -> np.ndarray:
    """Return the group of each question, int64 [Q]: linked by cluster or by normalized text."""
    first_row: dict[str, int] = {}
    first_of_text = [first_row.setdefault(normalized_text(q), i) for i, q in enumerate(questions)]
    themselves = np.arange(len(questions))
    _, first, cluster = np.unique(clusters, return_index=True, return_inverse=True)
    first_of_cluster = np.where(clusters >= 0, first[cluster], themselves)
    ends = np.concatenate([np.array(first_of_text, np.int64), first_of_cluster])
    return connect(len(themselves), np.stack([np.tile(themselves, 2), ends], axis=1))


def other_candidates(pairs: np.ndarray, clusters: np.ndarray, *, seed: int) -> np.ndarray:
    """Choose a question of another cluster for each pair, int [P, 2].

    Returns positions, int [P], a permutation of the pairs' candidates. If one cluster has more than
    half of the pairs, no such permutation exists; then questions are sampled from all. There must
    be three clusters.
    """
    count, row_clusters = len(pairs), clusters[pairs[:, 0]]
    rng = np.random.default_rng(seed)
    if np.bincount(row_clusters).max() * 2 > count:
        sample = rng.integers(len(clusters), size=count)
        while len(same := np.flatnonzero(clusters[sample] == row_clusters)):
            sample[same] = rng.integers(len(clusters), size=len(same))
        return sample
    shuffled = rng.permutation(count)
    # Order the pairs by cluster, clusters at random: then a shift by half the number of pairs gives
    # each pair another cluster, since no cluster has more than half of them.
    rank_of = rng.permutation(row_clusters.max() + 1)
    ordered = shuffled[np.argsort(rank_of[row_clusters[shuffled]], kind="stable")]
    result = np.empty(count, np.int64)
    result[ordered] = np.roll(ordered, count // 2)
    return pairs[result, 1]


def write_splits(folder: StrPath, data: QuestionPairs, splits: Splits) -> None:
    """Write the splits to files of `folder`.

    {train,validation,test}.tsv: `id1 id2`, a pair of ids in each line.
    labelled_{validation,test}.jsonl: these and the labeled non-duplicates, as pairs.
    questions.tsv: `id split` for all questions; `none` is a question that is indexed only.
    """
    ids, questions, path = data.ids, data.questions, pathlib.Path(folder)
    names = [(*SPLITS, "none")[i] for i in splits.split_of.tolist()]  # the last is that of -1
    write_tsv(path / "questions.tsv", ("id", "split"), zip(ids.tolist(), names, strict=True))
    for name in SPLITS:
        write_tsv(path / f"{name}.tsv", PAIR, ids[splits.pairs[name]].tolist())
    for name in HELD_OUT:
        of_label = ((splits.pairs[name], 1), (splits.non_duplicates[name], 0))
        rows = (
            dict(zip(COLUMNS, (questions[a], questions[b], label), strict=True))
            for pairs, label in of_label
            for a, b in pairs.tolist()
        )
        write_json_lines(path / f"labelled_{name}.jsonl", rows)


def read_pairs(run: StrPath, split: str) -> np.ndarray:
    """Read the pairs of ids of a split in RUN/splits: int64 [P, 2], the query first."""
    folder = pathlib.Path(run) / "splits"
    if not folder.is_dir():
        what = f"{run}: expected the folder of a run, with splits/, found none"
        raise UserError(what, remedy="give one that `qpr train` or experiments.main made")
    path = folder / f"{split}.tsv"
    try:
        lines = path.read_text("utf-8").splitlines()[1:]
        pairs = [
            (int(first), int(second)) for first, second in (line.split("\t") for line in lines)
        ]
    except (OSError, ValueError) as error:
        what = f"{path}: expected rows of two cells ({error})"
        raise UserError(what, remedy="restore it") from None
    if not pairs:
        what = f"{run}: expected pairs of the split {split}, got none"
        raise UserError(what, remedy="name a run that was trained on pairs")
    return np.array(pairs, np.int64)


def _shuffle(chosen: np.ndarray, smallest: np.ndarray, seed: int | list[int]) -> np.ndarray:
    """The chosen groups (bool), ordered by their smallest question id, then permuted by `seed`."""
    groups = np.flatnonzero(chosen)
    groups = groups[np.argsort(smallest[groups])]
    return groups[np.random.default_rng(seed).permutation(len(groups))]


def _collect_splits(data: QuestionPairs, clusters: np.ndarray, split_of: np.ndarray) -> Splits:
    """Return the pairs of each split, for clusters that lie in one split each."""
    pairs = cluster_pairs(clusters)
    labeled = data.pairs[~data.is_duplicate & ~in_one_cluster(clusters, data.pairs)]
    of_split = {name: pairs[split_of[pairs[:, 0]] == i] for i, name in enumerate(SPLITS)}
    inside = {name: (split_of[labeled] == i).all(axis=1) for i, name in enumerate(SPLITS)}
    return Splits(split_of, of_split, {name: labeled[rows] for name, rows in inside.items()})


def add_labels(data: QuestionPairs, splits: Splits, labels: QuestionPairs) -> SplitData:
    """Add labeled pairs to the training split, and leave the held-out splits as they are.

    Questions that the data lack are appended, for training. A pair with a held-out question, by its
    normalized text, is left out: an encoder may not learn what it is scored by. A label replaces
    the data's own for the same pair, and pairs labeled non-duplicates are in no cluster together:
    of duplicates that would join them, the last ones of the data are left out.

    The report gets counts: `added_labels`, `held_out_labels` (left out), and
    `overruled_duplicates` (left out of the clusters).
    """
    held_out = np.flatnonzero(splits.split_of != TRAIN)
    kept_out = {normalized_text(data.questions[i]) for i in held_out}
    is_out = np.array([normalized_text(text) in kept_out for text in labels.questions], np.bool_)
    trained = ~is_out[labels.pairs].any(axis=1)

    row_of = {text: i for i, text in enumerate(data.questions)}
    # Only questions of a pair that is added, in the order of their texts in `labels`.
    used = np.unique(labels.pairs[trained])
    rows = np.full(len(labels.questions), -1, np.int64)
    for i in used.tolist():
        rows[i] = row_of.setdefault(labels.questions[i], len(row_of))
    pairs = rows[labels.pairs[trained]].astype(np.int32).reshape(-1, 2)
    is_duplicate = labels.is_duplicate[trained]

    unlabeled = ~np.isin(_keys(data.pairs, len(row_of)), _keys(pairs, len(row_of)))
    all_pairs = np.concatenate([pairs, data.pairs[unlabeled]])  # the labels first: they win
    all_labels = np.concatenate([is_duplicate, data.is_duplicate[unlabeled]])
    duplicates = all_pairs[all_labels]
    joined = join_apart(len(row_of), duplicates, pairs[~is_duplicate])
    more = len(row_of) - len(data.questions)
    report = data.report | {
        "added_labels": len(pairs),
        "held_out_labels": int((~trained).sum()),
        "overruled_duplicates": int((~joined).sum()),
    }
    ids = np.concatenate([data.ids, data.ids.max(initial=-1) + 1 + np.arange(more)])
    added = QuestionPairs([*row_of], ids, all_pairs, all_labels, report)
    split_of = np.concatenate([splits.split_of, np.full(more, TRAIN, splits.split_of.dtype)])
    clusters = transitive_clusters(len(row_of), duplicates[joined])
    found = _collect_splits(added, clusters, split_of)
    # The held-out pairs in their old order, so that scores are of the same pairs.
    pairs_of = splits.pairs | {"train": found.pairs["train"]}
    non_duplicates = splits.non_duplicates | {"train": found.non_duplicates["train"]}
    return SplitData(added, clusters, Splits(split_of, pairs_of, non_duplicates))


def join_apart(count: int, duplicates: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Return which duplicates to join, in order, so that no pair of `apart` is: bool [P]."""
    components = connect(count, duplicates)
    ends = components[apart]
    kept = np.ones(len(duplicates), np.bool_)
    for wrong in np.unique(ends[ends[:, 0] == ends[:, 1], 0]):
        foes = [{*pair} for pair in apart[(ends == wrong).all(axis=1)].tolist()]
        joined: dict[int, set[int]] = {}
        for row in np.flatnonzero(components[duplicates[:, 0]] == wrong):
            a, b = duplicates[row].tolist()
            both = joined.get(a, {a}) | joined.get(b, {b})
            kept[row] = not any(pair <= both for pair in foes)
            if kept[row]:
                joined |= dict.fromkeys(both, both)
    return kept


def _keys(pairs: np.ndarray, count: int) -> np.ndarray:
    """Return a number for each pair, whichever question comes first: int64 [P]."""
    return np.sort(pairs, axis=1) @ np.array([count, 1], np.int64)
