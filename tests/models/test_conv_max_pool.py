import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from qpr_jax.models.cnn import Pooling, conv_max_pool
from tests.encoders.examples import padded


def maxima(table, ids, size, chunk=0, max_scores=1 << 23):
    def head(_, maxima, __):
        return maxima[0]

    how = Pooling(head, (size,), chunk, max_scores)
    return conv_max_pool(how, [jnp.asarray(table)], None, (ids,))


@pytest.mark.parametrize("chunk", [0, 3])
def test_gradient_of_the_maximum_is_that_of_plain_jax_and_of_differences(chunk):
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(9 * 5, 3)), jnp.float32)
    ids = padded([[1, 2, 3, 4], [8], [5, 6], [7, 7, 1, 2, 3, 8]], 6)
    weight = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)

    def plain(table):
        shifted = jnp.pad(ids, ((0, 0), (2, 2)))
        scores = sum(table.reshape(9, 5, 3)[shifted[:, k : k + 6], k] for k in range(5))
        own = (ids > 0)[:, :, None]
        return (jnp.where(own, scores, -jnp.inf).max(axis=1) * weight).sum()

    def ours(table):
        return (maxima(table, ids, 5, chunk) * weight).sum()

    (value, found), (expected, gradient) = (
        jax.jit(jax.value_and_grad(function))(table) for function in (ours, plain)
    )
    assert float(value) == pytest.approx(float(expected), abs=1e-6)
    np.testing.assert_allclose(found, gradient, atol=1e-6)
    jax.test_util.check_grads(jax.jit(ours), (table,), order=1, modes=["rev"], eps=1e-3)


def test_where_positions_tie_the_gradient_goes_to_the_first_and_nothing_has_no_maximum():
    assert maxima(jnp.zeros((10, 3)), jnp.zeros((0, 4), jnp.int32), 5).shape == (0, 3)
    ids = padded([[1, 2]], 2)
    gradient = jax.grad(lambda table: maxima(table, ids, 1).sum())(jnp.ones((3, 1)))
    assert gradient[:, 0].tolist() == [0, 1, 0]


def test_many_scores_are_computed_in_tiles_with_the_same_result():
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(9 * 3, 4)), jnp.float32)
    ids = padded(rng.integers(1, 9, size=(7, 5)).tolist(), 6)
    weight = jnp.asarray(rng.normal(size=(7, 4)), jnp.float32)

    def results(max_scores):
        def total(table):
            return (maxima(table, ids, 3, max_scores=max_scores) * weight).sum()

        return jax.jit(jax.value_and_grad(total))(table)

    parts = results(3 * 6 * 4)  # of three questions
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), parts, results(1 << 23))


def test_in_chunks_memory_does_not_grow_with_the_questions():
    table = jax.ShapeDtypeStruct((100 * 5, 64), jnp.float32)

    def total(table, ids, chunk):
        return maxima(table, ids, 5, chunk).sum()

    def temporaries(questions, chunk):
        ids = jax.ShapeDtypeStruct((questions, 12), jnp.int32)
        lowered = jax.jit(jax.grad(total), static_argnums=2).lower(table, ids, chunk)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    more = temporaries(4096, 64) - temporaries(2048, 64)
    assert more < 2048 * 4 * (64 + 12) * 1.5  # the result and the tokens of a question
    assert temporaries(4096, 64) < temporaries(4096, 0) / 3
