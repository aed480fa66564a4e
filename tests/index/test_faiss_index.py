import faiss
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index import faiss_index as module
from qpr_jax.index.faiss_index import (
    Recipe,
    add_vectors,
    build_vectors,
    check_recipe,
    lists_for,
    recipe_for,
    search_vectors,
)

DIMENSION = 12
POINTS = np.random.default_rng(0).normal(size=(12_000, DIMENSION)).astype(np.float32)


def build(recipe: Recipe, count: int = 3000):
    return build_vectors(recipe, POINTS.__getitem__, count)


def nearest(queries: np.ndarray, count: int, k: int, metric: str = "l2", alive=None):
    """Distances and rows by brute force in float64."""
    queries, rows = queries.astype(np.float64), POINTS[:count].astype(np.float64)
    near = -queries @ rows.T
    if metric == "l2":
        near = 2 * near + (queries**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1)
    if alive is not None:
        near[:, ~alive] = np.inf
    order = np.argsort(near, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(near, order, axis=1), order


@pytest.mark.parametrize(
    ("count", "wanted", "probes", "lists"),
    [
        (165_493, 2000, 10, 2000),
        (78_000, 2000, 10, 2000),
        (77_999, 2000, 10, 1999),
        (429, 2000, 10, 11),
        (428, 2000, 10, 0),  # 10 lists, all of them probed
        (428, 2000, 9, 10),
        (1, 2000, 10, 0),
        (1_000_000, 8, 10, 0),
        (0, 2000, 10, 0),
    ],
)
def test_lists_for(count, wanted, probes, lists):
    assert lists_for(count, wanted, probes=probes) == lists


@pytest.mark.parametrize(
    ("factory", "count", "built"),
    [
        ("IVF2000,Flat", 200_000, "IVF2000,Flat"),
        ("IVF2000,Flat", 1000, "IVF25,Flat"),
        ("IVF2000,SQ8", 300, "Flat"),
        ("IVF4096,PQ50", 10_000, "IVF256,PQ50"),
        ("IVF4096,PQ50", 9000, "IVF230,Flat"),
        ("IVF4096_HNSW32,SQ8", 10_000, "IVF256_HNSW32,SQ8"),
        ("HNSW32", 3, "HNSW32"),
        ("SQ8", 3, "SQ8"),
    ],
)
def test_few_rows_get_a_smaller_recipe(factory, count, built):
    recipe = recipe_for(Recipe(factory, assignments=3), count)
    assert recipe.factory == built
    assert recipe.assignments == (3 if built.startswith("IVF") else 1)


# factory, the least recall, how far distances may be off, of those of plain vectors
FACTORIES = [
    ("Flat", 1, 1e-6),
    ("SQ8", 0.95, 0.02),
    ("SQfp16", 0.99, 1e-3),
    ("HNSW16", 0.9, 1e-6),
    ("IVF20,Flat", 0.9, 1e-6),
    ("IVF20,SQ8", 0.85, 0.02),
    ("IVF20_HNSW8,Flat", 0.9, 1e-6),
    ("IVF20,PQ6", 0.4, 0.8),
]


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize(("factory", "recall", "error"), FACTORIES)
def test_every_factory_finds_the_living_rows(factory, recall, error, metric, capfd):
    recipe = Recipe(factory, metric, probes=10, assignments=2 if "IVF" in factory else 1)
    count = 10_000 if "PQ" in factory else 3000
    index, told = build(recipe, count)
    assert "WARNING" not in "".join(capfd.readouterr())  # FAISS has enough training points
    queries = POINTS[-200:]
    alive = np.arange(count) % 3 > 0
    bits = np.packbits(alive, bitorder="little")
    for living, given in ((None, None), (alive, bits)):
        true_near, true = nearest(queries, count, 10, metric, living)
        near, at = search_vectors(index, recipe, queries, 10, given)
        assert near.dtype == np.float32
        assert at.dtype == np.int64
        assert (np.diff(near, axis=1) >= -1e-5).all()
        assert all(len(set(row)) == 10 for row in at.tolist())
        found = np.mean([len({*a} & {*b}) / 10 for a, b in zip(at, true, strict=True)])
        assert found >= recall
        assert abs(found - told) < 0.2
        same = at == true
        off = np.abs(near - true_near)[same] / np.abs(true_near[same])
        assert np.median(off) <= error
        if living is not None:
            assert living[at].all()
        # Every living row is found where all are asked for.
        expected = count if living is None else living.sum()
        every = search_vectors(index, recipe, queries[:2], count, given)[1]
        assert all(len({*row.tolist()} - {-1}) == expected for row in every)


@pytest.mark.parametrize("factory", ["Flat", "IVF20,Flat", "HNSW16", "IVF20,SQ8"])
def test_places_beyond_the_rows_are_empty(factory):
    recipe = Recipe(factory)
    index, _ = build(recipe, 1000)
    alive = np.arange(1000) < 3
    near, at = search_vectors(index, recipe, POINTS[:2], 7, np.packbits(alive, bitorder="little"))
    assert [sorted(row) for row in at[:, :3].tolist()] == [[0, 1, 2]] * 2
    assert (at[:, 3:] == -1).all()
    assert np.isinf(near[:, 3:]).all()
    assert search_vectors(index, recipe, POINTS[:0], 7)[1].shape == (0, 7)


@pytest.mark.parametrize("assignments", [2, 5])
def test_a_row_in_several_lists_is_found_once_and_more_often(assignments):
    true = nearest(POINTS[3000:3300], 3000, 10)[1]
    found = []
    for times in (1, assignments):
        recipe = Recipe("IVF50,Flat", probes=2, assignments=times)
        index, _ = build(recipe)
        assert index.ntotal == times * 3000
        at = search_vectors(index, recipe, POINTS[3000:3300], 10)[1]
        assert all(len(set(row)) == 10 for row in at.tolist())
        found.append(np.mean([len({*a} & {*b}) for a, b in zip(at, true, strict=True)]))
    assert found[0] < found[1]


def test_trains_on_a_sample_and_streams(monkeypatch):
    seen = []

    def watch(rows):
        seen.append(rows)
        return POINTS[rows]

    monkeypatch.setattr(module, "_CHUNK", 5000)
    build_vectors(Recipe("IVF11,Flat", probes=1), watch, 12_000)
    sample, queries, *chunks = seen
    assert len(sample) == 11 * 256
    assert len(queries) == 200
    assert [len(rows) for rows in chunks] == [5000, 5000, 2000]
    np.testing.assert_array_equal(np.concatenate(chunks), np.arange(12_000))


@pytest.mark.parametrize("factory", ["IVF40,Flat", "IVF40,SQ8"])
def test_shards_on_disk_make_the_same_index(factory, monkeypatch, tmp_path):
    recipe = Recipe(factory, assignments=2)
    whole, recall = build_vectors(recipe, POINTS.__getitem__, 12_000)
    monkeypatch.setattr(module, "_SHARD_BYTES", 50_000)
    monkeypatch.setattr(module, "_CHUNK", 700)
    parts, same = build_vectors(recipe, POINTS.__getitem__, 12_000, shards=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert parts.ntotal == 24_000
    assert same == recall
    for got, expected in zip(
        search_vectors(parts, recipe, POINTS[:500], 10),
        search_vectors(whole, recipe, POINTS[:500], 10),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF20,SQ8"])
def test_rows_may_be_added_later(factory):
    recipe = Recipe(factory, assignments=2 if "IVF" in factory else 1)
    index, _ = build(recipe, 1000)
    add_vectors(index, POINTS[1000:1500], np.arange(1000, 1500), recipe.assignments)
    at = search_vectors(index, recipe, POINTS[:1500], 1)[1][:, 0]
    assert (at == np.arange(1500)).mean() > 0.97


def test_recall_is_of_other_rows_by_exact_search():
    recipe = Recipe("IVF60,Flat", probes=1)
    index, recall = build(recipe)
    found = search_vectors(index, recipe, POINTS[:3000], 11)[1]
    true = nearest(POINTS[:3000], 3000, 11)[1]
    every = np.mean(
        [len({*a} & ({*b} - {i})) / 10 for i, (a, b) in enumerate(zip(found, true, strict=True))]
    )
    assert 0.2 < every < 0.8
    assert recall == pytest.approx(every, abs=0.05)
    assert build(Recipe("Flat"), 5)[1] == build(Recipe("Flat"), 1)[1] == 1


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        *(
            (Recipe(factory), "index `factory`: expected `Flat`, `SQ8`, `HNSW32`, or .*, got")
            for factory in ("", "ivf20,Flat", "IVF0,Flat", "PQ4", "LSH", "IVF20", "OPQ4,IVF9,PQ4")
        ),
        (Recipe("IVF20,PQ5"), "PQ5 does not divide the 12 dimensions; PQ4 does"),
        (Recipe("IVF20,PQ50"), "PQ50 does not divide the 12 dimensions; PQ12 does"),
        (Recipe(metric="cosine"), "index `metric`: expected one of l2, ip, got 'cosine'"),
        (Recipe(probes=0), "index `probes`: expected a number 1 to 1000000, got 0"),
        (
            Recipe(probes=10**12),
            "index `probes`: expected a number 1 to 1000000, got 1000000000000",
        ),
        (Recipe(probes=2.5), "index `probes`: expected a number 1 to 1000000, got 2.5"),
        (Recipe(probes=True), "index `probes`: expected a number 1 to 1000000, got True"),
        (Recipe(None), "index `factory`: expected `Flat`"),
        ("Flat", "`recipe`: expected a Recipe, got 'Flat'"),
        (Recipe(assignments=0), "index `assignments`: expected a number 1 to 1000000, got 0"),
        (Recipe("HNSW99999999"), "expected HNSW1 to HNSW1024, got 'HNSW99999999'"),
        (Recipe("IVF20_HNSW0,Flat"), "index `factory`: expected `Flat`"),
    ],
)
def test_impossible_recipes_are_refused(recipe, message):
    with pytest.raises(UserError, match=message):
        check_recipe(recipe, 12)


def test_what_faiss_makes_of_the_factories():
    index, _ = build(Recipe("IVF20_HNSW8,SQ8"), 1000)
    assert isinstance(index, faiss.IndexIVFScalarQuantizer)
    assert index.nlist == 20
