import array

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.ids import check_ids, first_repeated, number_entries, parse_id, refuse_repeated


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), ("7", 7), (" 7\t", 7), (2**63 - 1, 2**63 - 1), (f"{2**63 - 1}", 2**63 - 1)],
)
def test_ids_of_a_file(value, expected):
    assert parse_id(value) == expected


@pytest.mark.parametrize(
    "value",
    [None, "", "x", "-1", "1.0", "٣", "9" * 19, "0" * 20, -1, 2**63, 1.0, True, [1]],
)
def test_what_is_no_id_of_a_file(value):
    assert parse_id(value) is None


def test_the_last_ids_are_given_and_no_more():
    assert check_ids(None, 2, 2**63 - 2).tolist() == [2**63 - 2, 2**63 - 1]
    with pytest.raises(UserError, match="expected ids, got none, and fewer than 2 are left"):
        check_ids(None, 2, 2**63 - 1)
    assert check_ids(None, 0, 2**63).tolist() == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1], r"`ids`: expected one a question \(2\), got 1"),
        ([1, 1], "`ids`: expected distinct ids, got 1 twice"),
        ([1, -1], "`ids`: expected 0 to 9223372036854775807, got -1 at position 1"),
        ([2**63, 1], "got 9223372036854775808 at position 0"),
        ([1, 1.5], "`ids`: expected whole numbers, got 1.5 at position 1"),
        ([True, 1], "got True at position 0"),
        (["1", 1], "got '1' at position 0"),
    ],
)
def test_wrong_ids_are_refused(ids, message):
    with pytest.raises(UserError, match=message):
        check_ids(ids, 2, 0)


def test_ids_of_numpy_are_ids():
    assert check_ids(np.array([5, 3], np.uint8), 2, 0).tolist() == [5, 3]


def test_the_first_repeated_id():
    assert first_repeated(np.array([3, 1, 2, 1, 3])) == 3
    assert first_repeated(np.array([3, 1, 2])) is None
    assert first_repeated(np.zeros(0, np.int64)) is None
    with pytest.raises(UserError, match="questions, line 9: the id 3 stands twice"):
        refuse_repeated(np.array([3, 1, 3]), [2, 4, 9], "questions")


def test_all_entries_have_ids_or_none_has():
    lines = array.array("q")
    assert [*number_entries([(2, None, "a"), (5, None, "b")], lines, "f")] == [(0, "a"), (1, "b")]
    assert lines.tolist() == [2, 5]
    assert [*number_entries([(2, 7, "a")], lines, "f")] == [(7, "a")]
    with pytest.raises(UserError, match="f, line 3: expected an id, as in the rows before"):
        [*number_entries([(2, 7, "a"), (3, None, "b")], lines, "f")]
    with pytest.raises(UserError, match="f, line 3: expected no id, as in the rows before"):
        [*number_entries([(2, None, "a"), (3, 7, "b")], lines, "f")]
