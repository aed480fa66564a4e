"""Questions by row: of the build, and changed since; in memory and in files."""

import pathlib
import sqlite3

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index import built_questions
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
    StoredQuestion("17", "an id that is a string", '{"answer": 3}'),
    StoredQuestion("\ud800", "यो", "\udfff"),
    StoredQuestion(17, "यो", ""),
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
    assert store.rows_of([3, "1", "", 2**62]).tolist() == [-1] * 4
    assert store.rows_of(np.array([17, 5])).tolist() == [6, -1]
    assert (len(store), store.rows, store.next_id) == (7, 7, 2**63)


def test_changes_come_back(store, tmp_path):
    new = [
        StoredQuestion(2, "new \ud800", "\ud83d"),
        StoredQuestion("17", "of a string"),
        StoredQuestion(9, ""),
    ]
    assert store.change(new, vectors(3), [1, 99]).tolist() == [7, 8, 9]
    assert store.change([StoredQuestion(2, "again")], vectors(1)).tolist() == [10]
    assert store.change([], vectors(0), ["\ud800"]).tolist() == []
    stores = [store]
    if store._file:
        stores.append(read(tmp_path))
    for same in stores:
        expected = [ODD[2], ODD[3], ODD[6], *new[1:], StoredQuestion(2, "again")]
        assert [*same] == expected
        assert same.rows_of([1, 2, "17", 17, 9, "\ud800"]).tolist() == [-1, 10, 8, 6, 9, -1]
        assert same.get([0, 7, 10, 1]) == [ODD[0], new[0], StoredQuestion(2, "again"), ODD[1]]
        assert same.counts() == (4, 3)
        assert (len(same), same.rows, same.sequence) == (6, 11, 6)
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
    assert found.added.tolist() == [7, 8]
    np.testing.assert_array_equal(found.vectors, vectors(2))
    assert sorted(found.removed.tolist()) == [0, 2]
    assert [*mine] == [*theirs]
    assert [len(rows) for rows in mine.changes_since(mine.sequence)] == [0, 0, 0]
    mine.change([], vectors(0), [8])
    assert theirs.changes_since(theirs.sequence).removed.tolist() == [7]
    assert [*mine] == [*theirs] == [*read(tmp_path)]


def test_a_damaged_text_is_an_error(tmp_path):
    store = build(tmp_path)
    (path,) = tmp_path.glob("texts-*")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"alone", b"Alone"))
    with pytest.raises(UserError, match="the text of id 1 differs from its CRC"):
        store.get([0])
    assert store.get([1]) == [ODD[1]]
    built = store._built
    built._rows = np.array(built._rows)
    built._rows[2, 1] = 5
    with pytest.raises(UserError, match="the text of id 5 differs from its CRC"):
        store.get([2])


def test_a_damaged_payload_is_an_error(tmp_path):
    build(tmp_path)
    (path,) = tmp_path.glob("questions-*")
    path.write_bytes(path.read_bytes().replace(b'"answer": 3', b'"answer": 4'))
    with pytest.raises(UserError, match="row 4 differs from its CRC"):
        read(tmp_path).get([4])


def test_repeated_ids_are_no_index(tmp_path):
    with pytest.raises(UserError, match="UNIQUE constraint failed"):
        write_questions([StoredQuestion("a", "1"), StoredQuestion("a", "2")], tmp_path, BUILD)


def test_every_flipped_bit_of_the_changes_is_an_error_or_harmless(tmp_path):
    store = build(tmp_path, ODD[:2])
    for number in range(30):
        new = [StoredQuestion(100 + number, f"question {number}", "pay")]
        store.change(new, vectors(1), [100 + number - 3] if number % 4 == 3 else [])
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
