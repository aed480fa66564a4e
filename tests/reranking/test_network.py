import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.reranking.network import Network, check_network, predict, standardize
from qpr_jax.training.boosting import Lists, reciprocal_ranks
from qpr_jax.training.rerank_network import init_network, train_network


def made_lists(queries: int = 80) -> Lists:
    """Four or five hits, of which the one with the largest product of two features is relevant."""
    counts = 5 - (np.arange(queries) % 3 == 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    features = np.random.default_rng(0).normal(5, 3, size=(starts[-1], 4)).astype(np.float32)
    features[:, 3] = 7  # never differs
    products = (features[:, 0] - 5) * (features[:, 1] - 5)
    best = np.maximum.reduceat(products, starts[:-1])
    labels = (products == np.repeat(best, counts)).astype(np.int8)
    none = np.full(len(labels), -1)
    return Lists(features, labels, starts, np.zeros(queries, int), none)


def test_equals_numpy():
    features = made_lists().features
    network = init_network(features)
    network = network._replace(linear=np.arange(4, dtype=np.float32))
    z = standardize(network, features)
    assert np.abs(z).max() <= 4
    expected = z @ network.linear + np.maximum(z @ network.hidden, 0) @ network.output
    np.testing.assert_allclose(predict(network, features), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(predict(network, features[7:9]), predict(network, features)[7:9])


def test_learns_and_repeats():
    lists = made_lists()
    start = init_network(lists.features)
    trained, weights = train_network(start, lists, epochs=40)
    ranks = reciprocal_ranks(predict(trained, lists.features), lists.labels, lists.starts)
    assert np.mean(ranks == 1) > 0.8
    assert not weights.any()
    again, _ = train_network(start, lists, epochs=40)
    for a, b in zip(trained, again, strict=True):
        np.testing.assert_array_equal(a, b)
    check_network(trained, 4, "here")


@pytest.mark.parametrize("name", Network._fields)
def test_other_arrays_are_refused(name):
    network = init_network(made_lists().features)
    array = getattr(network, name)
    for damaged in (array[:-1], array.astype(np.float64), array * np.float32(np.nan)):
        with pytest.raises(UserError, match="here: expected"):
            check_network(network._replace(**{name: damaged}), 4, "here")
