"""Trees and a network in folds, and the network's gradient."""

import numpy as np
import pytest

from qpr_jax.reranking.network import Network, check_network, predict
from qpr_jax.reranking.scorer import score_features, to_tensors
from qpr_jax.training import boosting, rerank_network
from qpr_jax.training.boosting import Lists, assign_folds, reciprocal_ranks
from qpr_jax.training.cross_fitting import cross_fit, fit_network, new_network


def made_lists(queries=60, seed=0):
    """Lists of 5 to 10 hits, relevant by a sum of two features that no single one shows."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(5, 11, queries)
    rows = rng.normal(size=(counts.sum(), 4)).astype(np.float32)
    labels = (rows[:, 1] + rows[:, 2] > 1.5).astype(np.int8)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Lists(rows, labels, starts, assign_folds(np.arange(queries) // 2, seed))


def test_a_network_learns_and_ignores_padding():
    lists = made_lists()
    every = np.ones(len(lists.folds), bool)
    start = new_network(lists, 0)
    check_network(start, 4, "here")
    network = fit_network(start, lists, every, epochs=15, seed=0)

    def score(network):
        found = predict(network, lists.features)
        return reciprocal_ranks(found, lists.labels, lists.starts).mean()

    assert score(network) > score(start) + 0.15
    assert score(network) > 0.8 * share_with_a_relevant_hit(lists)


def share_with_a_relevant_hit(lists):
    return np.mean(np.add.reduceat(lists.labels, lists.starts[:-1]) > 0)


def test_the_gradient_is_that_of_the_loss():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(3, 6, 5)).astype(np.float32)
    relevant, valid = rng.random((3, 6)) < 0.4, np.ones((3, 6), bool)
    relevant[:, 0], valid[1, 4:] = True, False
    relevant &= valid
    start = rerank_network.init_network(inputs, valid)
    weights = {name: getattr(start, name).astype(np.float64) for name in Network._fields[2:]}
    weights["output"] *= 5
    weights["linear"] = rng.normal(size=5)
    kept = rng.random((3, 6, len(start.bias))) >= 0.2

    def loss(weights):
        units = np.maximum(inputs @ weights["hidden"] + weights["bias"], 0) * kept / 0.8
        scores = inputs @ weights["linear"] + units @ weights["output"]
        scores = np.where(valid, scores, -1e9)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        together = np.log(np.where(relevant, np.exp(logs), 0).sum(axis=1))
        each = np.where(relevant, logs, 0).sum(axis=1) / relevant.sum(axis=1)
        return -(together + each).mean() / 2

    gradients = {name: np.zeros(array.shape, np.float32) for name, array in weights.items()}
    single = [array.astype(np.float32) for array in weights.values()]
    rerank_network._add_gradients(*single, inputs, relevant, valid, kept, *gradients.values())
    for name, array in weights.items():
        for _ in range(4):
            at = tuple(rng.integers(size) for size in array.shape)
            change = np.zeros_like(array)
            change[at] = 1e-5
            up, down = (loss(weights | {name: array + sign * change}) for sign in (1, -1))
            assert gradients[name][at] == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_scores_are_out_of_fold_and_the_bits_of_any_number_of_threads(monkeypatch):
    lists, found = made_lists(), []
    for threads in (1, 2):
        monkeypatch.setattr(boosting, "cpu_count", lambda threads=threads: threads)
        found.append(cross_fit(lists, new_network(lists, 0), 0))
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
