import itertools

import faiss
import numpy as np
import pytest

from qpr_jax.index import faiss_index as module
from qpr_jax.index.exact import exact_top_k
from qpr_jax.index.faiss_index import FaissIndex
from qpr_jax.index.faiss_lists import add_rows
from qpr_jax.index.recipe import Recipe, fit_recipe

DIMENSION = 12
POINTS = np.random.default_rng(0).normal(size=(12_000, DIMENSION)).astype(np.float32)


def build(recipe: Recipe, count: int = 3000) -> FaissIndex:
    return FaissIndex.build(recipe, POINTS.__getitem__, count)


def nearest(queries: np.ndarray, count: int, k: int, metric: str = "l2", live=None):
    """Distances and rows by brute force in float64."""
    queries, rows = queries.astype(np.float64), POINTS[:count].astype(np.float64)
    near = -queries @ rows.T
    if metric == "l2":
        near = 2 * near + (queries**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1)
    if live is not None:
        near[:, ~live] = np.inf
    order = np.argsort(near, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(near, order, axis=1), order


# factory, the least recall, how far distances may be off, of those of plain vectors
FACTORIES = [
    ("Flat", 1, 1e-6),
    ("SQ8", 0.95, 0.02),
    ("SQfp16", 0.99, 1e-3),
    ("HNSW16", 0.9, 1e-6),
    ("IVF20,Flat", 0.9, 1e-6),
    ("IVF20,SQ8", 0.85, 0.02),
    ("IVF20_HNSW8,Flat", 0.9, 1e-6),
    pytest.param("IVF20,PQ6", 0.4, 0.8, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize(("factory", "recall", "error"), FACTORIES)
def test_every_factory_finds_the_rows_that_are_left(factory, recall, error, metric, capfd):
    recipe = Recipe(factory, metric, probes=10, assignments=2 if "IVF" in factory else 1)
    count = 10_000 if "PQ" in factory else 3000
    index = build(recipe, count)
    assert "WARNING" not in "".join(capfd.readouterr())  # FAISS has enough training points
    queries = POINTS[-200:]
    some = np.arange(count) % 3 > 0
    for live in (None, some):
        if live is not None:
            index.remove(np.flatnonzero(~live))
        expected = count if live is None else live.sum()
        assert len(index) == expected
        true_near, true = nearest(queries, count, 10, metric, live)
        near, rows = index.search(queries, 10)
        assert near.dtype == np.float32
        assert rows.dtype == np.int64
        assert (np.diff(near, axis=1) >= -1e-5).all()
        assert all(len(set(row)) == 10 for row in rows.tolist())
        found = np.mean([len({*a} & {*b}) / 10 for a, b in zip(rows, true, strict=True)])
        assert found >= recall
        assert abs(found - index.recall) < 0.2
        same = rows == true
        off = np.abs(near - true_near)[same] / np.abs(true_near[same])
        assert np.median(off) <= error
        if live is not None:
            assert live[rows].all()
        # Every row that is left is found where all are asked for.
        every = index.search(queries[:2], count)[1]
        assert all(len({*row.tolist()} - {-1}) == expected for row in every)


def clustered(count: int, dimension: int = 24, per_cluster: int = 20) -> np.ndarray:
    """Unit vectors in clusters, float32 [count, dimension]."""
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(count // per_cluster, dimension))
    noise = 0.4 * rng.normal(size=(count, dimension))
    points = centers[rng.integers(len(centers), size=count)] + noise
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def recall_at_10(index: FaissIndex, rows: np.ndarray, points: np.ndarray) -> float:
    """Share of the 10 nearest of 200 points that are found; `points` are those of `rows`."""
    found = index.search(points[:200], 10)[1]
    true = rows[exact_top_k(points[:200], points, 10, index.recipe.metric)[1]]
    return float(np.mean([len({*a} & {*b}) / 10 for a, b in zip(found, true, strict=True)]))


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize(
    ("factory", "assignments"),
    [
        *((factory, 1) for factory in ("Flat", "SQ8", "HNSW32", "HNSW4")),
        *(itertools.product(("IVF200,Flat", "IVF200,SQ8", "IVF200_HNSW32,Flat"), (1, 3))),
        *(itertools.product(("IVF200_HNSW32,SQ8", "IVF200_HNSW2,Flat"), (1, 3))),
    ],
)
def test_after_removals_it_finds_what_a_new_index_would(factory, assignments, metric):
    points = clustered(10_000)
    asked = Recipe(factory, metric, assignments=assignments)
    index = FaissIndex.build(fit_recipe(asked, len(points)), points.__getitem__, len(points))
    rows = np.arange(3, len(points), 20)
    index.remove(np.setdiff1d(np.arange(len(points)), rows))
    kept = points[rows]
    new = FaissIndex.build(fit_recipe(asked, len(rows)), kept.__getitem__, len(rows))
    expected = recall_at_10(new, np.arange(len(rows)), kept)
    assert recall_at_10(index, rows, kept) >= expected - 0.01
    every = index.search(points[:20], len(rows))[1]
    np.testing.assert_array_equal(np.sort(every, axis=1), np.tile(rows, (20, 1)))


def test_a_graph_over_the_lists_hides_no_row():
    # Two links a centroid leave most lists out of reach of the graph's search.
    index = build(Recipe("IVF70_HNSW2,Flat", probes=2))
    every = index.search(POINTS[:20], 3000)[1]
    np.testing.assert_array_equal(np.sort(every, axis=1), np.tile(np.arange(3000), (20, 1)))
    few = index.search(POINTS[:20], 500)[1]
    assert (few >= 0).all()


def test_rows_in_the_lists_of_others_are_coded_as_well_as_in_their_own():
    points = clustered(2000, 64, 1)
    recalls = [
        FaissIndex.build(Recipe("IVF50,SQ8", "l2", 50, times), points.__getitem__, 2000).recall
        for times in (1, 3)
    ]
    assert recalls[1] >= recalls[0] - 0.005
    assert recalls[1] > 0.98


@pytest.mark.parametrize("assignments", [1, 3])
def test_an_index_with_the_codes_of_version_0_2_is_searched_as_it_was_built(assignments, tmp_path):
    points, width = clustered(1000, 64, 1), 64
    old = faiss.index_factory(width, "IVF25,SQ8")
    old.train(points)
    add_rows(old, points, np.arange(1000), assignments)
    rows = old.search(points[:50], 1)[1]
    faiss.write_index(old, str(tmp_path / "old.faiss"))
    recipe = Recipe("IVF25,SQ8", "l2", 1, assignments)
    index = FaissIndex.read(tmp_path / "old.faiss", recipe, 1.0, width)
    found = index.search(points[:50], 1)[1]
    np.testing.assert_array_equal(found[:, 0], rows[:, 0])
    trained = faiss.vector_to_array(index.whole.sq.trained)
    built = FaissIndex.build(recipe, points.__getitem__, 1000)
    assert (trained == faiss.vector_to_array(built.whole.sq.trained)).all() == (assignments == 1)


@pytest.mark.parametrize("factory", ["Flat", "IVF20,Flat", "HNSW16", "IVF20,SQ8"])
def test_places_beyond_the_rows_are_empty(factory):
    index = build(Recipe(factory), 1000)
    index.remove(np.arange(3, 1000))
    near, at = index.search(POINTS[:2], 7)
    assert [sorted(row) for row in at[:, :3].tolist()] == [[0, 1, 2]] * 2
    assert (at[:, 3:] == -1).all()
    assert np.isinf(near[:, 3:]).all()
    assert index.search(POINTS[:0], 7)[1].shape == (0, 7)


@pytest.mark.parametrize("assignments", [2, 5])
def test_a_row_in_several_lists_is_found_once_and_more_often(assignments):
    true = nearest(POINTS[3000:3300], 3000, 10)[1]
    found = []
    for times in (1, assignments):
        recipe = Recipe("IVF50,Flat", probes=2, assignments=times)
        index = build(recipe)
        assert index.whole.ntotal == times * 3000
        at = index.search(POINTS[3000:3300], 10)[1]
        assert all(len(set(row)) == 10 for row in at.tolist())
        found.append(np.mean([len({*a} & {*b}) for a, b in zip(at, true, strict=True)]))
    assert found[0] < found[1]


def test_trains_on_a_sample_and_streams(monkeypatch):
    seen = []

    def watch(rows):
        seen.append(rows)
        return POINTS[rows]

    monkeypatch.setattr(module, "_CHUNK", 5000)
    FaissIndex.build(Recipe("IVF11,Flat", probes=1), watch, 12_000)
    sample, queries, *chunks = seen
    assert len(sample) == 11 * 256
    assert len(queries) == 200
    assert [len(rows) for rows in chunks] == [5000, 5000, 2000]
    np.testing.assert_array_equal(np.concatenate(chunks), np.arange(12_000))


@pytest.mark.parametrize("factory", ["IVF40,Flat", "IVF40,SQ8"])
def test_shards_on_disk_make_the_same_index(factory, monkeypatch, tmp_path):
    recipe = Recipe(factory, assignments=2)
    whole = build(recipe, 12_000)
    monkeypatch.setattr(module, "SHARD_BYTES", 50_000)
    monkeypatch.setattr(module, "_CHUNK", 700)
    parts = FaissIndex.build(recipe, POINTS.__getitem__, 12_000, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert parts.whole.ntotal == 24_000
    assert parts.recall == whole.recall
    for got, expected in zip(
        parts.search(POINTS[:500], 10), whole.search(POINTS[:500], 10), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF20,SQ8"])
def test_rows_may_be_added_later(factory):
    index = build(Recipe(factory, assignments=2 if "IVF" in factory else 1), 1000)
    index.add(np.arange(1000, 1500), POINTS[1000:1500])
    assert len(index) == 1500
    at = index.search(POINTS[:1500], 1)[1][:, 0]
    assert (at == np.arange(1500)).mean() > 0.97
    index.remove(np.array([1400, 3, 1400]))
    index.remove(np.array([3]))
    assert len(index) == 1498
    assert not {3, 1400} & {*index.search(POINTS[:1500], 1)[1][:, 0].tolist()}


def test_recall_is_of_other_rows_by_exact_search():
    index = build(Recipe("IVF60,Flat", probes=1))
    found = index.search(POINTS[:3000], 11)[1]
    true = nearest(POINTS[:3000], 3000, 11)[1]
    every = np.mean(
        [len({*a} & ({*b} - {i})) / 10 for i, (a, b) in enumerate(zip(found, true, strict=True))]
    )
    assert 0.2 < every < 0.8
    assert index.recall == pytest.approx(every, abs=0.05)
    assert build(Recipe("Flat"), 5).recall == build(Recipe("Flat"), 1).recall == 1


def test_what_faiss_makes_of_the_factories():
    index = build(Recipe("IVF20_HNSW8,SQ8"), 1000).whole
    assert isinstance(index, faiss.IndexIVFScalarQuantizer)
    assert index.nlist == 20


@pytest.mark.parametrize("factory", ["Flat", "IVF20,SQ8", "HNSW16"])
def test_written_and_read(factory, tmp_path):
    index = build(Recipe(factory, assignments=2 if "IVF" in factory else 1), 1000)
    index.save(tmp_path / "a.faiss")
    again = FaissIndex.read(tmp_path / "a.faiss", index.recipe, index.recall, DIMENSION)
    assert len(again) == 1000
    for got, expected in zip(again.search(POINTS, 5), index.search(POINTS, 5), strict=True):
        np.testing.assert_array_equal(got, expected)
