"""The folder of an index: what a kill, a flipped bit or another process may do to it."""

import json
import os
import pathlib
import threading
import time

import faiss
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of
from qpr_jax.index.faiss_index import Recipe
from qpr_jax.index.folder import (
    FORMAT,
    Store,
    TextsWriter,
    new_build,
    only_writer,
    read_store,
    sealed,
    write_store,
)
from qpr_jax.index.question_index import QuestionIndex, build_rows

POINTS = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)


def encode(questions) -> np.ndarray:
    """A question is a point by its length and first character."""
    numbers = [7 * len(q) + ord(q[0]) if q else 0 for q in questions]
    return POINTS[np.array(numbers, int) % 3000].reshape(-1, 4)


def write(folder: pathlib.Path, questions: dict[int, str], **recipe) -> dict:
    """An index of these questions by their ids."""
    folder.mkdir(exist_ok=True)
    build, wanted = new_build(), Recipe(**recipe)
    texts, ids = TextsWriter(folder, build).write(questions.items())
    index = QuestionIndex(build_rows(encode, texts, ids, wanted), wanted, "abc", 5000)
    return write_store(folder, index, build, "export")


def append(store: Store, *change) -> None:
    with store.change(*change):
        pass


def file_of(folder: pathlib.Path, kind: str) -> pathlib.Path:
    (path,) = folder.glob(f"{kind}-*")
    return path


def many(count: int) -> dict[int, str]:
    return {3 * i: chr(97 + i % 26) * (i % 90) for i in range(count)}


def read(folder: pathlib.Path) -> dict[int, str]:
    return dict(read_store(folder, encode)[0])


@pytest.mark.parametrize("count", [30, 1000])
def test_it_comes_back_whole(tmp_path, count):
    odd = {1: "\ud800 alone", 2: "two\nlines\r\u2028", 4: "\x00", 5: "", 2**63 - 1: "यो"}
    questions = odd | many(count)
    manifest = write(tmp_path, questions, probes=4, assignments=2)
    index, again = read_store(tmp_path, encode, encoder="abc")
    assert again == manifest
    assert dict(index) == questions
    lists = len(questions) // 39
    factory = f"IVF{lists},Flat" if lists > 4 else "Flat"
    assert (index.recipe.factory, index.wanted.factory) == (factory, "IVF2000,Flat")
    assert (index.recipe.probes, index.wanted.assignments) == (4, 2)
    assert index.next_id == 2**63
    (found,) = index.find(encode(["\ud800 alone"]), 3)
    assert found[0].distance == pytest.approx(0, abs=1e-5)
    names = {path.name for path in tmp_path.iterdir()}
    build = manifest["build"]
    assert names == {
        "manifest.json",
        f"vectors-{build}.faiss",
        f"texts-{build}.bin",
        f"offsets-{build}.npy",
        f"ids-{build}.npy",
        f"changes-{build}.jsonl",
    }
    assert manifest["format"] == FORMAT == "qpr_jax index 4"
    # A second index in its place leaves nothing of the first.
    write(tmp_path, {8: "eight"})
    assert read(tmp_path) == {8: "eight"}
    assert len(list(tmp_path.iterdir())) == 6
    assert not names - {"manifest.json"} & {path.name for path in tmp_path.iterdir()}


def test_changes_are_on_disk_and_the_last_counts(tmp_path):
    store = Store(tmp_path, write(tmp_path, many(20)))
    append(store, [3, 90], ["three", "\ud800\n"], 5000)
    append(store, [6, 90], None, 5000)
    append(store, [3], ["3"], 5001)
    store = Store(tmp_path, store.manifest)  # as another process that goes on
    append(store, [90], ["ninety"], 6000)
    expected = many(20) | {3: "3", 90: "ninety"}
    del expected[6]
    index, manifest = read_store(tmp_path, encode)
    assert dict(index) == expected
    assert index.next_id == 6000
    assert manifest == store.manifest
    (found,) = index.find(encode(["ninety"]), 1)
    assert found[0][:2] == (90, "ninety")


def test_another_process_s_changes_are_caught_up_with(tmp_path):
    manifest = write(tmp_path, many(20))
    mine, theirs = Store(tmp_path, manifest), Store(tmp_path, manifest)
    index, _ = read_store(tmp_path, encode)
    assert mine.catch_up(index, encode) is index
    append(theirs, [3], ["three"], 5000)
    append(theirs, [0, 6], None, 7000)
    assert mine.catch_up(index, encode) is index
    assert dict(index) == {i: q for i, q in (many(20) | {3: "three"}).items() if i not in (0, 6)}
    assert index.next_id == 7000
    write(tmp_path, {8: "eight"})  # a compaction, say
    other = mine.catch_up(index, encode)
    assert dict(other) == {8: "eight"}
    append(mine, [9], ["nine"], 10)
    assert read(tmp_path) == {8: "eight", 9: "nine"}


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
    order = []

    def second():
        with only_writer(tmp_path):
            order.append("second")

    with only_writer(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


class Killed(BaseException):
    pass


def killed_at(monkeypatch, at: int) -> None:
    """Everything that reaches the disk, from the `at`-th time on, is the end of the process."""
    calls = 0

    def count(plain):
        def call(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls > at:
                raise Killed
            return plain(*arguments, **named)

        return call

    for name in ("fsync", "replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, count(getattr(os, name)))
    monkeypatch.setattr(faiss, "write_index", count(faiss.write_index))


@pytest.mark.parametrize("change", ["put", "remove", "compact"])
def test_a_kill_leaves_the_old_questions_or_the_new(tmp_path, monkeypatch, change):
    before = many(20)
    after = {
        "put": before | {3: "three", 100: "hundred"},
        "remove": {i: q for i, q in before.items() if i not in (3, 6)},
        "compact": before,
    }[change]
    outcomes = []
    for at in range(40):
        folder = tmp_path / str(at)
        store = Store(folder, write(folder, before))
        with monkeypatch.context() as patch:
            killed_at(patch, at)
            try:
                if change == "put":
                    append(store, [3, 100], ["three", "hundred"], 5000)
                elif change == "remove":
                    append(store, [3, 6], None, 5000)
                else:
                    write(folder, before)
                outcomes.append("done")
            except Killed:
                outcomes.append("killed")
        found = read(folder)
        assert found in ((after,) if outcomes[-1] == "done" else (before, after)), at
        # And what a kill left behind is no hindrance.
        store = Store(folder, read_store(folder, encode)[1])
        append(store, [7], ["seven"], 5000)
        assert read(folder) == found | {7: "seven"}
        write(folder, found)
        assert read(folder) == found
        assert len(list(folder.iterdir())) == 6
        if outcomes[-1] == "done":
            break
    assert outcomes[-1] == "done"
    assert len(outcomes) > 3


def test_an_append_that_fails_changes_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path, write(tmp_path, many(5)))

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            append(store, [1], ["one"], 5000)
    assert read(tmp_path) == many(5)
    append(store, [2], ["two"], 5000)
    assert read(tmp_path) == many(5) | {2: "two"}


KINDS = ["vectors", "texts", "offsets", "ids", "changes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["flip first", "flip last", "cut", "empty", "longer", "remove"])
def test_damaged_bytes_never_reach_faiss(tmp_path, monkeypatch, kind, damage):
    store = Store(tmp_path, write(tmp_path, many(1000)))
    append(store, [1], ["one"], 5000)
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
    if kind == "changes" and damage == "longer":
        with pytest.raises(pytest.fail.Exception):  # the end of a change that was never finished
            read(tmp_path)
        return
    message = {"remove": "missing", "flip": "differ from their SHA-256"}.get(
        damage.split()[0], "expected .* bytes, got"
    )
    with pytest.raises(UserError, match=f"{path.name}: .*{message}") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "qpr_jax index 1"}, "expected format 'qpr_jax index 4', got 'qpr_jax index 1'"),
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


@pytest.mark.parametrize("kind", ["vectors", "offsets", "ids"])
def test_files_that_another_version_wrote_are_refused(tmp_path, kind):
    manifest = write(tmp_path, many(20))
    path = file_of(tmp_path, kind)
    path.write_bytes(b"of another version")
    manifest["files"][path.name] = {"bytes": 18, "sha256": sha256_of(path)}
    (tmp_path / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(UserError, match="cannot read the index") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_an_index_of_another_encoder_is_refused(tmp_path):
    write(tmp_path, many(20))
    message = "made with encoder abc, not with def; build the index again"
    with pytest.raises(UserError, match=message):
        read_store(tmp_path, encode, encoder="def")


@pytest.mark.parametrize("size", ["100", None, [1], -1, True, 1.0])
def test_a_size_that_is_none_is_refused(tmp_path, size):
    manifest = write(tmp_path, many(20))
    for entry in manifest["files"].values():
        entry["bytes"] = size
    (tmp_path / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(UserError, match="no entry for"):
        read(tmp_path)


def test_a_damaged_file_of_changes_is_not_signed(tmp_path):
    store = Store(tmp_path, write(tmp_path, many(20)))
    append(store, [3], ["one"], 5000)
    path = file_of(tmp_path, "changes")
    for data in (path.read_bytes().replace(b"one", b"two"), path.read_bytes()[:9]):
        path.write_bytes(data)
        with pytest.raises(UserError, match="the bytes differ from their SHA-256"):
            append(Store(tmp_path, store.manifest), [4], ["four"], 5000)
        assert path.read_bytes() == data


def test_a_digest_is_of_its_own_file(tmp_path):
    """After another's compaction, and a change as long as ours was."""
    mine = Store(tmp_path, write(tmp_path, many(20)))
    append(mine, [100], ["aaaa"], 5000)
    index, _ = read_store(tmp_path, encode)
    append(Store(tmp_path, write(tmp_path, many(20))), [200], ["bbbb"], 5000)
    index = mine.catch_up(index, encode)
    append(mine, [300], ["cccc"], 5000)
    assert read(tmp_path) == many(20) | {200: "bbbb", 300: "cccc"}


def test_a_change_that_was_not_made_in_memory_is_caught_up_with(tmp_path):
    store = Store(tmp_path, write(tmp_path, many(20)))
    index, _ = read_store(tmp_path, encode)
    with pytest.raises(MemoryError), store.change([100], ["hundred"], 5000):
        raise MemoryError
    assert dict(store.catch_up(index, encode)) == many(20) | {100: "hundred"}


def test_an_unfinished_build_is_removed_and_nothing_else(tmp_path):
    write(tmp_path, many(20))
    (tmp_path / "notes.txt").write_text("mine")
    for name in (f"texts-{'0' * 16}.bin", f".ids-{'1' * 16}.npy.part", "texts-mine.bin"):
        (tmp_path / name).write_text("")
    (tmp_path / "shardsabc").mkdir()
    TextsWriter(tmp_path, new_build())
    assert sorted(path.name for path in tmp_path.iterdir() if "-" not in path.name) == [
        "manifest.json",
        "notes.txt",
    ]
    assert (tmp_path / "texts-mine.bin").exists()
    assert len(list(tmp_path.iterdir())) == 8
    assert read(tmp_path) == many(20)


def test_no_index_at_all(tmp_path):
    with pytest.raises(UserError, match=r"expected a folder with a manifest\.json, found none"):
        read(tmp_path)
