"""Odd columns and folders of Parquet."""

import pyarrow as pa
import pyarrow.parquet
import pytest

from qpr_jax.data.columns import Columns
from qpr_jax.data.questions import Entry, read_questions
from qpr_jax.errors import UserError


def read(path, **how):
    return [*read_questions(path, **{"columns": Columns(payload=True)} | how)]


def test_parquet_of_odd_columns(tmp_path):
    def table(names, *columns):
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(pa.table(list(columns), names=names), path)
        return str(path)

    broken = pa.array([b"one", b"\xff", b"three"], pa.binary()).view(pa.string())
    path = table(["question", "id"], broken, [4, 5, 6])
    with pytest.raises(UserError, match="line 2: expected UTF-8"):
        read(path)
    assert read(path, skip_bad_rows=True) == [Entry(1, 4, "one"), Entry(3, 6, "three")]
    with pytest.raises(UserError, match="expected one column `question`, got 2"):
        read(table(["question", "question"], ["a"], ["b"]))
    assert read(table(["question", "a.b"], ["a"], ["b"]))[0].payload == {"a.b": "b"}
    folder = tmp_path / "spark.parquet"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    for name in ("part-1.parquet", "part-0.parquet"):
        pyarrow.parquet.write_table(pa.table([[name]], names=["question"]), folder / name)
    assert [entry.question for entry in read(str(folder))] == ["part-0.parquet", "part-1.parquet"]
    (folder / "part-2.parquet").write_text("no Parquet")
    with pytest.raises(UserError, match=r"spark\.parquet: expected Parquet files \("):
        read(str(folder))
    path = table(["asked", "__index_level_0__"], ["a"], [3])
    assert read(path, columns=Columns("asked", payload=True)) == [Entry(1, None, "a")]
