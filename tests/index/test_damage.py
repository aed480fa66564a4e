"""Files of an index that were damaged, altered, or made to harm whoever opens them."""

import contextlib
import json
import os
import sqlite3
import struct

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import file_entries, seal
from qpr_jax.index.base import Question
from qpr_jax.index.build import verify_build
from qpr_jax.index.folder import FolderStore
from tests.index.folders import add, contents, make, some
from tests.store_contract import encode

KINDS = ("vectors", "codes", "questions", "changes", "manifest")


@pytest.fixture
def folder(tmp_path):
    store = make(tmp_path, some(200), factory="HNSW4")
    add(store, [Question(f"new {i}", f"new {i}" * 200) for i in range(20)])
    return tmp_path


def file_of(folder, kind):
    (path,) = (p for p in folder.glob(f"{kind}*") if not p.name.endswith("journal"))
    return path


def reseal(folder, **changed):
    """Write the manifest as one who alters the files would."""
    path = folder / "manifest.json"
    facts = json.loads(path.read_text())
    facts["files"] = file_entries(folder, facts["files"])
    path.write_text(json.dumps(seal(facts | changed)))


def use(folder):
    store = FolderStore(folder)
    store.search(encode(["question 3"]), 500)
    store.vectors.take(np.arange(len(store)))
    return [*store.questions()]


def refused(folder, match="."):
    with pytest.raises(UserError, match=match) as error:
        use(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_is_noticed_when_the_index_is_opened(folder, kind):
    path = file_of(folder, kind)
    data = path.read_bytes()
    end = len(data) - (kind == "manifest")  # which ends in a newline
    for size in (0, 1, end // 2, end - 4096, end - 1):
        if size >= 0 and (kind, size) != ("changes", end - 1):  # SQLite checks whole pages
            path.write_bytes(data[:size])
            with pytest.raises(UserError):
                FolderStore(folder)
    path.unlink()
    with pytest.raises((UserError, FileNotFoundError)):
        FolderStore(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_noticed_by_the_check_and_never_crashes(folder, kind):
    path, rng = file_of(folder, kind), np.random.default_rng(0)
    data = path.read_bytes()
    for at in [0, 1, 20, 30, 100, *rng.integers(len(data), size=25).tolist()]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        noticed = kind == "changes"  # SQLite checks its structure, not the texts in it
        try:
            verify_build(folder)
        except UserError:
            noticed = True
        assert noticed or (kind == "manifest" and json.loads(damaged) == json.loads(data))
        with contextlib.suppress(UserError):
            use(folder)
    path.write_bytes(data)
    assert len(contents(FolderStore(folder))) == 220


@pytest.mark.parametrize("kind", ["questions", "changes"])
@pytest.mark.parametrize(
    "script",
    [
        "CREATE TRIGGER t AFTER INSERT ON {0} BEGIN DELETE FROM {0}; END",
        "ALTER TABLE {0} RENAME TO other; CREATE VIEW {0} AS SELECT * FROM other",
        "CREATE TABLE more (x)",
        "DROP TABLE {0}",
    ],
)
def test_databases_of_another_schema_are_refused(folder, kind, script):
    database = sqlite3.connect(file_of(folder, kind))
    database.executescript(script.format(kind))
    database.close()
    reseal(folder)
    refused(folder, "its tables are not those")


@pytest.mark.parametrize(
    "script",
    [
        "UPDATE changes SET row = row + 1",
        "UPDATE changes SET vector = x'00'",
        "UPDATE changes SET vector = 'text'",
        "INSERT INTO changes (row, key) VALUES (-1, 1), (9999999, 2)",
    ],
)
def test_changes_that_fit_no_row_are_refused(folder, script):
    database = sqlite3.connect(file_of(folder, "changes"))
    database.executescript(script)
    database.close()
    refused(folder, "change")


def test_a_build_without_one_of_its_questions_is_refused(folder):
    database = sqlite3.connect(file_of(folder, "questions"))
    database.executescript("DELETE FROM questions WHERE row = 3")
    database.close()
    reseal(folder)
    refused(folder, "a question is missing")


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((2**60, 8), "float32"), ((200, 2**40), "float32"), ((200, 8), "float64"), ((8, 200), "<f4")],
)
def test_absurd_shapes_are_refused(folder, shape, kind):
    path = file_of(folder, "vectors")
    with path.open("wb") as file:
        header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(6400))
    reseal(folder)
    refused(folder, "vectors")


@pytest.mark.parametrize("data", [b"", b"IxFI" + bytes(100), struct.pack("<4sQ", b"IHNf", 2**62)])
def test_what_faiss_cannot_read_is_refused(folder, data):
    file_of(folder, "codes").write_bytes(data)
    reseal(folder)
    refused(folder, "codes")


@pytest.mark.parametrize(
    "changed",
    [
        {"count": 201},
        {"count": -1},
        {"count": 2**62},
        {"dimension": 7},
        {"dimension": 0},
        {"factory": "SQ8"},
        {"recipe": {"factory": "auto", "colour": 1}},
        {"recipe": {"probes": "many"}},
        {"build": "../../../../etc/passwd"},
        {"build": 7},
        {"next_id": None},
        {"format": "qpr_jax index 2"},
        {"files": {}},
    ],
)
def test_manifests_that_do_not_fit_are_refused(folder, changed):
    reseal(folder, **changed)
    refused(folder)


def test_an_edited_manifest_is_refused(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"next_id": 200', '"next_id": 0'))
    refused(folder, "manifest.json")


@pytest.mark.parametrize("kind", KINDS)
def test_pipes_are_refused_and_do_not_hang(folder, kind):
    path = file_of(folder, kind)
    path.unlink()
    os.mkfifo(path)
    refused(folder)
