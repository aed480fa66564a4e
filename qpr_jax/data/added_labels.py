"""Labeled pairs that are added to the training split of others: verdicts of a person, say."""

from __future__ import annotations

import collections

import numpy as np

from qpr_jax.data.clusters import connect, transitive_clusters
from qpr_jax.data.labeled_pairs import LabeledPairs
from qpr_jax.data.quora import QuestionPairs
from qpr_jax.data.splits import TRAIN, Splits, collect_splits
from qpr_jax.text.tokenizer import normalized_text


def add_labels(
    data: QuestionPairs, splits: Splits, labels: LabeledPairs
) -> tuple[QuestionPairs, np.ndarray, Splits]:
    """Join labeled pairs to the training split, and leave the held-out splits as they are.

    Questions that the data lack are appended, for training. A pair with a held-out question, by its
    normalized text, is left out: an encoder may not learn what it is scored by. A label replaces
    the data's own of the same pair, and pairs labeled non-duplicates are in no cluster together:
    of duplicates that would join them, those of the data that come last are left out.

    Returns:
      The data, with counts in its report: `added_labels`, `held_out_labels` (left out), and
      `overruled_duplicates` (left out of the clusters); clusters int32 [Q]; and the splits.
    """
    held_out = np.flatnonzero(splits.split_of != TRAIN)
    kept_out = {normalized_text(data.questions[i]) for i in held_out}
    is_out = np.array([normalized_text(text) in kept_out for text in labels.questions], np.bool_)
    trained = ~is_out[labels.pairs].any(axis=1)

    known = {text: i for i, text in enumerate(data.questions)}
    # Only questions of a pair that is added, in the order of their texts in `labels`.
    used = np.unique(labels.pairs[trained])
    rows = np.full(len(labels.questions), -1, np.int64)
    for i in used.tolist():
        rows[i] = known.setdefault(labels.questions[i], len(known))
    pairs = rows[labels.pairs[trained]].astype(np.int32).reshape(-1, 2)
    different = pairs[:, 0] != pairs[:, 1]
    pairs, is_duplicate = pairs[different], labels.is_duplicate[trained][different]

    own = ~np.isin(_keys(data.pairs, len(known)), _keys(pairs, len(known)))
    all_pairs = np.concatenate([pairs, data.pairs[own]])  # the labels first: they win
    all_labels = np.concatenate([is_duplicate, data.is_duplicate[own]])
    duplicates = all_pairs[all_labels]
    joined = join_apart(len(known), duplicates, pairs[~is_duplicate])
    more = len(known) - len(data.questions)
    report = data.report | {
        "added_labels": len(pairs),
        "held_out_labels": int((~trained).sum()),
        "overruled_duplicates": int((~joined).sum()),
    }
    ids = np.concatenate([data.ids, data.ids.max(initial=-1) + 1 + np.arange(more)])
    added = QuestionPairs([*known], ids, all_pairs, all_labels, report)
    split_of = np.concatenate([splits.split_of, np.full(more, TRAIN, splits.split_of.dtype)])
    clusters = transitive_clusters(len(known), duplicates[joined])
    found = collect_splits(added, clusters, split_of)
    # The held-out pairs in their old order, so that scores are of the same pairs.
    pairs_of = splits.pairs | {"train": found.pairs["train"]}
    non_duplicates = splits.non_duplicates | {"train": found.non_duplicates["train"]}
    return added, clusters, Splits(split_of, pairs_of, non_duplicates)


def join_apart(count: int, duplicates: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Which duplicates, int [P, 2], may be joined so that no pair of `apart` is: bool [P].

    They are joined in their order, and one that would join a pair of `apart` is left out.
    """
    components = connect(count, duplicates)
    ends = components[apart]
    wrong = np.unique(ends[ends[:, 0] == ends[:, 1], 0])
    kept = np.ones(len(duplicates), np.bool_)
    if not len(wrong):
        return kept
    root: dict[int, int] = {}

    def find(node: int) -> int:
        while (above := root.setdefault(node, node)) != node:
            root[node] = root[above]
            node = above
        return node

    foes: dict[int, set[int]] = collections.defaultdict(set)
    for a, b in apart[np.isin(ends[:, 0], wrong)].tolist():
        foes[a].add(b)
        foes[b].add(a)
    for row in np.flatnonzero(np.isin(components[duplicates[:, 0]], wrong)).tolist():
        a, b = map(find, duplicates[row].tolist())
        if b in foes[a]:
            kept[row] = False
        elif a != b:
            root[b] = a
            for foe in foes.pop(b, ()):
                foes[foe].discard(b)
                foes[foe].add(a)
                foes[a].add(foe)
    return kept


def _keys(pairs: np.ndarray, count: int) -> np.ndarray:
    """A number of each pair, whichever question comes first: int64 [P]."""
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    return low.astype(np.int64) * count + high
