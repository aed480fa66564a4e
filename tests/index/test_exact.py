import numpy as np
import pytest

from qpr_jax.index.exact import ExactTopK, exact_top_k

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(70, 5)).astype(np.float32)
QUERIES = RNG.normal(size=(6, 5)).astype(np.float32)


def nearest(metric: str) -> np.ndarray:
    """Distances float64 [6, 70]."""
    if metric == "ip":
        return -(QUERIES.astype(np.float64) @ VECTORS.T)
    return ((QUERIES[:, None].astype(np.float64) - VECTORS) ** 2).sum(axis=2)


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("chunk", [1, 3, 64, 70])
def test_the_nearest_at_once_and_in_chunks(metric, chunk):
    true = nearest(metric)
    distances, rows = exact_top_k(QUERIES, VECTORS, 9, metric)
    np.testing.assert_array_equal(rows, np.argsort(true, axis=1)[:, :9])
    np.testing.assert_allclose(distances, np.sort(true, axis=1)[:, :9], atol=1e-5)
    assert (distances.dtype, rows.dtype) == (np.float32, np.int64)
    stream = ExactTopK(QUERIES, 9, metric)
    for start in range(0, 70, chunk):
        stream.add(1000 + np.arange(start, min(start + chunk, 70)), VECTORS[start : start + chunk])
    np.testing.assert_array_equal(stream.rows, rows + 1000)
    np.testing.assert_allclose(stream.distances, distances, atol=1e-5)


def test_places_beyond_the_vectors_are_empty():
    for distances, rows in (
        exact_top_k(QUERIES, VECTORS[:2], 4),
        exact_top_k(QUERIES, VECTORS[:0], 4),
    ):
        assert distances.shape == rows.shape == (6, 4)
        assert (rows[:, 2:] == -1).all()
        assert np.isinf(distances[:, 2:]).all()
    stream = ExactTopK(QUERIES, 4)
    stream.add(np.array([7]), VECTORS[:1])
    assert stream.rows[0].tolist() == [7, -1, -1, -1]
    assert exact_top_k(QUERIES[:0], VECTORS, 4)[1].shape == (0, 4)


def test_of_equal_distances_the_first_stays():
    stream = ExactTopK(np.zeros((1, 2), np.float32), 2)
    for row in range(5):
        stream.add(np.array([row]), np.ones((1, 2), np.float32))
    assert stream.rows.tolist() == [[0, 1]]


def test_a_key_decides_which_of_equal_distances_stay():
    for chunk in (1, 3, 9):
        stream = ExactTopK(
            np.zeros((2, 2), np.float32), 2, tie_key=[5, 1, 8, 2, 0, 4, 7, 3, 6].index
        )
        for start in range(0, 9, chunk):
            rows = np.arange(start, start + chunk)
            stream.merge(np.ones((1, chunk), np.float32), rows[None], np.array([1]))
        assert stream.rows[0].tolist() == [-1, -1]
        assert sorted(stream.rows[1].tolist()) == [3, 6]
