"""Close pairs against all pairs by NumPy, and what more vectors than memory or lists allow do."""

import itertools
import re

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpr_jax.errors import UserError
from qpr_jax.evaluation.scores import closest_pairs
from qpr_jax.index.close_pairs import close_pairs, pair_distances

NEW_ROWS = {"all": (0, 1, 2), "across": (1,), "new": (1, 2)}  # of a pair


def brute_force(vectors, blocks=None, is_new=None, compare="all"):
    """All pairs that may be found, with distances in float64, nearest first."""
    exact = vectors.astype(np.float64)
    new = np.zeros(len(vectors), int) if is_new is None else is_new.astype(int)
    pairs = [
        (float(((exact[a] - exact[b]) ** 2).sum()), a, b)
        for a, b in itertools.combinations(range(len(vectors)), 2)
        if (blocks is None or blocks[a] == blocks[b]) and new[a] + new[b] in NEW_ROWS[compare]
    ]
    return sorted(pairs)


def found_in(found):
    """The pairs, each once and nearest first."""
    pairs = [*zip(found.pairs.first.tolist(), found.pairs.second.tolist(), strict=True)]
    assert len({*pairs}) == len(pairs)
    assert all(a < b for a, b in pairs)
    assert (np.diff(found.pairs.distances) >= 0).all()
    return {*pairs}


def test_pairs_as_brute_force_finds_them():
    rng = np.random.default_rng(1)
    centers = 3 * rng.normal(size=(8, 12))
    vectors = centers[rng.integers(0, 8, 300)] + 0.3 * rng.normal(size=(300, 12))
    vectors[150:155] = vectors[0]
    vectors = vectors.astype(np.float32)
    for number, compare in itertools.product((None, 3, 60), NEW_ROWS):
        blocks = None if number is None else rng.integers(0, number, 300)
        is_new = None if compare == "all" else rng.random(300) < 0.3
        every = brute_force(vectors, blocks, is_new, compare)
        count = len(every) // 20
        distance = (every[count - 1][0] + every[count][0]) / 2  # away from all pairs
        how = {"blocks": blocks, "is_new": is_new, "compare": compare}
        expected = {(a, b) for d, a, b in every if d <= distance}
        for exact in (1000, 40):
            found = close_pairs(vectors, distance, exact=exact, **how)
            pairs = found_in(found)
            assert pairs <= expected
            assert len(pairs) >= 0.99 * len(expected)
            assert found.exact == (exact == 1000 or number == 60)
            if found.exact:
                assert (pairs, found.missed) == (expected, 0)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 90),
    dimension=st.integers(1, 9),
    offset=st.sampled_from([0.0, 1.0, 10_000.0]),
    scale=st.sampled_from([1.0, 2.0**30, 2.0**-40]),
    blocks=st.sampled_from([None, 1, 2, 30]),
    compare=st.sampled_from(["all", "across", "new"]),
    seed=st.integers(0, 99),
)
def test_any_tables(count, dimension, offset, scale, blocks, compare, seed):
    rng = np.random.default_rng(seed)
    vectors = (rng.integers(-3, 3, (count, dimension)) + offset).astype(np.float32) * scale
    names = None if blocks is None else rng.integers(0, blocks, count)
    is_new = rng.random(count) < rng.random()
    nearest = brute_force(vectors, names, is_new, compare)
    distance = float(rng.integers(0, 9)) * scale**2
    found = close_pairs(vectors, distance, blocks=names, is_new=is_new, compare=compare)
    assert found_in(found) == {(a, b) for d, a, b in nearest if d <= distance}
    assert found.pairs.distances.tolist() == [d for d, *_ in nearest if d <= distance]
    first, second = found.pairs.first, found.pairs.second
    np.testing.assert_array_equal(pair_distances(vectors, first, second), found.pairs.distances)
    wanted = int(rng.integers(1, 60))
    closest = closest_pairs(vectors, wanted)
    nearest = brute_force(vectors, np.zeros(len(vectors), int), np.ones(len(vectors), bool), "all")
    assert found_in(closest) == {(a, b) for _, a, b in nearest[:wanted]}


def test_many_blocks_of_two():
    rng = np.random.default_rng(2)
    blocks = rng.permutation(np.repeat(np.arange(20_000), 2))
    found = close_pairs(np.zeros((40_000, 2), np.float32), 1.0, blocks=blocks)
    assert len(found.pairs.first) == 20_000
    assert (blocks[found.pairs.first] == blocks[found.pairs.second]).all()


def test_what_lists_miss_is_estimated():
    for dimension in [5, 20]:
        vectors = np.random.default_rng(3).normal(size=(6000, dimension)).astype(np.float32)
        distance = {5: 0.2, 20: 9.0}[dimension]
        whole = close_pairs(vectors, distance)
        found = close_pairs(vectors, distance, exact=1000)
        assert (whole.exact, found.exact) == (True, False)
        missed = 1 - len(found.pairs.first) / len(whole.pairs.first)
        assert missed < 0.01
        assert abs(found.missed - missed) <= max(0.005, missed / 2)
        assert found_in(found) <= found_in(whole)


def test_lists_of_vectors_that_are_all_alike():
    vectors = np.ones((500, 4), np.float32)
    vectors[:20] += np.random.default_rng(4).normal(size=(20, 4)).astype(np.float32)
    found = close_pairs(vectors, 1e-6, exact=100)
    assert len(found.pairs.first) == 480 * 479 // 2


def test_more_pairs_than_memory_holds_end_early_with_a_distance_that_fits():
    for exact in [10_000, 100]:
        vectors = np.random.default_rng(5).normal(size=(5000, 4)).astype(np.float32)
        every = len(close_pairs(vectors, 0.5).pairs.first)
        memory = 400 * every // 5
        with pytest.raises(UserError, match=r"about .* a max_distance of 0\.") as raised:
            close_pairs(vectors, 0.5, memory=memory, exact=exact)
        said = re.search(r"about ([0-9,]+) pairs", str(raised.value))[1]
        assert int(said.replace(",", "")) == pytest.approx(every, rel=0.1)
        distance = float(re.search(r"max_distance of ([0-9.]+)", str(raised.value))[1])
        fitting = close_pairs(vectors, distance, memory=memory, exact=exact)
        assert 0.05 * every < len(fitting.pairs.first) < 0.2 * every


def test_vectors_that_are_refused():
    with pytest.raises(UserError, match="give fewer questions"):
        close_pairs(np.zeros((300, 4), np.float32), 1.0, memory=4000)
    for bad in (np.nan, np.inf, 1e30):
        vectors = np.zeros((60, 4), np.float32)
        vectors[7, 1] = bad
        with pytest.raises(UserError, match="in row 7"):
            closest_pairs(vectors, 1)


@pytest.mark.parametrize("exact", [10_000, 100])
def test_few_rows_are_compared_at_once_where_all_are_close(exact, monkeypatch):
    """Else all pairs of the first rows would not fit, before they are counted."""
    sizes = []
    vectors = np.random.default_rng(6).normal(size=(5000, 3)).astype(np.float32)
    for kind in (faiss.IndexFlatL2, faiss.IndexIVFFlat):

        def note(self, queries, radius, search=kind.range_search):
            found = search(self, queries, radius)
            sizes.append(int(found[0][-1]))
            return found

        monkeypatch.setattr(kind, "range_search", note)
    with pytest.raises(UserError, match=r"about 1[12],"):
        close_pairs(vectors, 1e3, memory=2 * 10**9, exact=exact)
    assert max(sizes) < 1 << 23
