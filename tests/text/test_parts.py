import numpy as np
import pytest

from qpr_jax.text.base import NO_PARTS
from tests.parts import make_parts

ROWS = [[3, 1], [], [7], [3, 3, 9]]


def rows_of(parts):
    return [part.tolist() for part in np.split(parts.rows, parts.offsets[1:-1])][: parts.tokens]


@pytest.mark.parametrize("rows", [ROWS, [[]], [[5]], [[], [], [1]], [[1], [], []]])
def test_each_token_has_its_rows(rows):
    parts = make_parts(rows)
    assert parts.tokens == len(rows)
    assert rows_of(parts) == rows
    assert parts.rows.dtype == np.int32
    assert parts.offsets.dtype == np.int64


@pytest.mark.parametrize("tokens", [[0], [1], [3, 0, 3], [], [1, 1], [2, 1, 0, 3]])
def test_any_tokens_are_taken_in_their_order(tokens):
    taken = make_parts(ROWS).take(np.array(tokens, np.int64))
    assert rows_of(taken) == [ROWS[token] for token in tokens]
    assert taken.offsets[0] == 0
    assert taken.rows.dtype == np.int32


def test_joined_tokens_follow_the_others():
    first, more = make_parts(ROWS), make_parts([[2], [], [8, 8]])
    assert rows_of(first.joined(more)) == [*ROWS, [2], [], [8, 8]]
    assert rows_of(first.joined(more).take(np.array([6, 3]))) == [[8, 8], [3, 3, 9]]
    for joined in (first.joined(NO_PARTS), NO_PARTS.joined(first)):
        assert rows_of(joined) == ROWS
        assert (joined.rows.dtype, joined.offsets.dtype) == (np.int32, np.int64)


def test_no_parts_are_none():
    assert NO_PARTS.tokens == make_parts([]).tokens == 0
    assert make_parts([]).offsets.tolist() == [0]
    assert NO_PARTS.take(np.zeros(0, np.int64)).tokens == 0
    assert NO_PARTS.joined(NO_PARTS).tokens == 0
