import gzip
import json

import pytest

from qpr_jax.cli import costs
from qpr_jax.costs import rows
from qpr_jax.costs.estimate import Estimate
from qpr_jax.costs.rows import count_lines, sample_file, sample_list, watch
from qpr_jax.data.questions import read_questions


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(rows, "SAMPLE", 100)


def write(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("name", ["q.csv", "q.txt", "q.csv.gz"])
def test_the_rows_of_a_file(tmp_path, small, name, end):
    head = "question\n" if "csv" in name else ""
    text = head + "\n".join(f"question {i}" for i in range(1000)) + end
    path = write(tmp_path / name, text.encode())
    sample = sample_file(path, read_questions(path))
    assert sample.questions == [f"question {i}" for i in range(100)]
    # A compressed file's last line may lack its end.
    assert sample.count in ((1000,) if sample.exact and "gz" not in name else (999, 1000))


def test_a_small_file_is_counted_by_reading(tmp_path):
    path = write(tmp_path / "q.csv", b'id,question\r\n1,"two\r\nlines"\r\n\r\n2,one\r\n')
    sample = sample_file(path, read_questions(path))
    assert (sample.count, sample.exact) == (2, True)


def test_cells_of_several_lines_are_one_row(tmp_path, small):
    text = "question\n" + "".join(f'"one {i}\ntwo"\n\n' for i in range(900))
    path = write(tmp_path / "q.csv", text.encode())
    sample = sample_file(path, read_questions(path))
    assert sample.count == pytest.approx(900, rel=0.02)
    assert not sample.exact


def test_a_large_file_is_counted_in_blocks(tmp_path, small, monkeypatch):
    monkeypatch.setattr(rows, "_COUNTED", 1000)
    monkeypatch.setattr(rows, "_BLOCK", 512)
    lines = [f"question {i} {'word ' * (i % 7)}" for i in range(20_000)]
    path = write(tmp_path / "q.txt", "\n".join(lines).encode())
    sample = sample_file(path, read_questions(path))
    assert sample.count == pytest.approx(20_000, rel=0.05)
    assert not sample.exact


def test_a_large_compressed_file_is_counted_by_its_start(tmp_path, small, monkeypatch):
    monkeypatch.setattr(rows, "_COMPRESSED", 1 << 15)
    monkeypatch.setattr(rows, "_READ", 4096)
    lines = [f"question {(7919 * i) % 100_003}" for i in range(50_000)]
    path = write(tmp_path / "q.txt.gz", "\n".join(lines).encode())
    sample = sample_file(path, read_questions(path))
    assert sample.count == pytest.approx(50_000, rel=0.15)


def test_gzip_of_several_members(tmp_path):
    data = gzip.compress(b"a\n" * 500) + gzip.compress(b"b\n" * 500)
    path = tmp_path / "q.txt.gz"
    path.write_bytes(data)
    assert count_lines(str(path)) == (1000, True)


def test_parquet_and_arrow_say_how_many_rows_they_have(tmp_path, small):
    pyarrow = pytest.importorskip("pyarrow")
    feather = pytest.importorskip("pyarrow.feather")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"question": [f"question {i}" for i in range(1000)]})
    path = str(tmp_path / "q.parquet")
    parquet.write_table(table, path)
    sample = sample_file(path, read_questions(path))
    assert (sample.count, sample.exact) == (1000, True)
    feather.write_feather(table, str(tmp_path / "q.arrow"))
    assert count_lines(str(tmp_path / "q.arrow")) == (1000, True)


def test_zstd(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "q.txt.zst"
    with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(b"a question\n" * 1000)
    assert count_lines(str(path))[0] == pytest.approx(1000)


def test_what_passes_is_sampled(tmp_path, small):
    path = write(tmp_path / "q.txt", b"a question\n" * 300)
    said = []
    assert len([*watch(read_questions(path), said.append)]) == 300
    (sample,) = said
    assert (sample.count, sample.exact, len(sample.questions)) == (300, True, 100)
    assert sample.text_bytes == len("a question")


def test_a_number_of_rows_that_is_estimated_leaves_none_out(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "SAMPLE", 100)
    text = "\n".join(f"question {i}" + " and so on" * (50 if i < 100 else 0) for i in range(101))
    path = write(tmp_path / "q.txt.gz", text.encode())
    asked = costs.Costs(str(tmp_path / "out"), lambda sample: Estimate(0, 0, 0), stop=False)
    assert len([*asked.begin(path, lambda: read_questions(path))]) == 101


def test_an_array_of_json_is_counted_by_reading(tmp_path, small):
    rows = [{"question": f"question {i}"} for i in range(250)]
    path = write(tmp_path / "q.json", json.dumps(rows).encode())
    sample = sample_file(path, read_questions(path))
    assert (sample.count, sample.exact, len(sample.questions)) == (250, True, 100)


def test_a_list_is_sampled_from_all_over_it(small):
    sample = sample_list([str(i) for i in range(1000)])
    assert (sample.count, len(sample.questions)) == (1000, 100)
    assert int(sample.questions[-1]) > 900
    assert sample.questions == sorted(sample.questions, key=int)
