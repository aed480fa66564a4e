"""Clusters of questions with one meaning: the transitive closure of the duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax.errors import shortened

_LARGE = 20  # questions of a cluster that wrong labels may have joined, at least
_TRIED, _SHOWN = 20, 3  # questions or rows that may have joined it


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
    start = f"the labels join {largest:,} of {len(questions):,} questions in one cluster"
    parts, hub = max((len(_parts(links, node)), -node) for node in _most_linked(links))
    if parts > 2:
        text = shortened(questions[members[-hub]], 60)
        return f"{start}: {text!r} alone joins {parts:,} clusters; check the rows that name it"
    pairs = "; ".join(
        " = ".join(repr(shortened(questions[members[end]], 40)) for end in link)
        for link in _weakest_links(links, largest)
    )
    return f"{start}, also by the rows {pairs}; check them" if pairs else start


def _most_linked(links: np.ndarray) -> list[int]:
    return np.argsort(-np.bincount(links.ravel()), kind="stable")[:_TRIED].tolist()


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
