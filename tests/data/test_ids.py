"""Ids of questions: whole numbers and strings, which go out as they came."""

import numpy as np

from qpr_jax.data.entries import check_id, check_ids, id_key, parse_key
from tests.refused import check_refused


def test_ids_that_print_alike_are_one_and_other_strings_are_ids_of_their_own():
    for number in (0, 10, 2**63 - 1):
        assert id_key(number) == id_key(str(number)) == number
        assert parse_key(str(number)) == parse_key(np.int64(number)) == number
    for text in ("007", "-1", "1.0", "7\n", "٣", str(2**63), "a", "\ud800"):
        assert id_key(text) == check_id(text, "") == text
    assert [parse_key(value) for value in ("", None, True, -1, 2**63, 1.5, [])] == [None] * 7
    for text in ("a" * 1024, "é" * 512, "\ud800" * 341):
        assert check_id(text, "") == text
        check_refused(check_id, (text + "é", "in line 3", "1 to 1,024 bytes, got .* in line 3"))


def test_ids_go_out_as_they_came():
    ids = ["7", "x", 8, np.int32(9), np.str_("y"), np.float64(10), 11.0, "\ud800"]
    found = check_ids(ids)
    assert found == ["7", "x", 8, 9, "y", 10, 11, "\ud800"]
    assert [type(value) for value in found] == [str, str, int, int, str, int, int, str]
    assert check_ids(np.array([5, 3], np.uint8)) == [5, 3]
    assert check_ids(np.array(["a", "5"])) == ["a", "5"]


def test_wrong_ids_are_refused():
    check_refused(
        check_ids,
        ([1, "1"], "`ids`: expected distinct ids, got 1 twice"),
        ([1, -1], "got -1 at position 1"),
        ([2**63, 1], "got 9223372036854775808 at position 0"),
        ([10**5000, 1], "got a large int at position 0"),
        ([1, 1.5], "got 1.5 at position 1"),
        ([2.0**53, 1], "got 9007199254740992.0 at position 0"),
        ([1, float("nan")], "got nan at position 1"),
        ([True, 1], "got True at position 0"),
        ([1, None], "got None at position 1"),
        ([1, b"x"], "got b'x' at position 1"),
        ([1, ""], "got '' at position 1"),
    )
