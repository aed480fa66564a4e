"""How vectors are indexed: the recipe, checked, and fitted to the number of questions."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from qpr_jax.errors import UserError, ref
from qpr_jax.index.base import backend

METRICS = ("l2", "ip")
MAX_COUNT = 1_000_000  # what FAISS can count
_LINKS = range(2, 1025)  # what it can hold; with one link it ends the process
# What FAISS asks for: with fewer training points a list its k-means warns, more it samples down.
_MIN_POINTS, _MAX_POINTS = 39, 256
_PQ_POINTS = 256 * _MIN_POINTS
_FACTORY = re.compile(
    r"(?:IVF(?P<lists>[1-9]\d*)(?:_HNSW(?P<quantizer>[1-9]\d*))?,)?(?P<codes>Flat|SQ4|SQ6|SQ8|SQfp16|SQbf16|PQ(?P<parts>[1-9]\d*))"
    r"|HNSW(?P<links>[1-9]\d*)(?:,Flat)?"
)


@dataclass(frozen=True)
class Recipe:
    """How vectors are indexed.

    Attributes:
      factory: the kind of index, as FAISS names it (see `check_recipe`).
      metric: "l2" (squared Euclidean distance) or "ip" (inner product).
      probes: lists that a search reads, or, for HNSW, a sixteenth of the candidates it keeps.
      assignments: the nearest lists that a row is stored in. A neighbor just across the border of
        a list is then found too, for as many times the memory and more time a query.
    """

    factory: str = "IVF2000,Flat"
    metric: str = "l2"
    probes: int = 10
    assignments: int = 1


def check_recipe(recipe: Recipe, dimension: int) -> None:
    """Raise a UserError where vectors of this dimension cannot be indexed so."""
    if not isinstance(recipe, Recipe):
        raise UserError(f"`recipe`: expected a Recipe, got {recipe!r}")
    kind = backend(recipe.factory)
    if recipe.metric not in METRICS:
        raise UserError(f"expected one of l2, ip, got {recipe.metric!r}", setting="metric")
    for name, value in (("probes", recipe.probes), ("assignments", recipe.assignments)):
        if type(value) is not int or not 1 <= value <= MAX_COUNT:
            raise UserError(f"expected a number 1 to {MAX_COUNT}, got {value!r}", setting=name)
    kind.check(recipe, dimension)


def fit_recipe(recipe: Recipe, count: int) -> Recipe:
    """The recipe with no more lists, and no finer codes, than `count` rows can train."""
    return backend(recipe.factory).fit(recipe, count)


def check_faiss(recipe: Recipe, dimension: int) -> None:
    """Raise a UserError where the factory is none of FAISS, or does not fit the dimension."""
    match = _FACTORY.fullmatch(recipe.factory)
    if not match or (match["parts"] and not match["lists"]):
        raise UserError(
            "expected `Flat`, `SQ8`, `HNSW32`, or `IVF2000,` before `Flat`, `SQ8` or `PQ50` (with "
            f"numbers of your own), got {recipe.factory!r}",
            setting="factory",
        )
    for name in ("links", "quantizer"):
        if match[name] and int(match[name]) not in _LINKS:
            raise UserError(
                f"expected HNSW{_LINKS[0]} to HNSW{_LINKS[-1]}, got {match[0]!r}",
                setting="factory",
            )
    if match["parts"] and dimension % int(match["parts"]):
        parts = int(match["parts"])
        divisors = [n for n in range(1, dimension + 1) if dimension % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - parts))
        possible = recipe.factory.replace(match["codes"], f"PQ{nearest}")
        raise UserError(
            f"PQ{parts} does not divide the {dimension} dimensions",
            setting="factory",
            remedy=f"use {ref('factory', possible)}",
        )


def fit_faiss(recipe: Recipe, count: int) -> Recipe:
    """`fit_recipe` of the factories of FAISS."""
    lists = count_lists(recipe.factory)
    if not lists:
        return dataclasses.replace(recipe, assignments=1)
    fitted = lists_for(count, lists, probes=recipe.probes)
    if not fitted:
        return dataclasses.replace(recipe, factory="Flat", assignments=1)
    head, codes = recipe.factory.split(",")
    if codes.startswith("PQ") and count < _PQ_POINTS:
        codes = "Flat"
    factory = f"{head.replace(f'IVF{lists}', f'IVF{fitted}')},{codes}"
    return dataclasses.replace(recipe, factory=factory, assignments=min(recipe.assignments, fitted))


def count_lists(factory: str) -> int:
    """The lists that a factory of FAISS names, 0 for one without."""
    match = _FACTORY.fullmatch(factory)
    return int(match["lists"] or 0) if match else 0


def lists_for(count: int, asked: int = 2000, *, probes: int = 10) -> int:
    """The number of inverted lists for `count` questions; 0 stands for the exact index `Flat`.

    FAISS asks for 39 training points a list, so a small set gets count // 39 lists, if that is
    fewer than asked for. Where this leaves no more than `probes` lists, a search would read them
    all anyway, and `Flat` does so without training.
    """
    lists = min(asked, count // _MIN_POINTS)
    return lists if lists > probes else 0


def training_points(factory: str) -> int:
    """How many vectors train a factory of FAISS at most; one, for its dimension, if none do."""
    trained = factory.rpartition(",")[2].startswith(("SQ", "PQ"))
    return max(count_lists(factory) * _MAX_POINTS, _PQ_POINTS if trained else 1)
