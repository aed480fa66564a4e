"""Ranking trees in folds: honest scores, the same bits with any number of threads."""

import sys

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.reranking.trees import Forest, predict
from qpr_jax.training import boosting
from qpr_jax.training.boosting import (
    FOLDS,
    Lists,
    assign_folds,
    cross_fit_forests,
    learnable,
    reciprocal_ranks,
    suffices,
)

HITS = 10


def made_lists(queries=120, signal=True, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(queries * HITS, 4)).astype(np.float32)
    noisy = rows[:, 2] + 0.3 * rng.normal(size=len(rows)) if signal else rng.normal(size=len(rows))
    labels = (noisy > 1).astype(np.int8)
    folds = assign_folds(np.arange(queries) // 2, seed)
    no_folds = np.full(len(rows), -1)
    return Lists(rows, labels, np.arange(queries + 1) * HITS, folds, no_folds)


def out_of_fold(fitted, lists):
    """The score of each hit by the trees of its fold."""
    by_fold = np.stack([predict(forest, lists.features) for forest in fitted.forests])
    return by_fold[np.repeat(lists.folds, np.diff(lists.starts)), np.arange(len(lists.labels))]


def mean_rank(scores, lists):
    return reciprocal_ranks(scores, lists.labels, lists.starts).mean()


@pytest.fixture(scope="module")
def fitted():
    return cross_fit_forests(made_lists(), 0)


def test_scores_out_of_fold_find_what_there_is(fitted):
    lists = made_lists()
    by_chance = mean_rank(np.zeros(len(lists.labels)), lists)
    assert mean_rank(out_of_fold(fitted, lists), lists) > by_chance + 0.2
    assert np.argmax(fitted.importances) == 2
    assert fitted.importances.sum() == pytest.approx(1)


def test_scores_out_of_fold_find_nothing_where_there_is_nothing():
    lists = made_lists(signal=False)
    by_chance = mean_rank(np.zeros(len(lists.labels)), lists)
    assert mean_rank(out_of_fold(cross_fit_forests(lists, 0), lists), lists) < by_chance + 0.08


def test_folds_that_say_nothing_do_not_suffice():
    every = made_lists()
    assert suffices(every)
    few = every._replace(folds=every.folds % 3)  # as of a validation split of three clusters
    assert suffices(few)
    assert len(cross_fit_forests(few, 0).forests) == FOLDS + 1
    assert not suffices(every._replace(folds=every.folds % 2))
    hits = np.full(len(every.labels), True)
    assert not suffices(every.select(np.arange(120) < 49, hits))
    # Of each fold, only the relevant hits are left without the questions of the next two.
    owners = np.repeat(few.folds, HITS)
    hit_folds = np.where(few.labels, owners, (owners + 1) % 3)
    assert not suffices(few._replace(hit_folds=hit_folds))


def test_a_list_whose_hits_are_all_relevant_says_nothing():
    labels = np.array([1, 1, 0, 1, 0, 1], np.int8)
    starts = np.array([0, 1, 3, 5, 5, 6])
    assert learnable(labels, starts).tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads_gives_the_same_bits(fitted, threads, monkeypatch):
    monkeypatch.setattr(boosting, "cpu_count", lambda: threads)
    again = cross_fit_forests(made_lists(), 0)
    assert again.sizes == fitted.sizes
    for ours, theirs in zip(again.forests, fitted.forests, strict=True):
        for name in Forest._fields:
            assert (getattr(ours, name) == getattr(theirs, name)).all()


def test_the_queries_of_a_cluster_have_one_fold():
    clusters = np.repeat(np.random.default_rng(0).permutation(1000)[:100], 3)
    folds = assign_folds(clusters, 0)
    assert (folds.reshape(-1, 3) == folds[::3, None]).all()
    assert np.bincount(folds).tolist() == [60] * FOLDS
    assert (folds != assign_folds(clusters, 1)).any()


def test_reciprocal_ranks_by_hand():
    labels = np.array([0, 1, 1, 0, 0, 1], np.int8)
    starts = np.array([0, 3, 5, 6])
    scores = np.array([0.5, 0.1, 0.3, 1.0, 2.0, 0.0])
    assert reciprocal_ranks(scores, labels, starts).tolist() == [0.5, 0, 1]


def test_lists_of_different_lengths_and_without_relevant_hits():
    lists = made_lists()
    lists.labels[:HITS] = 0
    shorter = lists.select(np.full(120, True), np.arange(len(lists.labels)) % 7 != 0)
    assert np.isfinite(out_of_fold(cross_fit_forests(shorter, 0), shorter)).all()


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(UserError, match=r"libgomp1.*rerank\.kind"):
        boosting.require_lightgbm()
