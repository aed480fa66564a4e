"""Vectors in Parquet files: kills, other questions, bad rows."""

import os

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from qpr_jax.cli.encode_parquet import DONE, STATE, encode_parquet
from qpr_jax.errors import UserError
from qpr_jax.locations import read_encoder
from tests.kills import killed_at
from tests.refused import check_refused
from tests.runs import write_encoder

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
    os.utime(folder / "b.parquet")  # changed, and of the same size
    encode_parquet(folder, out, encoder_run)
    assert modified(out).items().isdisjoint(before.items())
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
