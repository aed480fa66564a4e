"""Gradient-boosted trees as arrays, and their sum for rows of features, compiled by numba.

The leaves of a tree are numbered from left to right. A row that goes right at a node cannot reach
the leaves of its left subtree, so a node is a threshold and a mask of the other leaves; the leaf of
a row is the first that no node excludes (QuickScorer, Lucchese et al., SIGIR 2015). Each node is
compared with many rows at once, without a branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from qpr_jax.errors import UserError
from qpr_jax.loops import compile_loop

MAX_LEAVES = 32  # the bits of a mask
_BLOCK = 64  # rows compared at once


class Forest(NamedTuple):
    """A sum of trees; a tree has one more leaf than nodes.

    Attributes:
      feature: int32 [nodes], the column that a node compares.
      threshold: float32 [nodes]; a row with a larger value goes right.
      mask: uint32 [nodes], a bit for each leaf that a row can still reach after going right.
      value: float64 [nodes + trees], the values of the leaves, tree after tree.
      starts: int32 [trees + 1], the first node of each tree.
    """

    feature: np.ndarray
    threshold: np.ndarray
    mask: np.ndarray
    value: np.ndarray
    starts: np.ndarray


TYPES = Forest(np.int32, np.float32, np.uint32, np.float64, np.int32)  # type: ignore[arg-type]


def predict(forest: Forest, features: np.ndarray) -> np.ndarray:
    """Sum the trees for each row of features, finite float32 [m, f]: float64 [m]."""
    features = np.ascontiguousarray(features, np.float32)
    sums = np.zeros(len(features))
    _add_trees(*forest, features, sums)
    return sums


def check_forest(forest: Forest, columns: int, where: str) -> None:
    """Raise a UserError unless the arrays are a forest over `columns` features."""
    starts, nodes = forest.starts, len(forest.feature)
    fits = (
        all(a.dtype == t and a.ndim == 1 for a, t in zip(forest, TYPES, strict=True))
        and len(starts) > 0
        and starts[0] == 0
        and starts[-1] == nodes == len(forest.threshold) == len(forest.mask)
        and ((np.diff(starts) >= 0) & (np.diff(starts) < MAX_LEAVES)).all()
        and len(forest.value) == nodes + len(starts) - 1
        and ((forest.feature >= 0) & (forest.feature < columns)).all()
        and np.isfinite(forest.threshold).all()
        and np.isfinite(forest.value).all()
    )
    if fits:
        # No node may exclude the last leaf of its tree, so every row reaches a leaf.
        last = np.repeat(np.uint32(1) << np.diff(starts).astype(np.uint32), np.diff(starts))
        fits = bool((forest.mask & last).all())
    if not fits:
        raise UserError(f"{where}: expected the arrays of a forest, got others", remedy=_REMEDY)


_REMEDY = "make or fetch the re-ranker again"


def parse_forest(trees: Sequence[Mapping[str, Any]]) -> Forest:
    """Convert LightGBM's `dump_model()["tree_info"]`; at most MAX_LEAVES leaves a tree."""
    features: list[int] = []
    thresholds: list[float] = []
    masks: list[int] = []
    values: list[float] = []
    starts = [0]
    for tree in trees:
        _append_tree(tree["tree_structure"], features, thresholds, masks, values)
        starts.append(len(features))
    exact = np.array(thresholds, np.float64)
    rounded = exact.astype(np.float32)
    # Features are float32: the largest float32 <= the threshold gives the same decisions.
    above = rounded > exact
    rounded[above] = np.nextafter(rounded[above], np.float32(-np.inf))
    arrays = (features, rounded, masks, values, starts)
    return Forest(*(np.array(a, t) for a, t in zip(arrays, TYPES, strict=True)))


def _append_tree(
    root: Mapping[str, Any],
    features: list[int],
    thresholds: list[float],
    masks: list[int],
    values: list[float],
) -> None:
    first = len(values)

    def visit(node: Mapping[str, Any]) -> None:
        if "leaf_value" in node:
            values.append(float(node["leaf_value"]))
            return
        if node["decision_type"] != "<=":
            raise ValueError(f"expected a numeric split, got {node['decision_type']!r}")
        features.append(int(node["split_feature"]))
        thresholds.append(float(node["threshold"]))
        masks.append(0)
        own, left = len(masks) - 1, len(values) - first
        visit(node["left_child"])
        excluded = (1 << (len(values) - first)) - (1 << left)
        masks[own] = ((1 << MAX_LEAVES) - 1) & ~excluded
        visit(node["right_child"])

    visit(root)
    if len(values) - first > MAX_LEAVES:
        raise ValueError(f"expected at most {MAX_LEAVES} leaves, got {len(values) - first}")


@intrinsic
def _first_bit(typing_context: Any, bits: Any) -> Any:
    """Return the position of the lowest set bit of a uint32: one instruction (cttz)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate


@compile_loop()
def _add_trees(
    feature: np.ndarray,
    threshold: np.ndarray,
    mask: np.ndarray,
    value: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Add the value of each tree for `rows`, float32 [m, f], to `sums`, float64 [m]."""
    count, width = rows.shape
    columns = np.zeros((width, _BLOCK), np.float32)
    reachable = np.empty(_BLOCK, np.uint32)
    every = np.uint32(0xFFFFFFFF)
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        for row in range(size):
            for column in range(width):
                columns[column, row] = rows[start + row, column]
        for tree in range(len(starts) - 1):
            reachable[:] = every
            for node in range(starts[tree], starts[tree + 1]):
                column, limit, left_over = feature[node], threshold[node], mask[node]
                # Over the whole block, so that the loop has a fixed length; rows from `size` on are
                # ignored.
                for row in range(_BLOCK):
                    reachable[row] &= every if columns[column, row] <= limit else left_over
            first = starts[tree] + tree  # leaf
            for row in range(size):
                leaf: int = _first_bit(reachable[row])  # type: ignore[call-arg]
                sums[start + row] += value[first + leaf]
