import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.recipe import Recipe, check_recipe, fit_recipe, lists_for


@pytest.mark.parametrize(
    ("count", "asked", "probes", "lists"),
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
def test_lists_for(count, asked, probes, lists):
    assert lists_for(count, asked, probes=probes) == lists


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
    recipe = fit_recipe(Recipe(factory, assignments=3), count)
    assert recipe.factory == built
    assert recipe.assignments == (3 if built.startswith("IVF") else 1)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        *(
            (Recipe(factory), "`factory`: expected .*Flat.*, got")
            for factory in ("", "ivf20,Flat", "IVF0,Flat", "PQ4", "LSH", "IVF20", "OPQ4,IVF9,PQ4")
        ),
        (Recipe("IVF20,PQ5"), "PQ5 does not divide the 12 dimensions; use `factory=IVF20,PQ4`"),
        (Recipe("IVF20,PQ50"), "PQ50 does not divide the 12 dimensions; use `factory=IVF20,PQ12`"),
        (Recipe(metric="cosine"), "`metric`: expected one of l2, ip, got 'cosine'"),
        (Recipe(probes=0), "`probes`: expected a number 1 to 1000000, got 0"),
        (
            Recipe(probes=10**12),
            "`probes`: expected a number 1 to 1000000, got 1000000000000",
        ),
        (Recipe(probes=2.5), "`probes`: expected a number 1 to 1000000, got 2.5"),
        (Recipe(probes=True), "`probes`: expected a number 1 to 1000000, got True"),
        (Recipe(None), "`factory`: expected .*Flat"),
        ("Flat", "`recipe`: expected a Recipe, got 'Flat'"),
        (Recipe(assignments=0), "`assignments`: expected a number 1 to 1000000, got 0"),
        (Recipe("HNSW99999999"), "expected HNSW2 to HNSW1024, got 'HNSW99999999'"),
        (Recipe("HNSW1"), "expected HNSW2 to HNSW1024, got 'HNSW1'"),
        (Recipe("IVF20_HNSW1,Flat"), "expected HNSW2 to HNSW1024, got 'IVF20_HNSW1,Flat'"),
        (Recipe("IVF20_HNSW0,Flat"), "`factory`: expected .*Flat"),
    ],
)
def test_impossible_recipes_are_refused(recipe, message):
    with pytest.raises(UserError, match=message):
        check_recipe(recipe, 12)
