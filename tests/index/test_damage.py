"""Files of an index that were damaged, altered, or made to harm whoever opens them."""

import contextlib
import json
import os
import sqlite3
import struct
import zlib

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import file_entries, seal
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import Question
from tests.index.folders import contents, make, some
from tests.store_contract import DIMENSION, encode, put

KINDS = ("vectors", "codes", "questions", "changes", "manifest")


@pytest.fixture
def folder(tmp_path):
    store = make(tmp_path, some(200), factory="HNSW4")
    put(store, *(Question(f"new {i}", f"new {i}" * 200) for i in range(20)))
    return tmp_path


def file_of(folder, kind):
    (path,) = folder.glob(f"{kind}*")
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


def test_another_size_is_noticed_when_the_index_is_opened(folder):
    for kind, path, data in each_kind(folder):
        end = len(data) - (kind == "manifest")  # which ends in a newline
        for size in (0, 1, end // 2, end - 1):
            path.write_bytes(data[:size])
            with pytest.raises(UserError):
                FolderStore(folder)
        if kind != "changes":  # behind which a killed writer may leave some
            path.write_bytes(data + b"x")
            with pytest.raises(UserError):
                FolderStore(folder)
        path.unlink()
        with pytest.raises((UserError, FileNotFoundError)):
            FolderStore(folder)
        os.mkfifo(path)  # nor does a pipe hang
        refused(folder)


def test_a_flipped_bit_is_noticed_by_the_check_and_never_crashes(folder):
    """In changes a search notices it, too. `QPR_FLIPS` is how many of each file are tried."""
    rng, before = np.random.default_rng(0), contents(FolderStore(folder))
    for kind, path, data in each_kind(folder):
        places = rng.integers(len(data), size=int(os.environ.get("QPR_FLIPS", "12"))).tolist()
        for at in [0, 1, 8, 20, 30, 100, len(data) - 2, *places]:
            damaged = bytearray(data)
            damaged[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            blank = kind == "manifest" and json.loads(data) == tolerant(damaged)
            with contextlib.nullcontext() if blank else pytest.raises(UserError):
                FolderStore(folder).facts()
            if kind == "changes":
                refused(folder, f"{path.name}: .*; restore the file, or build the index again")
            with contextlib.suppress(UserError):
                use(folder)
    assert contents(FolderStore(folder)) == before


def tolerant(data):
    """The JSON of some bytes; None if they are none."""
    with contextlib.suppress(ValueError):
        return json.loads(data)
    return None


def test_what_a_killed_writer_left_behind_the_changes_is_not_read(folder):
    path, before = file_of(folder, "changes"), contents(FolderStore(folder))
    with path.open("ab") as file:
        file.write(b"half of a change")
    assert contents(FolderStore(folder)) == before
    put(FolderStore(folder), Question("next", "next"))
    assert contents(FolderStore(folder)) == before | {"next": Question("next", "next")}


def test_a_change_is_on_disk_before_the_header_counts_it(folder, monkeypatch):
    path, fsync = file_of(folder, "changes"), os.fsync
    headers = [path.read_bytes()[:24]]

    def read_and_sync(descriptor):
        headers.append(path.read_bytes()[:24])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", read_and_sync)
    put(FolderStore(folder), Question("next", "next"))
    old, at_first, at_last = headers
    assert old == at_first != at_last


def alter(path, script):
    database = sqlite3.connect(path)
    database.executescript(script)
    database.close()


def test_questions_that_do_not_fit_are_refused(folder):
    scripts = {
        "CREATE TRIGGER t AFTER INSERT ON questions BEGIN DELETE FROM questions; END": "its tables",
        "ALTER TABLE questions RENAME TO x; CREATE VIEW questions AS SELECT * FROM x": "its tables",
        "DROP TABLE questions": "its tables",
        "DELETE FROM questions WHERE row = 3": "a question is missing",
        **dict.fromkeys(
            (
                f"UPDATE questions SET data = {data} WHERE row = 3"
                for data in ("7", "NULL", "x'ff'", "'[1]'", "'[{}, 1, 2]'", "'[1, null, null]'")
            ),
            "a question is damaged",
        ),
        f"UPDATE questions SET data = '{'[' * 100_000}' WHERE row = 3": "a question is damaged",
    }
    for _, path, data in each_kind(folder, ["questions"]):
        for script, reason in scripts.items():
            path.write_bytes(data)
            alter(path, script)
            reseal(folder)
            refused(folder, f"questions-.*{reason}")


def test_changes_that_do_not_fit_are_refused(folder):
    """They have the right CRC, as one who makes the file by hand writes it."""

    def change(row, data, vector=bytes(4 * DIMENSION)):
        return struct.pack("<QI", row, len(data)) + data + vector

    good = b'[1, "a", null]'
    for _, path, data in each_kind(folder, ["changes"]):
        for rows in (
            change(221, good),
            change(0, good),
            change(2**64 - 1, good),
            struct.pack("<QI", 220, 0),
            struct.pack("<QI", 2**63, 0),
            change(220, good, b"short"),
            change(220, good, b""),
            change(220, b"[" * 100_000),
            change(220, b'[1, ["a"], null]'),
            change(220, b'[1.5, "a", null]'),
            change(220, b'[1, "a", 7]'),
            change(220, b'{"id": 1}'),
            change(220, b"\xff\xfe"),
            b"odd",
        ):
            *_, size, crc, _ = struct.unpack("<8sQII", data[:24])
            header = data[:8] + struct.pack("<QI", size + len(rows), zlib.crc32(rows, crc))
            crc = struct.pack("<I", zlib.crc32(header))
            path.write_bytes(header + crc + data[24:] + rows)
            refused(folder, "changes-")


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
        {"count": "many"},
        {"count": None},
        {"recall@10": "high"},
        {"encoder": ["\ud800"]},
        {"export": None},
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
