"""The folder of an index: what a kill, a flipped bit or another process may do to it."""

import contextlib
import json
import os
import pathlib
import shutil
import sqlite3
import threading
import time

import faiss
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of
from qpr_jax.index import changes_file
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.folder import (
    FORMAT,
    new_build,
    new_files,
    read_index,
    read_manifest,
    remove_leftovers,
    seal,
    write_index,
    write_store,
)
from qpr_jax.index.question_index import QuestionIndex, build_vectors
from qpr_jax.index.recipe import Recipe
from qpr_jax.locks import WriteLock

POINTS = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)


def encode(questions) -> np.ndarray:
    """A question is a point by its length and first character."""
    numbers = [7 * len(q) + ord(q[0]) if q else 0 for q in questions]
    return POINTS[np.array(numbers, int) % 3000].reshape(-1, 4)


def write(folder: pathlib.Path, questions: dict[int, str], **recipe) -> QuestionIndex:
    """An index of these questions by their ids."""
    folder.mkdir(exist_ok=True)
    build, requested = new_build(), Recipe(**recipe)
    with new_files(folder, build):
        entries = [StoredQuestion(*entry) for entry in questions.items()]
        store = write_store(folder, entries, build, 5000)
        vectors = build_vectors(encode, store, requested)
        index = QuestionIndex(vectors, store, requested, "abc")
        write_index(folder, index, build, "export")
    return index


def put(index: QuestionIndex, questions: dict[int, str]) -> None:
    index.put([*map(StoredQuestion, questions, questions.values())], encode(questions.values()))


def remove(index: QuestionIndex, *ids: int) -> None:
    index.remove(np.array(ids))


def file_of(folder: pathlib.Path, kind: str) -> pathlib.Path:
    (path,) = folder.glob(f"{kind}-*[!l]")  # but a journal
    return path


def many(count: int) -> dict[int, str]:
    return {3 * i: chr(97 + i % 26) * (i % 90) for i in range(count)}


def read(folder: pathlib.Path) -> dict[int, str]:
    return dict(read_index(folder)[0])


def reseal(folder: pathlib.Path, **changed) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(seal(json.loads(path.read_text()) | changed)))


@pytest.mark.parametrize("count", [30, 1000])
def test_it_comes_back_whole(tmp_path, count):
    odd = {1: "\ud800 alone", 2: "two\nlines\r\u2028", 4: "\x00", 5: "", 2**63 - 1: "यो"}
    questions = odd | many(count)
    write(tmp_path, questions, probes=4, assignments=2)
    manifest = read_manifest(tmp_path)
    index, build = read_index(tmp_path, encoder="abc")
    assert build == manifest["build"]
    assert dict(index) == questions
    lists = len(questions) // 39
    factory = f"IVF{lists},Flat" if lists > 4 else "Flat"
    assert (index.recipe.factory, index.requested.factory) == (factory, "IVF2000,Flat")
    assert (index.recipe.probes, index.requested.assignments) == (4, 2)
    assert index.next_id == 2**63
    (found,) = index.find(encode(["\ud800 alone"]), 3)
    assert found[0].distance == pytest.approx(0, abs=1e-5)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "manifest.json",
        f"vectors-{build}.faiss",
        f"texts-{build}.bin",
        f"rows-{build}.npy",
        f"questions-{build}.sqlite",
        f"changes-{build}.sqlite",
    }
    assert manifest["format"] == FORMAT == "qpr_jax index 5"
    # A second index in its place leaves nothing of the first.
    put(index, {8: "eight"})
    write(tmp_path, {8: "eight"})
    assert read(tmp_path) == {8: "eight"}
    assert len(list(tmp_path.iterdir())) == 6
    assert not names - {"manifest.json"} & {path.name for path in tmp_path.iterdir()}


def test_changes_are_on_disk_and_the_last_counts(tmp_path):
    index = write(tmp_path, many(20))
    put(index, {3: "three", 90: "\ud800\n"})
    remove(index, 6, 90)
    put(index, {3: "3"})
    index, _ = read_index(tmp_path)  # as another process that goes on
    put(index, {90: "ninety", 5999: "x"})
    remove(index, 5999)
    expected = many(20) | {3: "3", 90: "ninety"}
    del expected[6]
    index, _ = read_index(tmp_path)
    assert dict(index) == expected
    assert index.next_id == 6000
    (found,) = index.find(encode(["ninety"]), 1)
    assert found[0][:2] == (90, "ninety")
    assert len(index.find(POINTS[:1], 100)[0]) == len(expected)


def test_the_vectors_of_changes_are_not_made_again(tmp_path):
    index = write(tmp_path, many(20))
    index.put([StoredQuestion(500, "far away")], np.full((1, 4), 100, np.float32))
    again, _ = read_index(tmp_path)
    (found,) = again.find(np.full((1, 4), 100, np.float32), 1)
    assert found == [(500, "far away", 0, None)]


def test_another_process_s_changes_are_read(tmp_path):
    write(tmp_path, many(20))
    mine, theirs = (read_index(tmp_path)[0] for _ in range(2))
    mine.catch_up()
    assert dict(mine) == many(20)
    put(theirs, {3: "three"})
    put(theirs, {6999: "x"})
    remove(theirs, 0, 6, 6999)
    mine.catch_up()
    assert dict(mine) == {i: q for i, q in (many(20) | {3: "three"}).items() if i not in (0, 6)}
    assert mine.next_id == 7000
    put(mine, {9: "nine"})
    theirs.catch_up()
    assert dict(theirs) == dict(mine) == read(tmp_path)


def test_an_index_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    write(tmp_path, many(20))
    plain, turns = faiss.read_index, [{8: "eight"}, {9: "nine"}]

    def meanwhile(path):
        if turns:
            write(tmp_path, turns.pop(0))
        return plain(path)

    with monkeypatch.context() as patch:
        patch.setattr(faiss, "read_index", meanwhile)
        assert read(tmp_path) == {9: "nine"}


def test_a_writer_waits_for_another(tmp_path):
    """Of another process, as it were, which has a lock of its own."""
    order = []

    def second():
        with WriteLock(tmp_path).hold():
            order.append("second")

    with WriteLock(tmp_path).hold():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


class Killed(BaseException):
    pass


def kill_at(monkeypatch, folder: pathlib.Path, image: pathlib.Path, at: int) -> None:
    """Everything that reaches the disk, from the `at`-th time on, is the end of the process.

    image: gets the folder as it is then, before Python tidies up.
    """
    calls = 0

    def count(plain):
        def call(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls > at:
                if not image.exists():
                    shutil.copytree(folder, image)
                raise Killed
            return plain(*arguments, **named)

        return call

    for name in ("fsync", "replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, count(getattr(os, name)))
    monkeypatch.setattr(faiss, "write_index", count(faiss.write_index))

    class Connection(sqlite3.Connection):
        execute = count(sqlite3.Connection.execute)
        executemany = count(sqlite3.Connection.executemany)
        executescript = count(sqlite3.Connection.executescript)

    plain = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: plain(*a, **k, factory=Connection))


@pytest.mark.parametrize("change", ["put", "remove", "compact"])
def test_a_kill_at_every_write_leaves_the_old_questions_or_the_new(tmp_path, monkeypatch, change):
    before = many(20)
    after = {
        "put": before | {3: "three", 100: "hundred"},
        "remove": {i: q for i, q in before.items() if i not in (3, 6)},
        "compact": before,
    }[change]
    outcomes = []
    for at in range(60):
        folder, image = tmp_path / str(at), tmp_path / f"{at}.image"
        index = write(folder, before)
        with monkeypatch.context() as patch:
            kill_at(patch, folder, image, at)
            try:
                if change == "put":
                    put(index, {3: "three", 100: "hundred"})
                elif change == "remove":
                    remove(index, 3, 6)
                else:
                    write(folder, before)
                outcomes.append("done")
            except Killed:
                outcomes.append("killed")
                folder = image
        found = read(folder)
        assert found in ((after,) if outcomes[-1] == "done" else (before, after)), at
        # And what a kill left behind does not hinder the next change.
        remove_leftovers(folder)
        put(read_index(folder)[0], {7: "seven"})
        assert read(folder) == found | {7: "seven"}
        write(folder, found)
        assert read(folder) == found
        assert len(list(folder.iterdir())) == 6
        if outcomes[-1] == "done":
            break
    assert outcomes[-1] == "done"
    assert len(outcomes) > 3


@pytest.mark.parametrize("read_only", [False, True])
def test_what_a_kill_left_half_written_is_rolled_back(tmp_path, monkeypatch, read_only):
    """The database changed already, and its journal says what was there before."""
    index = write(tmp_path / "mine", many(20))
    put(index, {100: "hundred"})
    path = file_of(tmp_path / "mine", "changes")
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA journal_mode = PERSIST; PRAGMA cache_size = 1; BEGIN")
    database.execute("UPDATE changes SET text = ?", ("damaged" * 1000,))
    for number in range(2, 300):
        row = (number, "x" * 1000)
        database.execute("INSERT INTO changes (sequence, text) VALUES (?, ?)", row)
    shutil.copytree(tmp_path / "mine", tmp_path / "killed")
    database.close()
    assert b"damaged" in file_of(tmp_path / "killed", "changes").read_bytes()
    if read_only:
        before = {p.name: p.read_bytes() for p in (tmp_path / "killed").iterdir()}
        monkeypatch.setattr(changes_file.os, "access", lambda *_: False)
    for _ in range(2):
        assert read(tmp_path / "killed") == many(20) | {100: "hundred"}
    if read_only:
        assert {p.name: p.read_bytes() for p in (tmp_path / "killed").iterdir()} == before


@contextlib.contextmanager
def unprivileged():
    """As a user whom the permissions of files hold."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("changed", [False, True])
def test_a_read_only_folder_is_read(changed):
    folder = pathlib.Path(os.path.realpath("/tmp"), f"qpr_jax_{new_build()}")
    try:
        index = write(folder, many(20))
        expected = many(20)
        if changed:
            put(index, {3: "three"})
            expected |= {3: "three"}
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        names = sorted(folder.iterdir())
        with unprivileged():
            assert read(folder) == expected
            index, _ = read_index(folder)
            index.store.check_integrity()
            with pytest.raises(OSError, match="changes-"):
                put(index, {4: "four"})
            with pytest.raises(PermissionError), WriteLock(folder).hold():
                pass
        assert sorted(folder.iterdir()) == names
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_change_that_fails_changes_nothing(tmp_path, monkeypatch):
    index = write(tmp_path, many(5))
    put(index, {1: "one"})
    index.store._file._writer.execute("PRAGMA max_page_count = 1")
    with pytest.raises(OSError, match=r"No space left on device: '.*changes-"):
        put(index, {2: "two" * 10_000})
    assert index.stale
    assert read(tmp_path) == many(5) | {1: "one"}
    index, _ = read_index(tmp_path)
    put(index, {2: "two"})
    assert read(tmp_path) == many(5) | {1: "one", 2: "two"}


@pytest.mark.parametrize("name", ["texts", "rows", "vectors", "questions", "manifest"])
def test_a_full_disk_names_the_file(tmp_path, monkeypatch, name):
    (tmp_path / "a").mkdir()
    plain = os.fsync

    def full(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if name in os.path.basename(path):
            raise OSError(28, "No space left on device")
        plain(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=f"No space left on device: '.*{name}"):
            write(tmp_path / "a", many(5))
    assert [path.name for path in (tmp_path / "a").iterdir()] == []


KINDS = ["vectors", "texts", "rows", "questions"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["flip first", "flip last", "cut", "empty", "longer", "remove"])
def test_damaged_bytes_never_reach_faiss(tmp_path, monkeypatch, kind, damage):
    write(tmp_path, many(1000))
    path = file_of(tmp_path, kind)
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage.startswith("flip"):
        data[0 if damage == "flip first" else -1] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes({"cut": data[:-7], "empty": b"", "longer": data + b"\n"}[damage])
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("FAISS saw damaged bytes"))
    message = {"remove": "missing", "flip": "differ from their SHA-256"}.get(
        damage.split()[0], "expected .* bytes, got"
    )
    with pytest.raises(UserError, match=f"{path.name}: .*{message}") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "qpr_jax index 1"}, "expected format 'qpr_jax index 5', got 'qpr_jax index 1'"),
        ({"format": "qpr_jax index 4"}, "got 'qpr_jax index 4'; run `qpr compact` on the folder"),
        ({"files": None}, "expected a manifest with `files`"),
        ({"count": 999}, "differs from its `sha256`; restore the file, or build the index again"),
        ({"probes": 11}, "manifest.json: what it says differs"),
        ({"next_id": 0}, "manifest.json: what it says differs"),
        ({"sha256": None}, "manifest.json: what it says differs"),
        ({"more": 1}, "manifest.json: what it says differs"),
    ],
)
def test_an_edited_manifest_is_refused(tmp_path, change, message):
    write(tmp_path, many(1000))
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_a_flipped_bit_anywhere_in_the_manifest_is_refused(tmp_path):
    write(tmp_path, many(20))
    path = tmp_path / "manifest.json"
    data = path.read_bytes()
    read(tmp_path)
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if path.read_bytes().split() != data.split():  # but between the words
            with pytest.raises(UserError, match=r"manifest\.json"):
                read(tmp_path)


@pytest.mark.parametrize("kind", ["vectors", "rows", "questions"])
def test_files_that_another_version_wrote_are_refused(tmp_path, kind):
    write(tmp_path, many(20))
    path = file_of(tmp_path, kind)
    path.write_bytes(b"of another version")
    files = read_manifest(tmp_path)["files"]
    reseal(tmp_path, files=files | {path.name: {"bytes": 18, "sha256": sha256_of(path)}})
    with pytest.raises(UserError, match=r"cannot read the index|undamaged file") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_an_index_of_another_encoder_is_refused(tmp_path):
    write(tmp_path, many(20))
    message = "made with encoder abc, not with def; build the index again"
    with pytest.raises(UserError, match=message):
        read_index(tmp_path, encoder="def")


@pytest.mark.parametrize("size", ["100", None, [1], -1, True, 1.0])
def test_a_size_that_is_none_is_refused(tmp_path, size):
    write(tmp_path, many(20))
    files = read_manifest(tmp_path)["files"]
    reseal(tmp_path, files={name: entry | {"bytes": size} for name, entry in files.items()})
    with pytest.raises(UserError, match="no entry for"):
        read(tmp_path)


@pytest.mark.parametrize(
    "build", ["../../other", "/etc/passwd", "", None, 7, "0" * 15, "0" * 15 + "g", "0" * 16 + "\n"]
)
def test_a_build_does_not_climb_out_of_the_folder(tmp_path, build):
    write(tmp_path, many(20))
    reseal(tmp_path, build=build)
    with pytest.raises(UserError, match="expected a `build` of 16 hexadecimal digits") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", [".lock", "manifest.json", ".manifest.json.part", "changes", "texts", "vectors"]
)
def test_symbolic_links_are_refused(tmp_path, name):
    folder, outside = tmp_path / "received", tmp_path / "outside"
    index = write(folder, many(20))
    path = folder / name if "." in name else file_of(folder, name)
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text("mine")
    before = outside.read_bytes()
    path.symlink_to(outside)
    for follow in (
        lambda: read(folder),
        lambda: remove_leftovers(folder),
        lambda: write(folder, many(3)),
        lambda: write_index(folder, index, new_build(), "export"),
    ):
        with pytest.raises(UserError, match="expected a plain file, got a symbolic link") as error:
            follow()
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)
    if name == ".lock":
        with pytest.raises(UserError, match="symbolic link"), WriteLock(folder).hold():
            pass
    assert outside.read_bytes() == before


def test_a_change_that_was_not_made_in_memory_is_read_again(tmp_path, monkeypatch):
    index = write(tmp_path, many(20))

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(index.vectors, "add", fail)
        with pytest.raises(MemoryError):
            put(index, {100: "hundred"})
    assert index.stale  # so that the retriever reads it again
    assert read(tmp_path) == many(20) | {100: "hundred"}


def test_an_unfinished_build_is_removed_and_nothing_else(tmp_path):
    folder = tmp_path / "index"
    put(write(folder, many(20)), {3: "three"})
    kept = sorted(path.name for path in folder.iterdir())
    assert len(kept) == 7  # with the journal of the changes
    (folder / "notes.txt").write_text("mine")
    (folder / "texts-mine.bin").write_text("")
    old = "0" * 16
    for name in (
        *(f"texts-{old}.bin", f".rows-{old}.npy.part", f"changes-{old}.sqlite-journal"),
        *(f"offsets-{old}.npy", f"ids-{old}.npy", f"changes-{old}.jsonl"),
    ):
        (folder / name).write_text("")
    (folder / "shardsabc").mkdir()
    for name in ("export", f"export-{old}", f".export-{old}.part", f".export-{old}.old", ".mine"):
        (tmp_path / name).mkdir()
    remove_leftovers(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*kept, "notes.txt", "texts-mine.bin"]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine", "export", "index"]
    assert read(folder) == many(20) | {3: "three"}


def test_no_index_at_all(tmp_path):
    with pytest.raises(UserError, match=r"expected a folder with a manifest\.json, found none"):
        read(tmp_path)
