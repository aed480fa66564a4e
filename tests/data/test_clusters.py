"""Clusters of linked questions, against SciPy and plain loops."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from qpr_jax.data.clusters import (
    cluster_pairs,
    cluster_report,
    connect,
    dense_clusters,
    transitive_clusters,
)


def array(pairs):
    return np.array(pairs, np.int32).reshape(-1, 2)


def test_linked_against_scipy():
    generator = np.random.default_rng(0)
    for _ in range(100):
        count, links = generator.integers(1, 60), generator.integers(0, 60)
        pairs = generator.integers(0, count, (links, 2), np.int32)
        graph = coo_array((np.ones(links), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
        expected = connected_components(graph, directed=False)[1]
        same = expected[:, None] == expected
        assert (connect(count, pairs) == np.unique(same.argmax(1), return_inverse=True)[1]).all()
        clusters = transitive_clusters(count, pairs)
        linked = same.sum(1) > 1
        assert (clusters[~linked] == -1).all()
        assert ((clusters[linked, None] == clusters) == same[linked]).all()
    chain = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    assert not transitive_clusters(1000, chain[::-1]).any()


def test_ids_of_64_bits_are_numbered_and_minus_one_stays():
    signed = np.array([-5 * 10**18, 7 * 10**18, -1, -5 * 10**18, -2, 7 * 10**18])
    assert dense_clusters(signed).tolist() == [0, 2, -1, 0, 1, 2]
    unsigned = np.array([2**64 - 1, 3, 2**64 - 1, 2**33], np.uint64)
    assert dense_clusters(unsigned).tolist() == [2, 0, 2, 1]


def test_pairs_against_plain_loops():
    clusters = np.random.default_rng(0).integers(-1, 40, 300).astype(np.int32)
    expected = [
        [a, b]
        for cluster in range(40)
        for a in range(300)
        for b in range(a + 1, 300)
        if clusters[a] == clusters[b] == cluster
    ]
    assert cluster_pairs(clusters).tolist() == expected


def test_report_by_hand():
    clusters = np.array([0, 0, 1, 1, 1, -1, -1], np.int32)
    pairs = array([[0, 1], [2, 3], [3, 4], [2, 4], [0, 2], [5, 6]])
    report = cluster_report(clusters, pairs, np.array([1, 1, 1, 0, 0, 0], bool))
    assert report == {
        **{"questions": 7, "clusters": 2, "clustered_questions": 5, "largest_cluster": 3},
        **{"cluster_pairs": 4, "sizes": {"2": 1, "3": 1}, "duplicates": 3},
        **{"non_duplicates": 3, "non_duplicates_inside_clusters": 1},
    }
    for count in (0, 3):
        none = transitive_clusters(count, array([]))
        assert cluster_pairs(none).shape == (0, 2)
        report = cluster_report(none, array([]), np.zeros(0, bool))
        assert (report["clusters"], report["largest_cluster"], report["sizes"]) == (0, 0, {})
