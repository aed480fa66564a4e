"""Arguments that a loss refuses."""

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

PAIRS = (jnp.zeros((2, 3)), jnp.zeros((4, 3)))
LABELED = (jnp.zeros((4, 3)), jnp.zeros((4, 3)), jnp.zeros(4))
TARGETS = (jnp.zeros((4, 3)), jnp.zeros((3, 3)))


@pytest.mark.parametrize(
    ("loss", "given", "options"),
    [
        *((loss, PAIRS[::-1], {}) for loss in (sdml_loss, ranking_loss, triplet_loss)),
        (sdml_loss, (jnp.zeros((0, 4)),) * 2, {}),
        (sdml_loss, PAIRS, {"smoothing": 1.5}),
        (sdml_loss, PAIRS, {"distance": "dot"}),
        (sdml_loss, PAIRS, {"prior": "flat"}),
        (sdml_loss, PAIRS, {"clusters": np.zeros(3, int)}),
        (sdml_loss, PAIRS, {"clusters": jnp.zeros(4)}),
        (ranking_loss, PAIRS, {"smoothing": -1}),
        *((ranking_loss, PAIRS, {"similarity_scale": scale}) for scale in (0.0, float("nan"))),
        (triplet_loss, PAIRS, {"distance": "cosine"}),
        (triplet_loss, PAIRS, {"negatives": "soft"}),
        (triplet_loss, PAIRS, {"margin": -1.0}),
        (triplet_loss, PAIRS, {"key": None}),
        (contrastive_loss, LABELED, {"margin": -1.0}),
        (contrastive_loss, (*TARGETS, jnp.zeros(4)), {"left": None}),
        (contrastive_loss, (*LABELED[:2], jnp.zeros((4, 1))), {"labels": None}),
        (imitation_loss, TARGETS, {"targets": None}),
        (similarities_loss, TARGETS, {"targets": None}),
        (similarities_loss, (jnp.zeros((1, 3)),) * 2, {"vectors": None}),
        (similarities_loss, LABELED[:2], {"temperature": 0.0}),
    ],
)
def test_mistakes_are_named(loss, given, options):
    """`options` are what is wrong; None: an argument by position or one that is left out."""
    (name,) = options or ["queries"]
    options = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(ValueError, match=f"`{name}`"):
        loss(*given, **options)
