"""Multiple negatives ranking: what it adds to SDML's path, and that all of that path is there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.losses import ranking_loss, sdml_loss
from tests.losses import references
from tests.losses.references import sdml_reference, slow


def unit(rows):
    """float64 rows at length 1, and the gradient in the rows of one in these."""
    rows = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, where=lengths > 0, out=np.zeros_like(rows))

    def pulled_back(gradient):
        along = (gradient * units).sum(axis=1, keepdims=True) * units
        return np.divide(gradient - along, lengths, where=lengths > 0, out=np.zeros_like(rows))

    return units, pulled_back


def reference(
    queries, candidates, clusters=None, *, similarity="cosine", similarity_scale=20.0, **options
):
    """Value and gradients as the formulas say, in float64."""
    x, y = np.asarray(queries, np.float64), np.asarray(candidates, np.float64)
    of_x, of_y = lambda gradient: gradient, lambda gradient: gradient
    if similarity == "cosine":
        (x, of_x), (y, of_y) = unit(x), unit(y)
    options = {"smoothing": 0.0, **options, "distance": "dot"}
    value, from_x, from_y = sdml_reference(similarity_scale * x, y, clusters, **options)
    return value, of_x(similarity_scale * from_x), of_y(from_y)


def compiled(loss):
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def with_options(**options):
    """ranking_loss as a function of queries, candidates and clusters."""
    return lambda x, y, clusters=None, **more: ranking_loss(
        x, y, clusters=clusters, **options, **more
    )


def check(loss, arguments, options, tolerance=1e-5):
    references.check(loss(*arguments), reference(*arguments, **options), tolerance)


@pytest.mark.parametrize(
    ("options", "extra", "clustered"),
    [
        ({}, 0, 0),
        ({"symmetric": True}, 8, 0),
        ({"symmetric": True, "smoothing": 0.2}, 8, 21),
        ({"similarity": "dot", "similarity_scale": 1.0}, 8, 13),
        (
            {"similarity": "dot", "similarity_scale": 2.0, "smoothing": 0.1, "symmetric": True},
            0,
            13,
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("tile", [slow(None), 5, slow("auto")])
def test_value_and_gradient_are_those_of_the_reference(options, extra, clustered, tile, batch):
    """All at once, in tiles of which the last is not full, and as chosen."""
    loss = compiled(with_options(**options, tile=tile))
    for offset in (0.0, 1.0):
        x, y, clusters = batch(13, 13 + extra, 7, offset=offset)
        check(loss, (x, y, clusters[:clustered]) if clustered else (x, y), options)


@pytest.mark.parametrize(
    "options",
    [{}, slow({"similarity": "dot", "similarity_scale": 1.0, "symmetric": True})],
    ids=str,
)
def test_a_batch_of_real_size(options, batch):
    check(compiled(with_options(**options)), batch(512, 600, 300), options)


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({"symmetric": True, "smoothing": 0.2, "tile": 3}, 1),
        *(slow({"symmetric": True, "smoothing": 0.2, "tile": 3}, count) for count in (2, 4)),
        ({"symmetric": True, "smoothing": 0.2, "tile": 3}, 8),
        *(slow({"similarity": "dot", "similarity_scale": 1.0}, count) for count in (1, 2, 4)),
        ({"similarity": "dot", "similarity_scale": 1.0}, 8),
        ({"tile": None, "symmetric": True}, 4),
    ],
    ids=str,
)
def test_mapped_over_devices_it_is_the_loss_of_the_global_batch(options, devices, mapped, batch):
    loss = mapped(with_options(**options), devices)
    expected = {name: value for name, value in options.items() if name != "tile"}
    check(loss, batch(16, 24, 10), expected)


def test_it_is_the_cross_entropy_of_the_cosines(batch):
    """As sentence-transformers writes it: the mean of both directions, or of one."""
    x, y, _ = batch(20, 26, 9)
    cosines = unit(x)[0] @ unit(y)[0].T
    for symmetric, sides in ((False, [cosines]), (True, [cosines, cosines[:, :20].T])):
        each = []
        for scores in sides:
            log_p = 20 * scores - np.log(np.exp(20 * scores).sum(axis=1, keepdims=True))
            each.append(-np.diag(log_p).mean())
        value = jax.jit(with_options(symmetric=symmetric))(x, y)
        assert float(value) == pytest.approx(np.mean(each), rel=1e-5)


def test_of_vectors_of_length_1_it_is_sdml_of_a_scale(batch):
    """|x - y|^2 is 2 - 2 x.y: the two losses are one function of other scores."""
    x, y, clusters = batch(20, 26, 9)
    options = {"smoothing": 0.3, "symmetric": True, "clusters": clusters}
    units = [jnp.asarray(np.sqrt(20 / 2) * unit(side)[0], jnp.float32) for side in (x, y)]
    expected = float(jax.jit(lambda x, y: sdml_loss(x, y, **options))(*units))
    value = jax.jit(lambda x, y: ranking_loss(x, y, similarity_scale=20.0, **options))(x, y)
    assert float(value) == pytest.approx(expected, rel=1e-5)


def test_vectors_of_zeros_have_a_similarity_of_0_and_no_slope():
    x = jnp.eye(3).at[1].set(0)
    y = jnp.eye(4)[:, :3]  # the last candidate is one of zeros
    check(compiled(with_options()), (x, y), {})
    value, gradients = compiled(with_options(similarity_scale=2.0))(0 * x, 0 * y)
    assert float(value) == pytest.approx(np.log(4))
    assert not np.asarray(gradients[0]).any()
    assert not np.asarray(gradients[1]).any()


def test_neither_length_counts_for_a_cosine(batch):
    x, y, _ = batch(9, 9, 5)
    loss = jax.jit(ranking_loss)
    assert float(loss(1e6 * x, 1e-6 * y)) == pytest.approx(float(loss(x, y)), rel=1e-5)


def test_half_precision_vectors_give_a_float32_loss(batch):
    x, y = (side.astype(jnp.bfloat16) for side in batch(8, 8, 16)[:2])
    value = jax.jit(with_options())(x, y)
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(reference(x, y)[0], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"similarity": "ssd"}, "expected `similarity` to be one of cosine, dot, got 'ssd'"),
        (
            {"similarity_scale": 0.0},
            r"`similarity_scale`: expected above 0 and finite, got 0\.0; 20 is usual",
        ),
        (
            {"similarity_scale": float("nan")},
            r"`similarity_scale`: expected above 0 and finite, got nan",
        ),
        ({"smoothing": 1.5}, r"expected `smoothing` from 0 to 1, got 1\.5"),
        ({"tile": 0}, 'expected `tile` to be "auto", None or 1 and more rows, got 0'),
        ({"clusters": jnp.zeros(4)}, r"expected integer `clusters`.*got float32 \(4,\)"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ranking_loss(jnp.zeros((2, 3)), jnp.zeros((4, 3)), **options)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"expected `queries` and `candidates` of one non-empty"):
        ranking_loss(jnp.zeros((4, 3)), jnp.zeros((2, 3)))
    with pytest.raises(UserError, match="`similarity_scale`"):
        ranking_loss(jnp.zeros((2, 3)), jnp.zeros((2, 3)), similarity_scale=-1.0)
