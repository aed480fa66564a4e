"""The product of rows and a matrix in panels, against float64."""

import numpy as np
import pytest

from qpr_jax.encoders.matrix_product import multiply, to_panels

SHAPES = [(1, 1), (2, 16), (7, 17), (300, 15), (900, 384)]


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("features", "columns"), SHAPES)
@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 96, 97, 200])
def test_is_the_product_and_of_a_row_the_same_in_any_batch(count, features, columns):
    rows, matrix = normal(count, features), normal(features, columns)
    panels = to_panels(matrix)
    found = multiply(rows, panels)
    assert found.dtype == np.float32
    exact = rows.astype(np.float64) @ matrix.astype(np.float64)
    # Each of f sums rounds, by 2^-24 of what is summed.
    most = features * 2.0**-24 * (np.abs(rows).astype(np.float64) @ np.abs(matrix))
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= most).all()
    for start, stop in [(0, 1), (count // 2, count // 2 + 6), (count // 3, count)]:
        np.testing.assert_array_equal(multiply(rows[start:stop], panels), found[start:stop])


def test_what_is_not_finite_stays_in_its_row_and_column():
    rows, matrix = normal(20, 9), normal(9, 20)
    expected = multiply(rows, to_panels(matrix))
    rows[3, 4], matrix[2, 17] = np.nan, np.inf
    found = multiply(rows, to_panels(matrix))
    assert np.isnan(found[3]).all()
    assert not np.isfinite(found[:, 17]).any()
    found, expected = (np.delete(np.delete(a, 3, 0), 17, 1) for a in (found, expected))
    np.testing.assert_array_equal(found, expected)


def test_a_view_is_multiplied_as_it_is():
    rows, matrix = normal(30, 12), normal(12, 18)
    expected = multiply(rows, to_panels(matrix))
    np.testing.assert_array_equal(multiply(np.asfortranarray(rows), to_panels(matrix)), expected)
    np.testing.assert_array_equal(multiply(rows[::2], to_panels(matrix)), expected[::2])
