"""Trees and a network in folds, and the network's gradient."""

import itertools

import numpy as np
import pytest

from qpr_jax.reranking.network import Network, check_network, predict
from qpr_jax.reranking.scorer import score_features, to_tensors
from qpr_jax.training import boosting, rerank_network
from qpr_jax.training.boosting import FOLDS, Lists, assign_folds, reciprocal_ranks
from qpr_jax.training.cross_fitting import cross_fit
from qpr_jax.training.rerank_network import WordRows, init_network, train_network


def made_lists(queries=60, seed=0):
    """Lists of 5 to 10 hits, relevant by a sum of two features that no single one shows."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(5, 11, queries)
    rows = rng.normal(size=(counts.sum(), 4)).astype(np.float32)
    labels = (rows[:, 1] + rows[:, 2] > 1.5).astype(np.int8)
    starts = np.concatenate([[0], np.cumsum(counts)])
    folds = assign_folds(np.arange(queries) // 2, seed)
    return Lists(rows, labels, starts, folds, rng.integers(-1, FOLDS, len(rows)))


def test_a_network_learns():
    lists = made_lists()
    start = init_network(lists.features)
    check_network(start, 4, "here")
    network, _ = train_network(start, lists, epochs=15)

    def score(network):
        found = predict(network, lists.features)
        return reciprocal_ranks(found, lists.labels, lists.starts).mean()

    assert score(network) > score(start) + 0.15
    assert score(network) > 0.8 * share_with_a_relevant_hit(lists)


def share_with_a_relevant_hit(lists):
    return np.mean(np.add.reduceat(lists.labels, lists.starts[:-1]) > 0)


def test_the_gradient_is_that_of_the_loss():
    rng = np.random.default_rng(0)
    starts = np.array([0, 6, 10, 16])
    inputs = rng.normal(size=(16, 5)).astype(np.float32)
    relevant = rng.random(16) < 0.4
    relevant[starts[:-1]] = True
    start = init_network(inputs)
    weights = {name: getattr(start, name).astype(np.float64) for name in Network._fields[2:]}
    weights["output"] *= 5
    weights["linear"] = rng.normal(size=5)
    kept = rng.random((16, len(start.bias))) >= 0.2
    terms = rng.normal(size=16)

    def loss(weights, terms):
        units = np.maximum(inputs @ weights["hidden"] + weights["bias"], 0) * kept / 0.8
        scores = inputs @ weights["linear"] + units @ weights["output"] + terms
        total = 0
        for first, stop in itertools.pairwise(starts):
            logs = scores[first:stop] - np.log(np.exp(scores[first:stop]).sum())
            own = logs[relevant[first:stop]]
            total -= (np.log(np.exp(own).sum()) + own.mean()) / 2
        return total / 3

    gradients = {name: np.zeros(array.shape, np.float32) for name, array in weights.items()}
    single = tuple(array.astype(np.float32) for array in weights.values())
    of_scores = np.empty(16, np.float32)
    batch = (inputs, relevant, starts, kept, terms.astype(np.float32))
    rerank_network._add_gradients(single, batch, tuple(gradients.values()), of_scores)
    for name, array in weights.items():
        for _ in range(4):
            at = tuple(rng.integers(size) for size in array.shape)
            change = np.zeros_like(array)
            change[at] = 1e-5
            up, down = (loss(weights | {name: array + s * change}, terms) for s in (1, -1))
            assert gradients[name][at] == pytest.approx((up - down) / 2e-5, abs=1e-6)
    for hit in range(16):
        change = 1e-5 * (np.arange(16) == hit)
        slope = (loss(weights, terms + change) - loss(weights, terms - change)) / 2e-5
        assert of_scores[hit] == pytest.approx(slope, abs=1e-6)


def test_word_weights_learn_what_no_feature_says():
    """Word 3 is in half of the hits, and these are relevant; words 4 to 40 say nothing."""
    rng, lists = np.random.default_rng(0), made_lists(400)
    labels = rng.integers(0, 2, len(lists.labels)).astype(np.int8)
    lists = lists._replace(labels=labels)
    rows = np.column_stack([np.where(labels, 3, 2), rng.integers(4, 40, len(labels))]).ravel()
    words = WordRows(rows.astype(np.int32), 2 * np.arange(len(labels) + 1))
    found = [
        train_network(init_network(lists.features), lists, epochs=5, words=words) for _ in range(2)
    ]
    weights = found[0][1]
    assert weights[3] - weights[2] > 4 * weights[4:40].std()
    assert not weights[40:].any()
    assert weights.tobytes() == found[1][1].tobytes()


def test_a_fold_learns_nothing_of_its_questions():
    lists = made_lists()
    known = lists.without(1, 2)
    assert not np.isin(known.folds, (1, 2)).any()
    assert not np.isin(known.hit_folds, (1, 2)).any()
    owners = np.repeat(np.arange(len(lists.folds)), np.diff(lists.starts))
    kept = ~np.isin(lists.folds[owners], (1, 2)) & ~np.isin(lists.hit_folds, (1, 2))
    np.testing.assert_array_equal(known.features, lists.features[kept])
    np.testing.assert_array_equal(known.labels, lists.labels[kept])
    counts = np.bincount(owners[kept], minlength=len(lists.folds))
    np.testing.assert_array_equal(np.diff(known.starts), counts[~np.isin(lists.folds, (1, 2))])


def test_scores_are_out_of_fold_and_the_bits_of_any_number_of_threads(monkeypatch):
    lists, found = made_lists(), []
    for threads in (1, 2):
        monkeypatch.setattr(boosting, "cpu_count", lambda threads=threads: threads)
        found.append(cross_fit(lists, init_network(lists.features), 0))
    one, two = found
    assert (one.scores == two.scores).all()
    for ours, theirs in zip([*one.scorers, one.shipped], [*two.scorers, two.shipped], strict=True):
        assert ours.network is not None
        for name, array in to_tensors(ours).items():
            assert (array == to_tensors(theirs)[name]).all()
    fold_of_hit = np.repeat(lists.folds, np.diff(lists.starts))
    for fold, scorer in enumerate(one.scorers):
        own = fold_of_hit == fold
        assert (score_features(scorer, lists.features[own]) == one.scores[own]).all()
