"""Vectors of a folder of Parquet files, part by part."""

import os

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from qpr_jax.errors import UserError
from qpr_jax.index import parquet_vectors
from qpr_jax.index.parquet_vectors import DONE, STATE, encode_parquet
from qpr_jax.index.run import run_encoder
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
def run(tmp_path):
    write_encoder(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path / "questions")


def read(folder):
    return parquet.read_table(folder)


def check(folder, questions, run):
    """The folder holds all rows in their order, with the vectors of the encoder."""
    found = read(folder)
    assert found.drop_columns("vector").equals(questions)
    vectors = np.stack(found["vector"].to_numpy())
    encoder = run_encoder(run)
    np.testing.assert_array_equal(vectors, encoder.encode(questions["question"].to_pylist()))
    kind = found.schema.field("vector").type
    assert (kind.list_size, kind.value_type) == (encoder.dimension, pyarrow.float32())
    assert (folder / DONE).exists()


def test_all_columns_are_kept_with_the_vectors_in_order(tmp_path, questions, run):
    lines = []
    out = tmp_path / "out"
    assert encode_parquet(tmp_path / "questions", out, run, log=lines.append) == ROWS
    check(out, questions, run)
    parts = sorted(path.name for path in out.glob("*.parquet"))
    assert parts[0] == "part-00000-00000.parquet"
    assert parts[-1] == "part-00001-00000.parquet"
    assert len(parts) == len(lines) == 4
    assert lines[-1] == f"{parts[-1]}: 30 questions; 4 of 4 parts"


def test_a_call_after_a_kill_writes_what_is_missing(tmp_path, questions, run, monkeypatch):
    out, write, killed = tmp_path / "out", parquet_vectors._write, []

    def kill_at_third(part, *rest):
        killed.append(part)
        if len(killed) == 3:
            raise KeyboardInterrupt
        return write(part, *rest)

    monkeypatch.setattr(parquet_vectors, "_write", kill_at_third)
    with pytest.raises(KeyboardInterrupt):
        encode_parquet(tmp_path / "questions", out, run, log=str)
    assert not (out / DONE).exists()
    (out / ".part-00000-00002.parquet-12345678").write_text("half")
    whole = out / "part-00000-00000.parquet"
    before = whole.stat().st_mtime_ns
    lines = []
    assert encode_parquet(tmp_path / "questions", out, run, log=lines.append) == ROWS
    assert lines[0] == f"{out}: resuming after 2 of 4 parts"
    assert whole.stat().st_mtime_ns == before
    assert {*os.listdir(out)} == {STATE, DONE, ".lock", *(p.name for p in out.glob("*.parquet"))}
    check(out, questions, run)


@pytest.mark.parametrize("change", ["encoder", "questions", "skip_bad_rows"])
def test_other_questions_or_another_encoder_are_refused(tmp_path, questions, run, change):
    out, skip = tmp_path / "out", change == "skip_bad_rows"
    encode_parquet(tmp_path / "questions", out, run, log=str)
    if change == "encoder":
        write_encoder(tmp_path / "other", seed=1)
        run = tmp_path / "other"
    if change == "questions":
        parquet.write_table(questions.slice(39), tmp_path / "questions" / "b.parquet")
    with pytest.raises(UserError, match=f"was begun with another {change}.*name another folder"):
        encode_parquet(tmp_path / "questions", out, run, skip_bad_rows=skip, log=str)


def test_a_row_without_a_question_is_named_or_left_out(tmp_path, run):
    texts = [f"what is rice {i}" for i in range(ROWS)]
    texts[20], texts[21] = None, "  "
    write_questions(tmp_path / "questions", text=texts)
    how = {"text_column": "text", "log": str}
    with pytest.raises(UserError, match=r"a.parquet, row 4 of row group 1: expected.*got None"):
        encode_parquet(tmp_path / "questions", tmp_path / "out", run, **how)
    how |= {"skip_bad_rows": True}
    rows = encode_parquet(tmp_path / "questions", tmp_path / "skipped", run, **how)
    assert rows == ROWS - 2
    found = read(tmp_path / "skipped")["text"].to_pylist()
    assert found == [text for text in texts if text and text.strip()]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: [path.unlink() for path in folder.glob("*.parquet")], "found none"),
        (lambda folder: (folder / "b.parquet").write_bytes(b"PAR1"), "b.parquet: expected a Parq"),
        (
            lambda folder: parquet.write_table(
                pyarrow.table({"question": ["a"]}), folder / "c.parquet"
            ),
            "c.parquet: expected the columns of .*a.parquet",
        ),
    ],
)
def test_what_is_wrong_with_the_folder_is_said_before_anything_is_written(
    tmp_path, questions, run, spoil, said
):
    spoil(tmp_path / "questions")
    with pytest.raises(UserError, match=said):
        encode_parquet(tmp_path / "questions", tmp_path / "out", run, log=str)
    assert not (tmp_path / "out").exists()


def test_a_column_of_that_name_and_a_folder_of_others_are_refused(tmp_path, run):
    write_questions(tmp_path / "questions", vector=range(ROWS))
    with pytest.raises(UserError, match="expected no column `vector`"):
        encode_parquet(tmp_path / "questions", tmp_path / "out", run, log=str)
    write_questions(tmp_path / "plain")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(UserError, match="expected a new folder"):
        encode_parquet(tmp_path / "plain", tmp_path / "mine", run, log=str)
