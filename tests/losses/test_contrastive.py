"""Hard pairs, labels, and numbers that are none."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.losses import contrastive_loss, online_contrastive_loss
from tests.losses import references
from tests.losses.cases import check, over_devices, pairs

LOSSES = pytest.mark.parametrize("loss", [contrastive_loss, online_contrastive_loss])


def batch(n):
    x, y, _ = pairs(n, n, 4)
    return x, y, np.random.default_rng(1).integers(0, 2, n)


@pytest.mark.parametrize("positives", [20, 1, 0])
def test_hard_pairs_are_chosen_over_all_devices(positives):
    """Labels of one kind on few devices, on one, and on none."""
    x, y, _ = pairs(48, 48, 6)
    labels = (np.arange(48) < positives).astype(int)
    loss = functools.partial(online_contrastive_loss, margin=1.1)
    expected = references.contrastive(x, y, labels, online=True, margin=1.1)
    check(over_devices(loss, 8, (x, y, labels)), expected)


@pytest.mark.parametrize(
    ("distances", "labels", "expected"),
    [
        # 0.4 of one meaning is farther than 0.3 of two, and 0.3 nearer; 0.35 is beyond 0.34.
        ([0.1, 0.4, 0.3, 0.6, 0.35], [1, 1, 0, 0, 0], (0.4**2 + 0.04**2) / 5),
        ([0.1, 0.3, 0.6], [1, 1, 1], 0.6**2 / 3),  # beyond the mean
        ([0.1, 0.2, 0.33], [0, 0, 0], (0.24**2 + 0.14**2) / 3),  # within it
        ([0.1, 0.3, 0.6], [1, 0, 0], 0.04**2 / 3),  # within the mean 0.45
        ([0.1, 0.3, 0.6], [1, 1, 0], 0.3**2 / 3),  # of the mean 0.2; 0.6 is not within 0.3
    ],
)
def test_only_the_hard_pairs_count(distances, labels, expected):
    cosines = 1 - np.array(distances)
    y = jnp.array(np.column_stack([cosines, np.sqrt(1 - cosines**2)]), jnp.float32)
    x = jnp.array([[1.0, 0.0]] * len(labels))
    value = online_contrastive_loss(x, y, jnp.array(labels), margin=0.34)
    assert float(value) == pytest.approx(expected, rel=1e-4)


def test_pairs_that_are_all_as_far_are_not_hard():
    for row in np.random.default_rng(0).normal(size=(40, 2, 5)).astype(np.float32):
        x, y = (np.tile(side, (13, 1)) for side in row)
        assert online_contrastive_loss(x, y, jnp.ones(13)) == 0


@LOSSES
def test_labels_are_numbers_or_truths(loss):
    left, right, labels = batch(12)
    expected = float(loss(left, right, labels))
    for kind in (bool, np.float32, np.int8):
        assert float(loss(left, right, jnp.asarray(labels.astype(kind)))) == expected
    assert float(loss(left, right, labels.tolist())) == expected
    for other in (-1, 0.9, np.nan):
        wrong = labels.astype(np.float32)
        wrong[5] = other
        with pytest.raises(ValueError, match=f"`labels` of 1 or 0, got {other}"):
            loss(left, right, wrong)
    with pytest.raises(ValueError, match="`labels` of 1 or 0"):
        loss(left, right, [str(label) for label in labels])


@LOSSES
def test_what_is_not_a_number_shows(loss):
    """In either side of a pair of either label, also if it is the only one of its label."""
    left, right, labels = batch(12)
    bad = left.at[3, 1].set(jnp.nan)
    for given in (labels, np.eye(12)[3], np.eye(12)[3] == 0):
        for sides in ((bad, right), (right, bad)):
            assert np.isnan(loss(*sides, given))
