"""Unit vectors of rows of any length, wherever the project makes them."""

import itertools

import jax
import numpy as np

from qpr_jax.arrays import unit_vectors
from qpr_jax.models import unit_rows

NORMS = [1e-30, 1.0, 1e30]


WAYS = (jax.jit(unit_vectors), unit_rows)


def rows_of(norm):
    """Float32 rows of one norm, and in float64 the unit vectors of what they were rounded to."""
    rows = np.random.default_rng(0).normal(size=(9, 33))
    rows = (norm * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    exact = rows.astype(np.float64)
    return rows, exact / np.linalg.norm(exact, axis=1, keepdims=True)


def test_any_length_becomes_one():
    for norm, unit in itertools.product(NORMS, WAYS):
        rows, expected = rows_of(norm)
        np.testing.assert_allclose(unit(rows), expected, rtol=0, atol=2e-7)
    largest = np.array([[3.4e38, 0, 0], [2.6e38, -2.6e38, 0], [2.5e38, 1, 0]], np.float32)
    expected = [[1, 0, 0], [0.5**0.5, -(0.5**0.5), 0], [1, 0, 0]]
    for unit in WAYS:
        np.testing.assert_allclose(unit(largest), expected, rtol=0, atol=2e-7)


def test_zeros_stay_and_what_is_not_a_number_stays_so():
    rows = np.ones((4, 3), np.float32)
    rows[0], rows[1, 1], rows[2, 2] = 0, np.nan, np.inf
    for unit in WAYS:
        with np.errstate(invalid="ignore"):
            units = np.asarray(unit(rows))
        assert not units[0].any()
        assert not np.isfinite(units[1:3]).all(axis=1).any()
        np.testing.assert_allclose(units[3], 3**-0.5, rtol=1e-6)


def test_the_gradient():
    weights = np.random.default_rng(1).normal(size=(9, 33)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda rows: (weights * unit_vectors(rows)).sum()))
    for norm in NORMS:
        rows, units = rows_of(norm)
        along = (weights * units).sum(axis=1, keepdims=True)
        expected = weights - along * units  # times the norm
        found = norm * np.asarray(gradient(rows), np.float64)
        np.testing.assert_allclose(found, expected, atol=2e-6)
    assert not np.asarray(gradient(np.zeros((9, 33), np.float32))).any()
