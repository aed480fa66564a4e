"""The folder of an index: what a kill, a flipped bit or another process may do to it."""

import os
import pathlib
import shutil
import sqlite3
import threading
import time

import faiss
import numpy as np
import pytest

from qpr_jax.index import changes_file
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.folder import (
    FORMAT,
    new_build,
    read_index,
    read_manifest,
    remove_leftovers,
)
from qpr_jax.locks import WriteLock
from tests.index.folders import (
    POINTS,
    Killed,
    encode,
    file_of,
    kill_at,
    many,
    mixed,
    put,
    read,
    remove,
    unprivileged,
    write,
)


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
    sums = {f"vectors-{build}.npy"} if lists > 4 else set()
    assert names == sums | {
        "manifest.json",
        f"vectors-{build}.faiss",
        f"texts-{build}.bin",
        f"rows-{build}.npy",
        f"order-{build}.npy",
        f"changes-{build}.sqlite",
    }
    assert manifest["format"] == FORMAT == "qpr_jax index 6"
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
    assert found == [(500, "far away", 0, None, None)]


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

    def meanwhile(*path):
        if turns and isinstance(path[0], str):
            write(tmp_path, turns.pop(0))
        return plain(*path)

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


@pytest.mark.parametrize("change", ["put", "remove", "compact"])
def test_a_kill_at_every_write_leaves_the_old_questions_or_the_new(tmp_path, monkeypatch, change):
    before, new = mixed(20), {"3": "three", "hundred": "100"}
    after = {
        "put": before | new,
        "remove": {i: q for i, q in before.items() if i not in ("3", "q-q-q-6")},
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
                    put(index, new)
                elif change == "remove":
                    remove(index, 3, "q-q-q-6")
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


@pytest.mark.parametrize("name", ["texts", "rows", "vectors", "order", "manifest"])
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
        f"questions-{old}.sqlite",
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
