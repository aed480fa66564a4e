"""Arguments that a loss refuses, and the distances that others are built from."""

import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import (
    contrastive_loss,
    imitation_loss,
    ranking_loss,
    sdml_loss,
    similarities_loss,
    triplet_loss,
)
from qpr_jax.losses.distances import squared_distances

PAIRS = (jnp.zeros((2, 3)), jnp.zeros((4, 3)))
LABELED = (jnp.zeros((4, 3)), jnp.zeros((4, 3)), jnp.zeros(4))
TARGETS = (jnp.zeros((4, 3)), jnp.zeros((3, 3)))


@pytest.mark.parametrize(
    ("loss", "given", "options", "message"),
    [
        *((loss, PAIRS[::-1], {}, "one non-empty") for loss in (sdml_loss, ranking_loss)),
        (triplet_loss, PAIRS[::-1], {"negatives": "hard"}, "one non-empty"),
        (sdml_loss, (jnp.zeros((0, 4)),) * 2, {}, "one non-empty"),
        (sdml_loss, PAIRS, {"smoothing": 1.5}, r"`smoothing` from 0 to 1, got 1\.5"),
        (sdml_loss, PAIRS, {"distance": "dot"}, "`distance` to be one of ssd, euc, got 'dot'"),
        (sdml_loss, PAIRS, {"prior": "flat"}, "`prior` to be one of uniform, distance, got 'flat'"),
        (sdml_loss, PAIRS, {"clusters": np.zeros(3, int)}, r"of each candidate \(4,\) or of each"),
        (sdml_loss, PAIRS, {"clusters": jnp.zeros(4)}, r"integer `clusters`.*got float32 \(4,\)"),
        (ranking_loss, PAIRS, {"similarity": "ssd"}, "`similarity` to be one of cosine, dot"),
        (ranking_loss, PAIRS, {"smoothing": -1}, "`smoothing` from 0 to 1, got -1"),
        *(
            (ranking_loss, PAIRS, {"similarity_scale": scale}, "above 0 and finite, got")
            for scale in (0.0, -1.0, float("nan"))
        ),
        (triplet_loss, PAIRS, {"distance": "cosine"}, "`distance` to be one of ssd, euc"),
        (triplet_loss, PAIRS, {"negatives": "soft"}, "one of random, hard, hard_anchor"),
        (triplet_loss, PAIRS, {"margin": -1.0}, r"`margin` of at least 0, got -1\.0"),
        (triplet_loss, PAIRS, {}, 'expected a `key` with `negatives="random"`'),
        (contrastive_loss, LABELED, {"metric": "ssd"}, "`metric` to be one of cosine, euclidean"),
        (contrastive_loss, LABELED, {"margin": -1.0}, r"`margin`: expected at least 0 and finite"),
        (contrastive_loss, (*TARGETS, jnp.zeros(4)), {}, "`left` and `right` of one non-empty"),
        (contrastive_loss, (*LABELED[:2], jnp.zeros((4, 1))), {}, r"expected \(4,\), got \(4, 1\)"),
        (imitation_loss, TARGETS, {}, r"`targets`: expected \[n, d\] as `vectors`, got \[3, 3\]"),
        (similarities_loss, TARGETS, {}, r"`targets`: expected \[n, t\] for `vectors` \[n, d\]"),
        (similarities_loss, (jnp.zeros((1, 3)),) * 2, {}, "expected 2 and more, got 1"),
        (similarities_loss, LABELED[:2], {"temperature": 0.0}, "`temperature`: expected above 0"),
    ],
)
def test_mistakes_are_named(loss, given, options, message):
    with pytest.raises(ValueError, match=message):
        loss(*given, **options)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_distances_are_accurate_however_small(offset, share):
    """A few close pairs, and more than are computed from a list."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 150, 30)) + offset
    close = rng.random(150) < share
    y[close] = x[0] + 1e-3 * rng.normal(size=(close.sum(), 30))
    x[close] = x[0]
    x, y = x.astype(np.float32), y.astype(np.float32)
    exact = ((x[:, None].astype(np.float64) - y[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(jnp.asarray(x), jnp.asarray(y)), exact, rtol=2e-5)
