import itertools

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index import mining, pair_tasks
from qpr_jax.index.mining import close_pairs, closest_pairs


def all_pairs(vectors):
    """Every pair with its distance in float64, nearest first."""
    exact = vectors.astype(np.float64)
    pairs = [
        (float(((exact[a] - exact[b]) ** 2).sum()), a, b)
        for a, b in itertools.combinations(range(len(vectors)), 2)
    ]
    return sorted(pairs)


@pytest.fixture(params=[(4, 2), (7, 3), (8, 1000), (1000, 5), (1000, 1000)])
def tile(request, monkeypatch):
    set_tiles(monkeypatch, *request.param)


def set_tiles(monkeypatch, rows, others):
    """Compare as many vectors with as many others in a task."""
    monkeypatch.setattr(pair_tasks, "ROWS", rows)
    monkeypatch.setattr(pair_tasks, "OTHERS", others)


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_all_pairs_within_a_threshold_and_no_others(tile, offset):
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(41, 6)) + offset).astype(np.float32)
    vectors[17] = vectors[3]  # at distance 0
    every = all_pairs(vectors)
    threshold = (every[100][0] + every[101][0]) / 2
    found = close_pairs(vectors, threshold, most=1000)
    assert {*zip(found.first.tolist(), found.second.tolist(), strict=True)} == {
        (a, b) for distance, a, b in every if distance <= threshold
    }
    np.testing.assert_allclose(found.distances, [d for d, *_ in every[:101]], rtol=1e-5, atol=1e-12)
    assert (found.first[0], found.second[0], found.distances[0]) == (3, 17, 0)


@pytest.mark.parametrize("count", [1, 5, 300, 820, 5000])
def test_the_closest_pairs(tile, count):
    vectors = np.random.default_rng(1).normal(size=(41, 6)).astype(np.float32)
    found = closest_pairs(vectors, count)
    every = all_pairs(vectors)[:count]
    assert [*zip(found.first.tolist(), found.second.tolist(), strict=True)] == [
        (a, b) for _, a, b in every
    ]


def test_equal_vectors_are_pairs_like_others():
    vectors = np.zeros((5, 3), np.float32)
    assert len(closest_pairs(vectors, 7).first) == 7
    assert len(closest_pairs(vectors, 100).first) == 10
    assert len(close_pairs(vectors, 0.0, most=10).first) == 10


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_for_a_pair(rows):
    vectors = np.ones((rows, 3), np.float32)
    assert len(closest_pairs(vectors, 3).first) == 0
    assert len(close_pairs(vectors, 1.0, most=1).first) == 0


def test_more_pairs_than_wanted():
    with pytest.raises(UserError, match=r"at most 9 pairs within 1, got more; lower `threshold`"):
        close_pairs(np.zeros((5, 3), np.float32), 1.0, most=9)


def test_what_distances_from_products_are_off_loses_no_pair(monkeypatch):
    set_tiles(monkeypatch, 32, 64)
    vectors = np.random.default_rng(2).normal(size=(64, 32)).astype(np.float32) * 100
    vectors[::2] = vectors[1::2] + np.random.default_rng(3).normal(size=(32, 32)) * 0.01
    distances = closest_pairs(vectors, 100).distances
    for count, threshold in enumerate(distances, start=1):
        assert len(close_pairs(vectors, float(threshold), most=1000).distances) == count


def test_equal_distances_go_by_rows(monkeypatch):
    set_tiles(monkeypatch, 3, 2)
    found = closest_pairs(np.zeros((9, 2), np.float32), 4)
    assert found.first.tolist() == [0, 0, 0, 0]
    assert found.second.tolist() == [1, 2, 3, 4]


def test_vectors_that_are_no_numbers_are_refused():
    vectors = np.zeros((4, 2), np.float32)
    vectors[1] = np.nan
    with pytest.raises(UserError, match="expected finite numbers"):
        closest_pairs(vectors, 9)


def test_memory_is_bound_by_the_pairs_asked_for(monkeypatch):
    set_tiles(monkeypatch, 64, 8)
    monkeypatch.setattr(mining, "_SPARE", 0)
    sizes = []
    join = mining.join_pairs

    def join_and_count(parts):
        sizes.append(sum(len(part.first) for part in parts))
        return join(parts)

    monkeypatch.setattr(mining, "join_pairs", join_and_count)
    # Of many equal vectors no distance has only the pairs asked for.
    vectors = np.repeat(np.random.default_rng(4).normal(size=(5, 8)).astype(np.float32), 100, 0)
    assert len(closest_pairs(vectors, 50).distances) == 50
    assert max(sizes) <= 2 * 50 + 64 * 8  # of 24,750 pairs
