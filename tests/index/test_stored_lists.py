"""The lists of an index are verified when they are used, and no damaged byte is ever used."""

import json
import pathlib
import shutil
import threading

import faiss
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import verify
from qpr_jax.index.faiss_index import FaissIndex
from qpr_jax.index.folder import read_index, read_manifest, verify_index
from qpr_jax.index.stored_lists import StoredLists, sums_path
from tests.index.folders import (
    POINTS,
    encode,
    file_of,
    many,
    mixed,
    put,
    read,
    remove,
    reseal,
    write,
)

QUERIES = POINTS[:12] + np.float32(0.01)
LISTS = 25


def stored_of(index) -> StoredLists:
    assert isinstance(index.vectors, FaissIndex)
    assert index.vectors._stored is not None
    return index.vectors._stored


def answers(index, queries=QUERIES) -> list:
    """The hits of each query, or None where it ends with an error."""
    found = []
    for query in queries:
        try:
            found.append(index.find(query[None], 3)[0])
        except UserError:
            found.append(None)
    return found


def lists_of(index) -> list[tuple[bytes, bytes]]:
    """The rows and codes of all lists, which are read."""
    whole = index.vectors.whole  # which may be a copy, and is all that holds its lists
    lists, width = whole.invlists, whole.code_size
    sizes = [(number, lists.list_size(number)) for number in range(lists.nlist)]
    return [
        (
            faiss.rev_swig_ptr(lists.get_ids(number), size).tobytes() if size else b"",
            faiss.rev_swig_ptr(lists.get_codes(number), size * width).tobytes() if size else b"",
        )
        for number, size in sizes
    ]


def flip(path: pathlib.Path, place: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def test_a_flipped_bit_is_an_error_or_was_not_used(tmp_path):
    write(tmp_path, mixed(1000), probes=2)
    whole = answers(read_index(tmp_path)[0])
    assert None not in whole
    rng = np.random.default_rng(0)
    refused, failed, answered = set(), set(), set()
    for kind in ("vectors", "sums", "texts", "rows", "order", "manifest"):
        path = tmp_path / "manifest.json" if kind == "manifest" else file_of(tmp_path, kind)
        for place in rng.integers(path.stat().st_size, size=15).tolist():
            undamaged, bit = path.read_bytes(), int(rng.integers(8))
            if undamaged[place : place + 1].isspace():
                continue
            flip(path, place, bit)
            try:
                index, _ = read_index(tmp_path)
            except UserError:
                refused.add(kind)
            else:
                for found, right in zip(answers(index), whole, strict=True):
                    assert found is None or found == right
                    (failed if found is None else answered).add(kind)
                if kind == "texts":
                    with pytest.raises(UserError, match="differs from its CRC"):
                        list(index)
            with pytest.raises(UserError, match=path.name):
                verify_index(tmp_path)
            path.write_bytes(undamaged)
    assert {"sums", "rows", "order", "manifest"} <= refused
    assert "texts" not in refused
    assert "vectors" in failed
    assert answered == {"vectors", "texts"}


def test_the_head_is_verified_before_faiss_sees_it(tmp_path, monkeypatch):
    write(tmp_path, many(1000))
    path = file_of(tmp_path, "vectors")
    head = int(np.load(file_of(tmp_path, "sums"))[0, 0])
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("FAISS saw damaged bytes"))
    for place in (0, head // 2, head - 1):
        flip(path, place)
        with pytest.raises(UserError, match=f"{path.name}: the bytes outside its lists differ"):
            read_index(tmp_path)
        flip(path, place)


def test_a_damaged_list_is_named_and_nothing_is_found_in_it(tmp_path):
    write(tmp_path, many(1000), probes=2)
    starts = np.load(file_of(tmp_path, "sums"))[:, 0]
    flip(file_of(tmp_path, "vectors"), int(starts[7]))
    stored = stored_of(read_index(tmp_path)[0])
    for _ in range(2):  # not only the first time
        with pytest.raises(UserError, match="the bytes of list 7 differ from their SHA-256"):
            stored.read(np.array([[7]]))
    assert stored.coded.lists.count(7) == 0
    with pytest.raises(UserError, match="list 7"):
        stored.read_all()


@pytest.mark.parametrize("factory", ["IVF25,Flat", "IVF25,SQ8", "IVF25_HNSW8,SQ8", "IVF25,PQ2"])
@pytest.mark.parametrize("assignments", [1, 3])
def test_answers_are_those_of_the_index_as_built(tmp_path, factory, assignments):
    built = write(tmp_path, many(1000), factory=factory, probes=3, assignments=assignments)
    index, _ = read_index(tmp_path)
    assert not stored_of(index)._is_read.any()
    assert answers(index) == answers(built)
    assert stored_of(index)._is_read.any()
    while index.vectors._stored is not None:  # which it is after as many searches
        index.search(QUERIES[:1], 1)
    assert answers(index) == answers(built)
    assert lists_of(index) == lists_of(built)


def test_all_are_read_after_as_many_searches_as_lists(tmp_path):
    write(tmp_path, many(1000), probes=1)
    index, _ = read_index(tmp_path)
    for searches in range(LISTS):
        assert stored_of(index)._is_read.sum() >= searches
        index.search(QUERIES[:1], 1)
    assert index.vectors._stored is None


def test_what_is_added_to_a_list_that_is_not_read(tmp_path):
    write(tmp_path, many(1000), probes=2, assignments=2)
    first, second = (read_index(tmp_path)[0] for _ in range(2))
    assert second.vectors.whole.ntotal == 2000
    put(first, {f"new {i}": chr(97 + i % 26) * 5 for i in range(60)} | {3: "other"})
    remove(first, 6, 9)
    assert not stored_of(first)._is_read.any()
    second.catch_up()
    assert answers(first) == answers(second)
    assert lists_of(first) == lists_of(second)
    third, _ = read_index(tmp_path)
    assert not stored_of(third)._is_read.any()
    assert answers(third) == answers(second)
    assert "other" in {hit.question for hit in third.find(encode(["other"]), 20)[0]}


def test_threads_that_need_the_same_lists_first(tmp_path, monkeypatch):
    built = write(tmp_path, many(1000), probes=8)
    right, filled = built.find(QUERIES, 5), []
    plain = StoredLists._fill

    def fill(stored, number, data):
        filled.append(number)
        plain(stored, number, data)

    monkeypatch.setattr(StoredLists, "_fill", fill)
    for _ in range(5):
        index, _ = read_index(tmp_path)
        filled.clear()
        barrier, found = threading.Barrier(6), [None] * 6

        def search(place, index=index, barrier=barrier, found=found):
            barrier.wait()
            found[place] = index.find(QUERIES, 5)

        threads = [threading.Thread(target=search, args=(place,)) for place in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [right] * 6
        assert len(filled) == len(set(filled)) > 5


def test_a_loaded_index_is_saved_whole(tmp_path):
    write(tmp_path, many(1000))
    index, _ = read_index(tmp_path)
    index.search(QUERIES[:1], 1)
    index.vectors.save(tmp_path / "other.faiss")
    assert (tmp_path / "other.faiss").read_bytes() == file_of(tmp_path, "vectors").read_bytes()
    sums = sums_path(tmp_path / "other.faiss")
    assert sums.read_bytes() == file_of(tmp_path, "sums").read_bytes()


def test_an_index_without_lists_has_no_sums(tmp_path):
    write(tmp_path, many(20))
    assert not [*tmp_path.glob("vectors-*.npy")]
    path = file_of(tmp_path, "vectors")
    flip(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match=f"{path.name}: the bytes differ from their SHA-256"):
        read(tmp_path)


def test_a_folder_of_before_is_verified_when_it_is_opened(tmp_path):
    write(tmp_path, many(1000))
    expected = answers(read_index(tmp_path)[0])
    sums, path = file_of(tmp_path, "sums"), file_of(tmp_path, "vectors")
    files = read_manifest(tmp_path)["files"]
    del files[sums.name]
    sums.unlink()
    reseal(tmp_path, files=files)
    index, _ = read_index(tmp_path)
    assert index.vectors._stored is None
    assert answers(index) == expected
    flip(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match=f"{path.name}: the bytes differ from their SHA-256"):
        read_index(tmp_path)


def test_sums_of_another_index_are_refused(tmp_path):
    write(tmp_path / "a", many(1000))
    write(tmp_path / "b", many(900))
    mine, theirs = (file_of(tmp_path / name, "sums") for name in "ab")
    shutil.copyfile(theirs, mine)
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    files = read_manifest(tmp_path / "a")["files"]
    reseal(tmp_path / "a", files=files | {mine.name: manifest["files"][theirs.name]})
    verify(tmp_path / "a", mine.name, read_manifest(tmp_path / "a"))
    with pytest.raises(UserError, match="outside its lists differ"):
        read_index(tmp_path / "a")
