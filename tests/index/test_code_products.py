"""Products of codes are exact, of any number of codes, one query or two."""

import numpy as np
import pytest

from qpr_jax.index.code_products import write_products


@pytest.mark.parametrize("count", [1, 3, 4, 5, 18])
@pytest.mark.parametrize("queries", [1, 2])
def test_products_are_exact(count, queries):
    rng = np.random.default_rng(count)
    codes = rng.choice(np.array([-128, -127, 0, 1, 127], np.int8), (count, 64))
    coded = rng.choice(np.array([-32767, -2, 0, 1, 32767], np.int16), (queries, 64))
    codes[0], coded[0] = -128, -32767  # the greatest sum
    out = np.full((2, count + 1), 7, np.int32)
    write_products(codes, coded, out)
    exact = coded.astype(np.int64) @ codes.T.astype(np.int64)
    np.testing.assert_array_equal(out[:queries, :count], exact)
    assert (out[queries:] == 7).all()
    assert (out[:, count] == 7).all()
