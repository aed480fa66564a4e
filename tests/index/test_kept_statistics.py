"""The statistics of the texts follow the questions of an index, and are kept beside them."""

import contextlib
import os
import shutil
import threading

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.folder import (
    new_build,
    new_files,
    read_index,
    write_index,
    write_store,
)
from qpr_jax.index.question_index import QuestionIndex, build_index, build_vectors
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.statistics import Statistics
from tests.index.folders import (
    Killed,
    encode,
    file_of,
    kill_at,
    many,
    put,
    read,
    remove,
    unprivileged,
)


def in_memory(questions) -> QuestionIndex:
    return build_index(
        encode, [*questions.values()], [*questions], recipe=Recipe(), encoder="abc", log=len
    )


def write(folder, questions) -> QuestionIndex:
    """As `Retriever` writes it where there is a re-ranker."""
    folder.mkdir(exist_ok=True)
    build = new_build()
    with new_files(folder, build):
        store = write_store(folder, [*in_memory(questions).store], build, 5000)
        index = QuestionIndex(build_vectors(encode, store, Recipe()), store, Recipe(), "abc")
        index.keep_statistics()
        write_index(folder, index, build, "export")
    return index


def equal(one: Statistics, other: Statistics) -> bool:
    return (one.count, one.words) == (other.count, other.words) and all(
        map(np.array_equal, one.counters, other.counters)
    )


def is_exact(index: QuestionIndex) -> bool:
    return equal(index.keep_statistics(), Statistics.build([text for _, text in index]))


def change(index: QuestionIndex) -> None:
    put(index, {3: "what is rye", 900: "how do i cook \ud800 rye", 901: "rye rye"})
    remove(index, 6, 901, 7000)
    put(index, {3: "what is oats", 902: ""})
    remove(index, 902)


@pytest.mark.parametrize("first", [True, False])
def test_they_follow_every_change(first):
    index = in_memory(many(40))
    assert index.statistics is None
    if first:
        assert is_exact(index)
    change(index)
    assert is_exact(index)
    assert index.keep_statistics() is index.statistics
    remove(index, *(i for i, _ in [*index]))
    assert is_exact(index)
    assert index.statistics.count == 0


def test_they_are_read_from_the_folder_and_changes_applied(tmp_path, monkeypatch):
    index = write(tmp_path, many(40))
    change(index)
    assert is_exact(index)
    again, _ = read_index(tmp_path)
    monkeypatch.setattr(Statistics, "build", None)
    counted, plain = [], Statistics.add

    def add(statistics, texts):
        counted.extend(texts)
        plain(statistics, texts)

    monkeypatch.setattr(Statistics, "add", add)
    found = again.keep_statistics()
    assert len(counted) == 5  # those that were added, and no other
    monkeypatch.undo()
    assert equal(found, index.statistics)
    change(again)
    assert is_exact(again)
    index.catch_up()  # what another process did
    assert is_exact(index)


def test_an_index_without_the_file_makes_them(tmp_path):
    write(tmp_path, many(40))
    file_of(tmp_path, "statistics")
    build = new_build()
    with new_files(tmp_path, build):
        store = write_store(tmp_path, [*in_memory(many(30)).store], build, 5000)
        plain = QuestionIndex(build_vectors(encode, store, Recipe()), store, Recipe(), "abc")
        write_index(tmp_path, plain, build, "export")
    assert not [*tmp_path.glob("statistics-*")]
    change(plain)
    index, _ = read_index(tmp_path)
    assert index.statistics is None
    assert is_exact(index)


def test_damage_is_refused(tmp_path):
    write(tmp_path, many(40))
    path = file_of(tmp_path, "statistics")
    data = path.read_bytes()
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=path.name):
            read_index(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=path.name):
        read_index(tmp_path)
    path.write_bytes(data)
    index, _ = read_index(tmp_path)
    path.write_bytes(data[::-1])  # after it was loaded, before it is read
    with pytest.raises(UserError, match=path.name):
        index.keep_statistics()


def test_an_index_that_was_replaced_counts_its_own_texts(tmp_path):
    write(tmp_path, many(40))
    index, _ = read_index(tmp_path)
    write(tmp_path, {8: "eight"})
    assert is_exact(index)


def test_a_read_only_folder(tmp_path):
    write(tmp_path / "mine", many(40))
    change(read_index(tmp_path / "mine")[0])
    os.chmod(tmp_path / "mine", 0o555)
    with unprivileged(), contextlib.suppress(PermissionError):
        index, _ = read_index(tmp_path / "mine")
        assert is_exact(index)
    os.chmod(tmp_path / "mine", 0o755)


def test_a_kill_at_a_write_of_a_build_leaves_exact_ones(tmp_path, monkeypatch):
    before, after, outcomes = many(20), {8: "eight", 9: "nine"}, set()
    write(tmp_path / "before", before)
    for at in range(0, 80, 3):
        folder, image = tmp_path / str(at), tmp_path / f"{at}.image"
        shutil.copytree(tmp_path / "before", folder)
        with monkeypatch.context() as patch:
            kill_at(patch, folder, image, at)
            try:
                write(folder, after)
                outcomes.add("done")
            except Killed:
                folder = image
        assert read(folder) in (before, after)
        outcomes.add(len(read(folder)))
        index, _ = read_index(folder)
        put(index, {7: "seven"})
        counted = index.keep_statistics()  # of which comparing all tables would take long
        assert (counted.count, counted.words) == (len(index), len([q for _, q in index if q]))
        if "done" in outcomes:
            break
    assert outcomes == {"done", 2, 20}


def test_a_search_sees_a_change_whole():
    index = in_memory(many(60))
    index.keep_statistics()
    stop, seen = threading.Event(), set()

    def ask():
        while not stop.is_set():
            index.find(encode(["a"]), 1, lambda *_: seen.add(look()) or [])

    def look():
        counts = {index.statistics.count for _ in range(50)} | {len(index)}
        return counts.pop() if len(counts) == 1 else None

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        put(index, {5000 + i: f"new {i} {number}" for i in range(5)})
        remove(index, *range(5000, 5005))
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= {60, 65}
    assert is_exact(index)


def test_made_while_another_thread_changes():
    for _ in range(5):
        index = in_memory(many(300))
        thread = threading.Thread(target=lambda index=index: [change(index) for _ in range(10)])
        thread.start()
        index.keep_statistics()
        thread.join()
        assert is_exact(index)


def test_searches_and_changes_go_on_while_they_are_made(monkeypatch, caplog):
    index, plain, found = in_memory(many(300)), Statistics.add, []
    caplog.set_level("INFO")

    def add(statistics, texts):
        if not found:

            def work():
                found.append(index.find(encode(["a"]), 1))
                change(index)

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
        plain(statistics, texts)

    with monkeypatch.context() as patch:
        patch.setattr(Statistics, "add", add)
        index.keep_statistics()
    assert found
    assert is_exact(index)
    assert caplog.text.count("counting the words of 300 questions") == 1
