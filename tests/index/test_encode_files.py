"""Vectors in .npy and Parquet files: kills, other questions, other writers."""

import os

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from qpr_jax.errors import UserError
from qpr_jax.files import locked
from qpr_jax.index.encode_files import DONE, STATE, encode_parquet, encode_to_file
from qpr_jax.index.run import read_encoder
from tests.kills import killed_at
from tests.refused import check_refused
from tests.runs import write_encoder

QUESTIONS = [f"question {i}" for i in range(11)]


def encode(questions):
    return np.array([[len(q), int(q.split()[-1])] for q in questions], np.float32).reshape(-1, 2)


def write(path, questions=QUESTIONS, encode=encode, encoder="x"):
    how = {"dimension": 2, "encoder": encoder, "chunk": 3}
    return encode_to_file(path, questions, encode, **how)


def kill_after(calls):
    def encode_some(questions):
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise KeyboardInterrupt
        return encode(questions)

    return encode_some


def test_vectors_are_written(tmp_path):
    path = tmp_path / "deep" / "v.npy"
    for count in (0, 1, 3, 11, 11):
        assert write(path, QUESTIONS[:count]) == count
        np.testing.assert_array_equal(np.load(path, mmap_mode="r"), encode(QUESTIONS[:count]))
    assert sorted(os.listdir(path.parent)) == [".v.npy.lock", "v.npy"]
    said = "another process is writing it; wait for its end"
    with locked(path.parent / ".v.npy.lock"), pytest.raises(UserError, match=said):
        write(path)
    with pytest.raises(UserError, match=r"ends in \.npy"):
        write(tmp_path / "mine.csv")


def test_a_kill_leaves_no_file_and_the_same_call_goes_on(tmp_path):
    for calls in range(4):
        path, seen = tmp_path / f"{calls}.npy", []
        with pytest.raises(KeyboardInterrupt):
            write(path, encode=kill_after(calls))
        assert not path.exists()
        assert write(path, encode=lambda q, seen=seen: seen.extend(q) or encode(q)) == 11
        assert seen == QUESTIONS[3 * calls :]
        np.testing.assert_array_equal(np.load(path), encode(QUESTIONS))


def test_what_a_kill_left_belongs_to_no_other_questions(tmp_path):
    path = tmp_path / "v.npy"
    with pytest.raises(KeyboardInterrupt):
        write(path, encode=kill_after(2))
    said = "started with other questions or another encoder; remove the file"
    others = (["question 5", *QUESTIONS[1:]], QUESTIONS[:2], QUESTIONS[:5])
    check_refused(lambda some: write(path, some), *((some, said) for some in others))
    check_refused(lambda encoder: write(path, encoder=encoder), ("y", said))
    part = tmp_path / ".v.npy.part"
    part.write_bytes(part.read_bytes()[:-1])  # cut: it starts again
    assert write(path) == 11


ROWS = 70


def write_questions(folder, **more):
    """Two files of questions, of four row groups, with ids; all their rows."""
    table = pyarrow.table(
        {
            "id": [f"q {i}" for i in range(ROWS)],
            "question": [f"how to cook rice {i} é" for i in range(ROWS)],
            "tags": [["a", None] if i % 2 else None for i in range(ROWS)],
            **more,
        }
    )
    folder.mkdir(parents=True)
    parquet.write_table(table.slice(0, 40), folder / "a.parquet", row_group_size=16)
    parquet.write_table(table.slice(40), folder / "b.parquet")
    (folder / "_SUCCESS").touch()
    return table


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path / "questions")


def check(folder, questions, run):
    """The folder holds all rows in their order, with the vectors of the encoder."""
    found = parquet.read_table(folder)
    assert found.drop_columns("vector").equals(questions)
    vectors = np.stack(found["vector"].to_numpy())
    encoder = read_encoder(run)
    np.testing.assert_array_equal(vectors, encoder.encode(questions["question"].to_pylist()))
    kind = found.schema.field("vector").type
    assert (kind.list_size, kind.value_type) == (encoder.dimension, pyarrow.float32())
    assert (folder / DONE).exists()


def modified(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def test_all_columns_are_kept_with_the_vectors_in_order(tmp_path, questions, encoder_run):
    folders = tmp_path / "questions", tmp_path / "out"
    assert encode_parquet(*folders, encoder_run) == ROWS
    check(folders[1], questions, encoder_run)
    parts = ("00000-00000", "00000-00001", "00000-00002", "00001-00000")
    assert sorted(modified(folders[1])) == [f"part-{part}.parquet" for part in parts]
    write_encoder(tmp_path / "other", seed=1)
    check_refused(
        lambda run, skip: encode_parquet(*folders, run, skip_bad_rows=skip),
        (tmp_path / "other", False, "begun with another encoder.*name another folder"),
        (encoder_run, True, "begun with another skip_bad_rows.*name another folder"),
    )


def test_a_call_after_a_kill_writes_what_is_missing(tmp_path, questions, encoder_run):
    for at in range(4):
        out = tmp_path / f"out {at}"
        with killed_at(at, ".parquet"):
            encode_parquet(tmp_path / "questions", out, encoder_run)
        assert not (out / DONE).exists()
        (out / ".part-00000-00002.parquet-12345678").write_text("half")
        before = modified(out)
        assert len(before) == at
        assert encode_parquet(tmp_path / "questions", out, encoder_run) == ROWS
        assert before.items() <= modified(out).items()
        assert {*os.listdir(out)} == {STATE, DONE, ".lock", *modified(out)}
        check(out, questions, encoder_run)


def test_parts_whose_source_changed_are_written_again(tmp_path, questions, encoder_run):
    folder, out = tmp_path / "questions", tmp_path / "out"
    encode_parquet(folder, out, encoder_run)
    before = modified(out)
    values = ["how to cook rye", *questions["question"].to_pylist()[1:]]
    changed = questions.set_column(1, "question", [values])
    parquet.write_table(changed.slice(0, 40), folder / "a.parquet", row_group_size=16)
    encode_parquet(folder, out, encoder_run)
    check(out, changed, encoder_run)
    same = {part for part, time in modified(out).items() if time == before[part]}
    assert same == {"part-00001-00000.parquet"}
    parquet.write_table(changed.slice(0, 16), folder / "a.parquet")
    assert encode_parquet(folder, out, encoder_run) == 46
    assert sorted(modified(out)) == ["part-00000-00000.parquet", "part-00001-00000.parquet"]


def test_a_row_without_a_question_is_named_or_left_out(tmp_path, encoder_run):
    texts = [f"what is rice {i}" for i in range(ROWS)]
    texts[20], texts[21] = None, "  "
    write_questions(tmp_path / "questions", text=texts)
    how = {"text_column": "text"}
    with pytest.raises(UserError, match=r"a.parquet, row 4 of row group 1: expected.*got None"):
        encode_parquet(tmp_path / "questions", tmp_path / "out", encoder_run, **how)
    how |= {"skip_bad_rows": True}
    rows = encode_parquet(tmp_path / "questions", tmp_path / "skipped", encoder_run, **how)
    assert rows == ROWS - 2
    found = parquet.read_table(tmp_path / "skipped")["text"].to_pylist()
    assert found == [text for text in texts if text and text.strip()]


def test_what_is_wrong_is_said_before_anything_is_written(tmp_path, encoder_run):
    (tmp_path / "empty").mkdir()
    write_questions(tmp_path / "mixed")
    parquet.write_table(pyarrow.table({"question": ["a"]}), tmp_path / "mixed" / "c.parquet")
    write_questions(tmp_path / "cut")
    (tmp_path / "cut" / "b.parquet").write_bytes(b"PAR1")
    write_questions(tmp_path / "named", vector=range(ROWS))
    write_questions(tmp_path / "plain")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    check_refused(
        lambda folder, out: encode_parquet(tmp_path / folder, tmp_path / out, encoder_run),
        ("empty", "out", "found none"),
        ("mixed", "out", "c.parquet: expected the columns of .*a.parquet"),
        ("cut", "out", "b.parquet: expected a Parquet file"),
        ("named", "out", "the column `vector` is there already"),
        ("plain", "mine", "expected a new folder"),
    )
    assert not (tmp_path / "out").exists()
