"""Recipes and the search of vectors, against a comparison with all of them."""

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpr_jax.errors import UserError
from qpr_jax.index import vectors as vectors_module
from qpr_jax.index.build import write_build
from qpr_jax.index.protocol import PAPER, IndexConfig, check_index_config
from qpr_jax.index.vectors import (
    Live,
    Vectors,
    distances_to,
    exact_top_k,
    fit_index_config,
    nearest,
)
from tests.index.folders import some

FACTORIES = [
    "auto",
    "Flat",
    "HNSW2",
    "HNSW16",
    *(f"IVF20,{codes}" for codes in ("Flat", "SQ4", "SQ6", "SQ8", "SQfp16", "SQbf16")),
    "IVF20,PQ3",
    "IVF20,PQ7x4fs",
    "IVF20_HNSW8,Flat",
]
COUNT = 12_000


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(COUNT, 7)).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def few_are_compared():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors_module, "COMPARED", 100)
        yield


def brute_force(queries, vectors, k, metric="l2"):
    """Distances float64 [n, k] of the nearest."""
    queries, vectors = queries.astype(np.float64), vectors.astype(np.float64)
    if metric == "ip":
        return np.sort(-queries @ vectors.T, axis=1)[:, :k]
    return np.sort(((queries[:, None] - vectors) ** 2).sum(axis=2), axis=1)[:, :k]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 5, 50]),
    st.integers(0, 40),
    st.integers(1, 45),
    st.sampled_from([("l2", 0), ("l2", 10_000), ("ip", 0)]),
)
def test_exact_search_equals_brute_force(seed, queries, count, k, space):
    """Also far from the origin."""
    rng, (metric, offset) = np.random.default_rng(seed), space
    vectors = (rng.integers(-3, 4, (count, 3)) + offset).astype(np.float32)
    asked = (rng.integers(-3, 4, (queries, 3)) + offset).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        # The greater batches are compared by products.
        patch.setattr(faiss.cvar, "distance_compute_blas_threshold", 20)
        distances, rows = exact_top_k(asked, vectors, k, metric)
    assert distances.shape == rows.shape == (queries, k)
    size = min(k, count)
    np.testing.assert_array_equal(distances[:, :size], brute_force(asked, vectors, size, metric))
    assert (rows[:, size:] == -1).all()
    assert np.isinf(distances[:, size:]).all()
    assert all(len({*some[:size]}) == size for some in rows.tolist())
    order = np.asfortranarray(rows)  # any memory order will do
    found = distances_to(asked, vectors, order, metric) if count else distances
    np.testing.assert_array_equal(found, distances)


def test_of_equal_distances_the_first_are_kept():
    first, then = (np.array([rows]) for rows in ([5, 3, 9], [1, 2, 4]))
    distances = np.array([[1, 1, 2]], np.float32)
    assert nearest(5, (distances, first), (distances, then))[1].tolist() == [[5, 3, 1, 2, 9]]


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_every_family_finds_the_nearest(points, metric):
    queries = points[:40] + np.float32(0.01)
    exact = brute_force(queries, points, 5, metric)
    for factory in FACTORIES:
        index = Vectors.build(IndexConfig(factory, metric, nprobe=20), points)
        distances, rows = index.search(queries, 5)
        found = distances <= exact[:, -1:] + 1e-4
        enough = 0.6 if factory in ("HNSW2", "IVF20,PQ7x4fs") else 0.95
        assert found.mean() > enough, factory
        np.testing.assert_allclose(distances, distances_to(queries, points, rows, metric))
    halves = points.astype(np.float16)
    index = Vectors.build(IndexConfig("IVF20,SQ8", nprobe=20, vectors="float16"), halves)
    distances, rows = index.search(halves[:20], 1)
    assert rows[:, 0].tolist() == [*range(20)]
    assert (distances == 0).all()


def test_a_search_reads_more_lists_until_it_has_enough(points):
    index = Vectors.build(IndexConfig("IVF200,Flat", nprobe=1), points)
    assert index.factory == "IVF200,Flat"
    distances, rows = index.search(points[:3], 500)
    assert (rows >= 0).all()
    everything = index.search(points[:3], COUNT)[1]
    assert (np.sort(everything, axis=1) == np.arange(COUNT)).all()
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF100,Flat", "IVF100,PQ7x4fs"])
def test_after_removals_and_additions(points, factory):
    index = Vectors.build(IndexConfig(factory, nprobe=10), points[:10_000])
    index.add(points[10_000:11_000])
    index.add(points[11_000:])
    for left in (0, 3, 600):
        gone = np.random.default_rng(1).permutation(COUNT)[: COUNT - left]
        live = Live(10_000, 10_000).changed(gone[:0], 2000).changed(gone[:900]).changed(gone)
        present = np.setdiff1d(np.arange(COUNT), gone)
        assert (live.rows, live.present) == (COUNT, left)
        distances, rows = index.search(points[:50], 10, live)
        size = min(10, left)
        assert np.isin(rows[:, :size], present).all()
        assert (rows[:, size:] == -1).all()
        if left:
            exact = brute_force(points[:50], points[present], size)
            assert (distances[:, :size] <= exact[:, -1:] + 1e-5).mean() > 0.95


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_changes_equal_brute_force_among_what_is_left(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    everything = rng.normal(size=(60, 3)).astype(np.float32)
    index = Vectors.build(IndexConfig(), everything[:20])
    live, removed = Live(20, 20), set()
    for _ in range(data.draw(st.integers(1, 5))):
        more = data.draw(st.integers(0, 8))
        gone = data.draw(st.lists(st.integers(0, live.rows - 1), max_size=10))
        index.add(everything[live.rows : live.rows + more])
        live = live.changed(np.array(gone, np.int64), more)
        removed |= {*gone}
        left = sorted({*range(live.rows)} - removed)
        distances, rows = index.search(everything[50:], 4, live)
        size = min(4, len(left))
        assert {*rows.ravel().tolist()} <= {*left, -1}
        exact = brute_force(everything[50:], everything[left], size)
        np.testing.assert_allclose(distances[:, :size], exact, rtol=1e-5)


def test_recall_is_measured_by_distance(points):
    copies = np.repeat(points[:20], 600, axis=0)
    assert Vectors.build(IndexConfig("IVF20,Flat", nprobe=1), copies).recall() == 1
    assert Vectors.build(IndexConfig(), copies).recall() == 1
    index = Vectors.build(IndexConfig("IVF200,Flat", nprobe=1), points)
    assert 0.1 < index.recall() < 0.9


def test_index_configs_are_fitted_to_few_vectors():
    for factory, count, fitted in (
        ("auto", 19_999, "Flat"),
        ("auto", 20_000, "IVF353,PQ151x4fs"),
        ("auto", 165_493, "IVF1017,PQ151x4fs"),
        ("IVF2000,Flat", 165_493, "IVF2000,Flat"),
        ("IVF2000,Flat", 5000, "IVF128,Flat"),
        ("IVF2000_HNSW32,SQ8", 5000, "IVF128_HNSW32,SQ8"),
        ("IVF2000,PQ50", 9000, "IVF230,Flat"),
        ("IVF20,PQ50x4fs", 700, "IVF17,PQ50x4fs"),
        ("IVF20,PQ50x4fs", 600, "IVF15,Flat"),
        ("IVF20,Flat", 77, "Flat"),
        ("HNSW32", 3, "HNSW32"),
    ):
        assert fit_index_config(IndexConfig(factory), count, 301) == fitted


WRONG = "SQ8 flat IVF0,Flat IVF20 IVF20,PQ0 HNSW1 HNSW IVF20,PQ9x8 PQ8 IVF20,RFlat OPQ8,IVF20,PQ8"


def test_other_index_configs_are_refused():
    check_index_config(PAPER, 300)
    factories = (*WRONG.split(), "", "IVF20,PQ9", "IVF9999999,Flat", None, 7)
    others = {"metric": "cosine"}, {"nprobe": 0}, {"nprobe": 1.0}, {"vectors": "int8"}
    for setting in (*({"factory": factory} for factory in factories), *others):
        with pytest.raises(UserError, match=f"`{next(iter(setting))}`: "):
            check_index_config(IndexConfig(**setting), 8)


def test_no_vectors_at_all():
    for factory in ("auto", "HNSW8", "IVF20,SQ8"):
        index = Vectors.build(IndexConfig(factory), np.zeros((0, 5), np.float32))
        distances, rows = index.search(np.ones((2, 5), np.float32), 3)
        assert (rows == -1).all()
        assert np.isinf(distances).all()
        index.add(np.ones((1, 5), np.float32))
        assert index.search(np.ones((1, 5), np.float32), 3)[1].tolist() == [[0, -1, -1]]


def test_codes_of_other_rows_are_refused(monkeypatch):
    """FAISS would read behind the vectors."""
    monkeypatch.setattr(vectors_module, "COMPARED", 0)
    rows = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    found = Vectors.build(IndexConfig("IVF4,Flat"), rows)
    found.codes.reset()
    found.codes.add_with_ids(rows, np.arange(400) + 10**6)
    with pytest.raises(UserError, match="rows without vectors"):
        found.search(rows[:3], 5)


@pytest.mark.parametrize(("value", "kind"), [(3e38, "float32"), (7e4, "float16")])
def test_vectors_that_would_overflow_are_refused(tmp_path, value, kind):
    """FAISS ends the process where it trains on them."""
    rows = np.ones((200, 8), np.float32)
    rows[7, 3] = value
    config = IndexConfig("IVF4,SQ8", vectors=kind)
    facts = {"encoder": "e" * 64, "dimension": 8}
    with pytest.raises(UserError, match="vectors of the encoder: expected"):
        write_build(tmp_path, some(200), lambda texts: rows[: len(texts)], config, **facts)
