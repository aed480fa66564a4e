"""Questions by row: of the build, and changed since; in memory and in files."""

import pathlib
import sqlite3

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index import built_questions, records
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.built_questions import write_questions
from qpr_jax.index.changes_file import ChangesFile
from qpr_jax.index.question_store import QuestionStore

BUILD = "0" * 16
ODD = [
    StoredQuestion(1, "\ud800 alone"),
    StoredQuestion(2, "\ud83d\ude00 given apart"),
    StoredQuestion(4, "two\nlines\r\u2028\x00"),
    StoredQuestion(2**63 - 1, ""),
    StoredQuestion("017", "an id that is a string", {"answer": 3}),
    StoredQuestion("\ud800", "यो", {"\udfff": "\udfff यो", "more": [1.5, None, {"a": True}]}),
    StoredQuestion("17", "यो"),
    StoredQuestion("x" * 1024, "", {"": "p" * 70_000}),
]


def vectors(count: int) -> np.ndarray:
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3)


def changes(folder: pathlib.Path) -> ChangesFile:
    return ChangesFile(folder / f"changes-{BUILD}.sqlite")


def build(folder: pathlib.Path | None, questions=ODD) -> QuestionStore:
    built = write_questions(questions, folder, BUILD)
    if folder is None:
        return QuestionStore(built)
    ChangesFile.create(changes(folder).path)
    return QuestionStore(built, changes(folder))


def read(folder: pathlib.Path) -> QuestionStore:
    store = QuestionStore(built_questions.read_questions(folder, BUILD), changes(folder))
    store.changes_since(0)
    return store


@pytest.fixture(params=[True, False], ids=["in files", "in memory"])
def store(request, tmp_path):
    return build(tmp_path if request.param else None)


def test_any_strings_come_back(store):
    assert store.get(np.arange(len(ODD))) == ODD
    assert store.get([5, 0, 5]) == [ODD[5], ODD[0], ODD[5]]
    assert store.get([]) == []
    assert [*store] == ODD
    assert store.rows_of([question.id for question in ODD]).tolist() == [*range(len(ODD))]
    assert store.rows_of([3, "01", "", 2**62, "x"]).tolist() == [-1] * 5
    assert store.rows_of([17, 5, "1", "17", "5"]).tolist() == [6, -1, 0, 6, -1]
    assert store.rows_of([]).tolist() == []
    assert (len(store), store.rows, store.next_id) == (8, 8, 2**63)
    store.check_integrity()


def test_changes_come_back(store, tmp_path):
    new = [
        StoredQuestion("2", "new \ud800", {"\ud83d": 1}),
        StoredQuestion("017", "of a string"),
        StoredQuestion(9, ""),
    ]
    assert store.change(new, vectors(3), ["1", 99]).tolist() == [8, 9, 10]
    assert store.change([StoredQuestion(2, "again")], vectors(1)).tolist() == [11]
    assert store.change([], vectors(0), ["\ud800"]).tolist() == []
    stores = [store]
    if store._file:
        stores.append(read(tmp_path))
    for same in stores:
        expected = [ODD[2], ODD[3], *ODD[6:], *new[1:], StoredQuestion(2, "again")]
        assert [*same] == expected
        assert same.rows_of([1, 2, "017", 17, 9, "\ud800"]).tolist() == [-1, 11, 9, 6, 10, -1]
        assert same.get([0, 8, 11, 1]) == [ODD[0], new[0], StoredQuestion(2, "again"), ODD[1]]
        assert same.counts() == (4, 3)
        assert (len(same), same.rows, same.sequence) == (7, 12, 6)
        same.check_integrity()


def test_ids_are_never_given_twice(tmp_path):
    store = build(tmp_path, [StoredQuestion(3, "a"), StoredQuestion("x", "b")])
    assert store.next_id == 4
    store.change([StoredQuestion(20, "c")], vectors(1))
    store.change([], vectors(0), [20, 3])
    assert store.next_id == read(tmp_path).next_id == 21
    assert QuestionStore(write_questions([], None), next_id=7).next_id == 7


def test_what_another_process_changes_is_read_once(tmp_path):
    mine = build(tmp_path)
    theirs = read(tmp_path)
    theirs.change([StoredQuestion(8, "eight"), StoredQuestion(4, "four")], vectors(2), [1])
    found = mine.changes_since(0)
    assert found.added.tolist() == [8, 9]
    np.testing.assert_array_equal(found.vectors, vectors(2))
    assert sorted(found.removed.tolist()) == [0, 2]
    assert [*mine] == [*theirs]
    assert [len(rows) for rows in mine.changes_since(mine.sequence)] == [0, 0, 0]
    mine.change([], vectors(0), [8])
    assert theirs.changes_since(theirs.sequence).removed.tolist() == [8]
    assert [*mine] == [*theirs] == [*read(tmp_path)]


def test_a_damaged_text_is_an_error(tmp_path):
    store = build(tmp_path)
    (path,) = tmp_path.glob("texts-*")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"alone", b"Alone"))
    with pytest.raises(UserError, match="the record of row 0 differs from its CRC"):
        store.get([0])
    with pytest.raises(UserError, match="the record of row 0 differs from its CRC"):
        store.check_integrity()
    assert store.get([1]) == [ODD[1]]
    built = store._built
    built._rows = np.array(built._rows)
    built._rows[2, 1] ^= 1 << 40
    with pytest.raises(UserError, match="the record of row 2 differs from its CRC"):
        store.get([2])


@pytest.mark.parametrize("row", range(len(ODD)))
def test_every_flipped_bit_of_a_record_and_its_row_is_an_error(row):
    store = build(None)
    built = store._built
    texts, rows = built._texts, built._rows
    start, stop = rows[row : row + 2, 0].tolist()
    for at in {*range(start, min(stop, start + 40)), *range(max(start, stop - 40), stop)}:
        changed = bytearray(texts)
        changed[at] ^= 1 << at % 8
        built._texts = bytes(changed)
        with pytest.raises(UserError, match=f"the record of row {row} differs"):
            store.get([row])
    built._texts = texts
    for bit in range(64):
        for column in (1, 2):
            built._rows = rows.copy()
            built._rows[row, column] ^= np.int64(1 << bit) if bit < 63 else np.int64(-(2**63))
            with pytest.raises(UserError, match=f"the record of row {row} differs"):
                store.get([row])


def test_a_damaged_order_is_found_by_the_check(tmp_path):
    store = build(tmp_path)
    store._built._order = store._built._order[::-1].copy()
    with pytest.raises(UserError, match="rows are out of the order of their ids"):
        store.check_integrity()


@pytest.mark.parametrize(
    ("ids", "row"),
    [
        (["a", "a"], 1),
        ([3, 1, 2, 1, 3], 3),
        (["b", 7, "a", "7", "b"], 3),
        (["007", 7, "\ud800", "07", "\ud800"], 4),
        (["007", 7, "x", "X"], None),
    ],
)
def test_the_first_repeated_id_is_reported(tmp_path, ids, row):
    found = []
    write_questions(
        [StoredQuestion(value, "text", {"a": 1}) for value in ids],
        tmp_path,
        BUILD,
        check=lambda count, repeated: found.append((count, repeated)),
    )
    assert found == [(len(ids), None if row is None else (row, ids[row]))]


def test_strings_with_one_hash_are_told_apart(monkeypatch):
    class Digest:
        def digest(self):
            return bytes(8)

    monkeypatch.setattr(records.hashlib, "blake2b", lambda *_, **__: Digest())
    ids = ["b", 3, "a", "c", "d", 1]
    store = build(None, [StoredQuestion(value, f"text {value}") for value in ids])
    assert store.rows_of([*ids, "e", 2]).tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    store.change([StoredQuestion("c", "new")], vectors(1), ["a"])
    assert store.rows_of(ids).tolist() == [0, 1, -1, 6, 4, 5]
    built = write_questions([StoredQuestion(v, "") for v in ["a", "b", "a"]], None)
    assert built.first_repeated() == (2, "a")


def test_ids_in_order_take_no_order():
    def order(ids):
        return write_questions([StoredQuestion(value, "") for value in ids], None)._order

    build(None, [StoredQuestion("a", ""), StoredQuestion(2**63 - 1, "")]).check_integrity()
    assert order([0, 1, 5]).shape == order([]).shape == order(["9"]).shape == (0,)
    assert order([5, 1]).tolist() == [1, 0]
    assert order([*range(300), 7000, 500]).dtype == np.uint16


def test_a_numeral_that_came_as_a_string_stays_one(store):
    (found,) = store.get([6])
    assert found.id == "17"
    store.change([StoredQuestion(17, "as a number")], vectors(1))
    assert store.get(store.rows_of(["17"]))[0].id == 17


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([1], "expected a mapping of names to values, got list, of the id 3"),
        ({1: 2}, "expected names that are strings, got int, of the id 3"),
        ({"a": float("nan")}, "expected values of JSON .*, of the id 3"),
        ({"a": {1, 2}}, r"expected values of JSON \(got set\), of the id 3"),
        ({"a": b"x"}, r"expected values of JSON \(got bytes\)"),
        ({"a": np.zeros(2)}, r"expected values of JSON \(got ndarray\)"),
    ],
)
def test_payload_that_is_not_json_is_refused(store, payload, message):
    with pytest.raises(UserError, match=message):
        store.change([StoredQuestion(3, "x", payload)], vectors(1))
    assert len(store) == len(ODD)
    with pytest.raises(UserError, match=message):
        build(None, [StoredQuestion(3, "x", payload)])


def test_numbers_of_numpy_in_a_payload_are_plain_and_an_empty_one_is_none(store):
    store.change(
        [
            StoredQuestion(3, "x", {"a": np.float32(0.5), "b": np.int64(3)}),
            StoredQuestion(5, "", {}),
        ],
        vectors(2),
    )
    assert [question.payload for question in store.get([8, 9])] == [{"a": 0.5, "b": 3}, None]


def test_a_payload_is_the_caller_s_own(store):
    store.change([StoredQuestion(3, "x", {"a": [1]})], vectors(1))
    for row in (5, 8):
        store.get([row])[0].payload.clear()
        assert store.get([row])[0].payload


def test_every_flipped_bit_of_the_changes_is_an_error_or_harmless(tmp_path):
    store = build(tmp_path, ODD[:2])
    for number in range(30):
        new = [StoredQuestion(f"id {number}", f"question {number}", {"a": number})]
        store.change(new, vectors(1), [f"id {number - 3}"] if number % 4 == 3 else [])
    expected = [*store]
    del store
    path = changes(tmp_path).path
    data = path.read_bytes()
    errors = []
    for at in np.random.default_rng(0).integers(8 * len(data), size=400).tolist():
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            assert [*read(tmp_path)] == expected, at
        except UserError as error:
            errors.append(str(error))
    assert len(errors) > 50
    assert all(str(path) in error and "\n" not in error for error in errors)


@pytest.mark.parametrize("cut", [0, 1, 99, 100, 4095, 4096, 5000, 8191, -1, -4096])
def test_a_cut_off_file_of_changes_is_an_error(tmp_path, cut):
    store = build(tmp_path, ODD[:2])
    store.change([StoredQuestion(i, "question" * 50) for i in range(50)], vectors(50))
    path = changes(tmp_path).path
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    with pytest.raises(UserError, match=path.name):
        read(tmp_path)
    with pytest.raises(UserError, match=path.name):  # and no change is acknowledged
        store.changes_since(store.sequence)
    path.write_bytes(data)
    assert [*read(tmp_path)] == [*store]


def test_an_older_file_of_changes_is_an_error(tmp_path):
    store = build(tmp_path)
    path = changes(tmp_path).path
    store.change([StoredQuestion(8, "eight")], vectors(1))
    old = path.read_bytes()
    store.change([StoredQuestion(9, "nine")], vectors(1))
    path.write_bytes(old)
    with pytest.raises(UserError, match="expected the 2 changes that were read before, got others"):
        store.changes_since(store.sequence)
    path.unlink()
    with pytest.raises(UserError, match="the file is missing"):
        store.changes_since(store.sequence)


def test_a_file_that_another_holds_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("qpr_jax.index.database.TIMEOUT", 0.05)
    store = build(tmp_path)
    other = sqlite3.connect(changes(tmp_path).path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match="expected other processes to be done with it within "):
        store.change([StoredQuestion(8, "eight")], vectors(1))
    other.close()
    store.change([StoredQuestion(8, "eight")], vectors(1))
    assert [*read(tmp_path)] == [*store] == [*ODD, StoredQuestion(8, "eight")]
