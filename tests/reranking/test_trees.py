"""Forests of arrays: equal to LightGBM's own prediction, whatever the shape of the trees."""

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.reranking.trees import Forest, check_forest, parse_forest, predict

lightgbm = pytest.importorskip("lightgbm", exc_type=ImportError)


def trained(leaves: int, trees: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(600, 5)).astype(np.float32)
    rows[:, 3] = rng.integers(0, 4, 600)  # ties
    labels = (rows[:, 0] + rows[:, 3] > 1.5).astype(int)
    settings = {"objective": "lambdarank", "num_leaves": leaves, "verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(rows, labels, group=[20] * 30, params={"min_data_in_leaf": 3})
    booster = lightgbm.train(settings | {"min_data_in_leaf": 3}, data, trees)
    return booster, rows


@pytest.mark.parametrize(("leaves", "trees"), [(2, 1), (15, 20), (32, 5)])
def test_equals_the_library(leaves, trees):
    booster, rows = trained(leaves, trees)
    forest = parse_forest(booster.dump_model()["tree_info"])
    check_forest(forest, 5, "here")
    at_thresholds = rows[: len(forest.threshold)].copy()
    count = len(at_thresholds)
    at_thresholds[np.arange(count), forest.feature[:count]] = forest.threshold[:count]
    for given in (rows, rows[:1], rows[:65], at_thresholds, np.zeros((0, 5), np.float32)):
        expected = booster.predict(given) if len(given) else np.zeros(0)
        np.testing.assert_allclose(predict(forest, given), expected, rtol=0, atol=1e-6)


def test_a_row_has_the_same_bits_in_any_company():
    booster, rows = trained(15, 20)
    forest = parse_forest(booster.dump_model()["tree_info"])
    together = predict(forest, rows)
    alone = np.concatenate([predict(forest, rows[i : i + 1]) for i in range(100)])
    assert (together[:100] == alone).all()


def test_a_tree_without_nodes_adds_its_value():
    tree = {"tree_structure": {"leaf_value": 0.25}}
    forest = parse_forest([tree, tree])
    check_forest(forest, 1, "here")
    assert predict(forest, np.zeros((3, 1), np.float32)).tolist() == [0.5] * 3


def test_more_leaves_than_bits_are_refused():
    tree = {"leaf_value": 1.0}
    for _ in range(32):
        tree = {
            "decision_type": "<=",
            "split_feature": 0,
            "threshold": 0.0,
            "left_child": {"leaf_value": 0.0},
            "right_child": tree,
        }
    with pytest.raises(ValueError, match="32 leaves"):
        parse_forest([{"tree_structure": tree}])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("feature", lambda a: a + 5),
        ("feature", lambda a: a.astype(np.int64)),
        ("threshold", lambda a: a * np.float32(np.nan)),
        ("mask", lambda a: a * 0),
        ("value", lambda a: a[1:]),
        ("starts", lambda a: a[::-1].copy()),
        ("starts", lambda a: a[:0]),
    ],
)
def test_damaged_arrays_are_refused(name, change):
    booster, _ = trained(7, 3)
    forest = parse_forest(booster.dump_model()["tree_info"])
    damaged = Forest(**forest._asdict() | {name: change(getattr(forest, name))})
    with pytest.raises(UserError, match="here: expected the arrays of a forest"):
        check_forest(damaged, 5, "here")
