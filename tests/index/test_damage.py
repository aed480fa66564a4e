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
from qpr_jax.index.build import verify_build
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import Question
from tests.index.folders import contents, make, some
from tests.store_contract import encode, put

KINDS = ("vectors", "codes", "questions", "changes", "manifest")


@pytest.fixture
def folder(tmp_path):
    store = make(tmp_path, some(200), factory="HNSW4")
    put(store, *(Question(f"new {i}", f"new {i}" * 200) for i in range(20)))
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


def each_kind(folder, kinds=KINDS):
    """Yield each file with its bytes, which are put back after it."""
    for kind in kinds:
        path = file_of(folder, kind)
        data = path.read_bytes()
        yield kind, path, data
        path.unlink(missing_ok=True)
        path.write_bytes(data)


def test_truncation_is_noticed_when_the_index_is_opened(folder):
    for kind, path, data in each_kind(folder):
        end = len(data) - (kind == "manifest")  # which ends in a newline
        for size in (0, 1, end // 2, end - 4096, end - 1):
            if size >= 0 and (kind, size) != ("changes", end - 1):  # SQLite checks whole pages
                path.write_bytes(data[:size])
                with pytest.raises(UserError):
                    FolderStore(folder)
        path.unlink()
        with pytest.raises((UserError, FileNotFoundError)):
            FolderStore(folder)
        os.mkfifo(path)  # nor does a pipe hang
        refused(folder)


def test_a_flipped_bit_is_noticed_by_the_check_and_never_crashes(folder):
    rng = np.random.default_rng(0)
    for kind, path, data in each_kind(folder):
        for at in [0, 1, 20, 30, 100, *rng.integers(len(data), size=12).tolist()]:
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
    assert len(contents(FolderStore(folder))) == 220


def alter(path, script):
    database = sqlite3.connect(path)
    database.executescript(script)
    database.close()


def test_databases_of_another_schema_are_refused(folder):
    scripts = (
        "CREATE TRIGGER t AFTER INSERT ON {0} BEGIN DELETE FROM {0}; END",
        "ALTER TABLE {0} RENAME TO other; CREATE VIEW {0} AS SELECT * FROM other",
        "DROP TABLE {0}",
    )
    for kind, path, data in each_kind(folder, ("questions", "changes")):
        for script in scripts:
            path.write_bytes(data)
            alter(path, script.format(kind))
            reseal(folder)
            refused(folder, "its tables are not those")
        path.write_bytes(data)
        reseal(folder)


def test_rows_that_do_not_fit_are_refused(folder):
    for _, path, data in each_kind(folder, ["changes"]):
        for script in (
            "UPDATE changes SET row = row + 1",
            "UPDATE changes SET vector = x'00'",
            "UPDATE changes SET vector = 'text'",
            "INSERT INTO changes (row, key) VALUES (-1, 1), (9999999, 2)",
        ):
            path.write_bytes(data)
            alter(path, script)
            refused(folder, "change")
    alter(file_of(folder, "questions"), "DELETE FROM questions WHERE row = 3")
    reseal(folder)
    refused(folder, "a question is missing")


def test_absurd_vectors_and_codes_are_refused(folder):
    shapes = [((2**60, 8), "f4"), ((200, 2**40), "f4"), ((200, 8), "f8"), ((8, 200), "f4")]
    for _, path, _ in each_kind(folder, ["vectors"]):
        for shape, kind in shapes:
            with path.open("wb") as file:
                header = {"descr": f"<{kind}", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.write(bytes(6400))
            reseal(folder)
            refused(folder, "vectors")
    for data in (b"", b"IxFI" + bytes(100), struct.pack("<4sQ", b"IHNf", 2**62)):
        file_of(folder, "codes").write_bytes(data)
        reseal(folder)
        refused(folder, "codes")


def test_manifests_that_do_not_fit_are_refused(folder):
    changes = (
        {"count": 201},
        {"count": -1},
        {"count": 2**62},
        {"dimension": 0},
        {"factory": "SQ8"},
        {"index_config": {"factory": "auto", "colour": 1}},
        {"index_config": {"nprobe": "many"}},
        {"build": "../../../../etc/passwd"},
        {"build": 7},
        {"next_id": None},
        {"format": "qpr_jax index 2"},
        {"files": {}},
    )
    for _, path, data in each_kind(folder, ["manifest"]):
        for changed in changes:
            path.write_bytes(data)
            reseal(folder, **changed)
            refused(folder)
        for number in (b"0", b"NaN"):
            path.write_bytes(data.replace(b'"next_id": 200', b'"next_id": ' + number))
            refused(folder, "manifest.json")


def super_journal_of(database, victim):
    """A journal of SQLite that names a file, which a recovery removes."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), os.fsencode(victim)
    pages = max(1, database.stat().st_size // 4096)
    header = magic + struct.pack(">IIIII", 0, 1, pages, 512, 4096)
    end = struct.pack(">I", 0x40000000 // 4096 + 1) + name
    return header.ljust(512, b"\0") + end + struct.pack(">II", len(name), sum(name)) + magic


def test_a_journal_that_names_another_file_removes_none(folder, tmp_path):
    for kind in ("sqlite", "ours"):
        victim = tmp_path / f"{kind}.txt"
        victim.write_text("a reader's\0")
        database = file_of(folder, "changes")
        journal = database.with_name(f"{database.name}-journal")
        journal.write_bytes(super_journal_of(database, victim))
        if kind == "sqlite":  # the journal does what it is made for
            with contextlib.closing(sqlite3.connect(database)) as connection:
                connection.execute("SELECT count(*) FROM changes").fetchall()
            assert not victim.exists()
        else:
            refused(folder, match="names another file")
            assert victim.exists()
