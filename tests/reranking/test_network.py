import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.reranking.network import Network, check_network, predict, standardize
from qpr_jax.training.rerank_network import init_network, train_network


def lists(queries: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five hits each, of which the one with the largest product of two features is relevant."""
    features = np.random.default_rng(0).normal(5, 3, size=(queries, 5, 4)).astype(np.float32)
    features[..., 3] = 7  # never differs
    products = (features[..., 0] - 5) * (features[..., 1] - 5)
    relevant = products == products.max(axis=1, keepdims=True)
    valid = np.ones_like(relevant)
    valid[::3, 4] = False
    return features, relevant, valid


def test_equals_numpy():
    features, _, valid = lists()
    network = init_network(features, valid)
    network = network._replace(linear=np.arange(4, dtype=np.float32))
    rows = features.reshape(-1, 4)
    z = standardize(network, rows)
    assert np.abs(z).max() <= 4
    expected = z @ network.linear + np.maximum(z @ network.hidden, 0) @ network.output
    np.testing.assert_allclose(predict(network, rows), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(predict(network, rows[7:9]), predict(network, rows)[7:9])


def test_learns_and_repeats():
    features, relevant, valid = lists()
    start = init_network(features, valid)
    trained = train_network(start, features, relevant, valid, epochs=40)
    scores = predict(trained, features.reshape(-1, 4)).reshape(relevant.shape)
    scores[~valid] = -np.inf
    rows = (relevant & valid).any(axis=1)
    right = np.take_along_axis(relevant, scores.argmax(axis=1)[:, None], 1)[rows].mean()
    assert right > 0.8
    again = train_network(start, features, relevant, valid, epochs=40)
    for a, b in zip(trained, again, strict=True):
        np.testing.assert_array_equal(a, b)
    check_network(trained, 4, "here")


def test_padding_says_nothing():
    features, relevant, valid = lists()
    start = init_network(features, valid)
    other = np.where(valid[..., None], features, 100).astype(np.float32)
    for a, b in zip(start, init_network(other, valid), strict=True):
        np.testing.assert_array_equal(a, b)
    trained = [train_network(start, x, relevant, valid, epochs=2) for x in (features, other)]
    for a, b in zip(*trained, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", Network._fields)
def test_other_arrays_are_refused(name):
    features, _, valid = lists()
    network = init_network(features, valid)
    array = getattr(network, name)
    for damaged in (array[:-1], array.astype(np.float64), array * np.float32(np.nan)):
        with pytest.raises(UserError, match="here: expected"):
            check_network(network._replace(**{name: damaged}), 4, "here")
