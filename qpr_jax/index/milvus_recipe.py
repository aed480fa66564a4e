"""Which index of Milvus a recipe means, by the words of FAISS."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from qpr_jax.errors import UserError
from qpr_jax.index.recipe import Recipe, check_recipe

_FACTORY = re.compile(
    r"IVF(?P<lists>[1-9]\d*),(?P<codes>Flat|SQ8|PQ(?P<parts>[1-9]\d*))"
    r"|HNSW(?P<links>[1-9]\d*)(,Flat)?|Flat"
)
_HAS = "Flat, IVF2000,Flat, IVF2000,SQ8, IVF2000,PQ50 or HNSW32 (with numbers of your own)"
_LISTS, _LINKS, _CANDIDATES = 65_536, range(2, 101), 32_768  # what Milvus holds
_EFFORT = 200  # candidates of HNSW while it is built


def milvus_recipe(recipe: Recipe, dimension: int, *, assignments_given: bool = True) -> Recipe:
    """The recipe that Milvus has; UserError for what it lacks.

    assignments_given: whether several lists a question are refused, or else one is taken.
    """
    if not isinstance(recipe, Recipe):
        raise UserError(f"`recipe`: expected a Recipe, got {recipe!r}")
    if recipe.assignments != 1:
        if assignments_given:
            raise UserError(
                f"expected 1, since Milvus has a question in one list, got {recipe.assignments}",
                setting="assignments",
                remedy="raise {probes} instead",
            )
        recipe = dataclasses.replace(recipe, assignments=1)
    _parse(recipe.factory)
    check_recipe(recipe, dimension)
    return recipe


def _parse(factory: str) -> re.Match[str]:
    """The parts of a factory; UserError for one that Milvus lacks."""
    match = _FACTORY.fullmatch(str(factory))
    lists, links = (int(match[n] or 0) if match else 0 for n in ("lists", "links"))
    if not match or lists > _LISTS or (links and links not in _LINKS):
        raise UserError(
            f"expected what Milvus has: {_HAS}, up to IVF{_LISTS} and HNSW{_LINKS[-1]}; got "
            f"{factory!r}",
            setting="factory",
        )
    return match


def index_parameters(recipe: Recipe) -> dict[str, Any]:
    """The index of a recipe of `milvus_recipe`, as of `Server.create`."""
    match = _parse(recipe.factory)
    kind, parameters = "FLAT", {}
    if match["lists"]:
        kind, parameters = "IVF_FLAT", {"nlist": int(match["lists"])}
        if match["codes"] == "SQ8":
            kind = "IVF_SQ8"
        elif match["parts"]:
            kind, parameters = "IVF_PQ", parameters | {"m": int(match["parts"]), "nbits": 8}
    elif match["links"]:
        kind, parameters = "HNSW", {"M": int(match["links"]), "efConstruction": _EFFORT}
    return {"index_type": kind, "metric_type": recipe.metric.upper(), "params": parameters}


def search_parameters(recipe: Recipe, k: int, *, wide: bool) -> dict[str, int]:
    """How a search of `k` hits reads the index; `wide`: all of it, or as much as Milvus can."""
    built = index_parameters(recipe)
    if built["index_type"] == "HNSW":
        return {"ef": min(_CANDIDATES, _CANDIDATES if wide else max(16 * recipe.probes, k))}
    if lists := built["params"].get("nlist"):
        return {"nprobe": lists if wide else min(recipe.probes, lists)}
    return {}
