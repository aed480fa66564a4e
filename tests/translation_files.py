"""Files of a few translations for tests, in every format."""

import csv
import gzip
import json

import pyarrow
import pyarrow.feather
import pyarrow.parquet

from qpr_jax.data.parallel import read_translations

PAIRS = [
    ("How are you?", "Wie geht es dir?"),
    ("He said: “so, so”; then he left.", "Er sagte: „so, so“; dann ging er."),
    ('Read "this" book.', 'Lies „dieses" Buch.'),
    ("A street lamp is on.", "Eine Straßenlaterne ist an."),
]
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))


def read(path, prefix="", **how):
    return read_translations(f"{prefix}{path}", **how)


def assert_pairs(found, pairs=PAIRS, language="de"):
    assert [*zip(found.sources, found.targets, strict=True)] == pairs
    assert found.language == language


def write_lines(path, texts, end="\n"):
    path.write_text("".join(text + end for text in texts), encoding="utf-8", newline="")
    return path


def write_cells(path, rows, delimiter):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def write_records(path, names, rows):
    records = [dict(zip(names, row, strict=True)) for row in rows]
    if path.suffix == ".jsonl":
        return write_lines(path, map(json.dumps, records))
    if path.suffix == ".json":
        path.write_text(json.dumps(records))
        return path
    table = pyarrow.Table.from_pylist(records)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, str(path))
    return path


def compress(path, ending):
    target = path.with_name(path.name + ending)
    if ending == ".gz":
        target.write_bytes(gzip.compress(path.read_bytes()))
    else:
        with pyarrow.CompressedOutputStream(str(target), "zstd") as file:
            file.write(path.read_bytes())
    return target
