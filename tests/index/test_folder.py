"""A store in a folder: changes, kills, other processes, threads and forks."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import Question
from tests import store_contract
from tests.index.folders import contents, kill_at, make, some
from tests.kills import Killed
from tests.refused import check_refused
from tests.runs import run_python
from tests.store_contract import DIMENSION, encode, put

ODD = [
    Question("\ud800", "\ud800 alone", {"a": "\udfff", "b": [1.5, None, {"c": True}]}),
    Question(2**63 - 1, "two\nlines\r\u2028"),
    Question("007", "\x00"),
    Question("1.0", "यो के हो?", {}),
    Question("x" * 1024, "😀"),
]


def by_id(questions):
    """As a store has them: an empty payload is none."""
    return {q.id: q if q.payload else q._replace(payload=None) for q in questions}


@pytest.mark.parametrize(
    "index_config", [{}, {"factory": "HNSW8", "metric": "ip", "vectors": "float16"}]
)
def test_it_comes_back_whole(tmp_path, index_config):
    questions = some(50) + ODD
    store = make(tmp_path, questions, **index_config)
    assert {question.id: question for question in store.questions()} == by_id(questions)
    kinds = {path.name.split("-")[0] for path in tmp_path.glob("[!.]*")}
    codes = {"codes"} if index_config else set()
    assert kinds == codes | {"manifest.json", "vectors", "questions", "changes"}
    again = FolderStore(tmp_path, encoder="e" * 64)
    assert [*again.questions()] == [*store.questions()]
    assert again.version == store.version
    assert (again.index_config, again.dimension) == (store.index_config, DIMENSION)
    assert again.facts()["recall@10"] == 1
    vectors = again.vectors.take(np.arange(len(again)))
    np.testing.assert_allclose(vectors, encode(q.text for q in questions), atol=1e-2)
    (hits,) = again.search(encode(["question 6"]), 1000)
    assert len(hits) == len(questions)
    if not index_config:
        assert hits[0] == ("q-6", "question 6", 0, None, {"of": "of 6"}, None)


def test_its_files_have_the_permissions_of_the_umask(tmp_path):
    for mask in (0o007, 0o077):
        before = os.umask(mask)
        try:
            put(make(tmp_path / str(mask), some(5)), *ODD)
        finally:
            os.umask(before)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / str(mask)).iterdir()}
        assert modes == {0o666 & ~mask}


@pytest.mark.parametrize("columns", [(), store_contract.TEXTS])
@pytest.mark.parametrize("case", store_contract.CASES)
def test_the_contract_of_a_store(tmp_path, case, columns):
    case(make(tmp_path, [], text_columns=columns), lambda: FolderStore(tmp_path))


def test_what_is_removed_of_the_build_is_gone_and_may_come_back(tmp_path):
    store = make(tmp_path, some(3))
    assert [store.remove(["q-0", 1]) for _ in range(2)] == [2, 0]
    assert (store.get(["q-0", 1]), len(store)) == ([None, None], 1)
    put(store, again := Question("q-0", "again"))
    assert (store.get(["q-0", 1]), len(store)) == ([again, None], 2)


def test_new_ids_were_never_used(tmp_path):
    store = make(tmp_path, [Question(7, "a"), Question("x", "b")])
    assert store.new_ids(2) == [8, 9]
    put(store, Question(8, "c"), Question("20", "d"))
    store.remove([20])
    put(store, Question(2**63 - 1, "e"))  # the counter goes on
    store.compact()
    assert FolderStore(tmp_path).new_ids(1) == [21]
    put(store, Question(2**53 - 1, "f"))
    ids = store.new_ids(1000)
    assert len({*ids}) == 1000
    assert all(2**53 <= value < 2**63 for value in ids)
    temporary = make(None, some(30))
    folder = temporary.path
    assert folder.is_dir()
    del temporary
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "columns"),
    [("add", []), ("remove", ["of"]), ("compact", ["a", "of"]), ("add", ["of"])],
)
def test_a_kill_at_every_write_leaves_the_old_questions_or_the_new(
    tmp_path, monkeypatch, change, columns
):
    before = by_id(some(12))
    new = [Question(3, "three"), Question("hundred", "100", {"a": "one"})]
    removed = {key: q for key, q in before.items() if key not in (3, "q-6")}
    expected = {"add": before | by_id(new), "remove": removed, "compact": before}[change]
    finished = False
    make(tmp_path / "base", some(12), factory="HNSW4", text_columns=columns)
    for at in range(100):
        folder, image = tmp_path / str(at), tmp_path / f"{at}.image"
        shutil.copytree(tmp_path / "base", folder)
        with monkeypatch.context() as patch:
            kill_at(patch, folder, image, at)
            try:
                store = FolderStore(folder)
                if change == "add":
                    put(store, *new)
                elif change == "remove":
                    store.remove([3, "q-6"])
                else:
                    store.compact()
                finished = True
            except Killed:
                folder = image
        found = contents(FolderStore(folder))
        assert found in ((expected,) if finished else (before, expected)), at
        # What a kill leaves behind does not hinder the next change, and goes.
        store = FolderStore(folder)
        put(store, Question(7, "seven"))
        assert contents(store) == found | {7: Question(7, "seven")}
        store.compact()
        assert len([*folder.glob("[!.]*")]) == 5
        if finished:
            break
    assert finished
    assert at > 3


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path):
    make(tmp_path, some(5))
    program = (
        "import sys\n"
        "from qpr_jax.index.protocol import Question\n"
        "from qpr_jax.index.folder import FolderStore\n"
        "from tests.store_contract import put\n"
        "store = FolderStore(sys.argv[1])\n"
        "for i in range(100, 10**6):\n"
        "    put(store, Question(i, f'n {i}'), Question(5, 'five'))\n"
        "    if i % 20 == 19: store.compact()\n"
        "    print(i, flush=True)\n"
    )
    for _ in range(2):
        command = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            time.sleep(0.15)
            process.kill()
            last = max(map(int, process.stdout.read().split() or [100]))
        found = contents(FolderStore(tmp_path))
        assert {*range(100, last + 1)} <= found.keys()
        assert found[5] == Question(5, "five")


def test_a_thread_finds_a_question_once_while_it_is_replaced(tmp_path):
    store, stop, found = make(tmp_path, some(200)), threading.Event(), []

    def search():
        while not stop.is_set():
            (hits,) = store.search(encode(["question 7"]), 300)
            found.append(sorted(str(hit.id) for hit in hits).count("7"))

    thread = threading.Thread(target=search)
    thread.start()
    for i in range(8):
        put(store, Question(7, f"question 7 {i}"))
        if i % 4 == 3:
            store.compact()
    stop.set()
    thread.join()
    assert {*found} == {1}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_searches_and_changes_while_threads_of_the_parent_do(tmp_path):
    store, stop = make(tmp_path, some(300), factory="HNSW4"), threading.Event()

    def work():
        while not stop.is_set():
            store.search(encode([f"question {i}" for i in range(30)]), 5)
            put(store, Question(9, "nine"))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):
            child = os.fork()
            if not child:
                signal.alarm(60)  # it may hang
                put(store, Question(5000 + number, "child"))
                (hits,) = store.search(encode(["child"]), 1)
                os._exit(0 if hits[0].id >= 5000 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert {5000 + i for i in range(5)} <= {q.id for q in store.questions()}


def test_a_failed_change_changes_nothing(tmp_path, monkeypatch):
    store = make(tmp_path, some(5))
    before = contents(store)
    for payload in ({"a": float("nan")}, {"a": [float("inf")]}, {"a": object()}, {1: 2}):
        with pytest.raises(UserError, match="`payload`: expected"):
            put(store, Question("good", "good"), Question("bad", "bad", payload))
    wrong = [np.full((1, DIMENSION), value, np.float32) for value in (np.nan, np.inf, -3e38)]
    wrong.append(np.zeros((1, 3), np.float32))
    check_refused(store.add, *(([Question(1, "a")], vectors, "`vectors`") for vectors in wrong))
    check_refused(store.search, *((vectors, 1, "`vectors`") for vectors in wrong))
    with monkeypatch.context() as patch:
        patch.setattr(store.vectors, "add", lambda _: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            put(store, Question("six", "six"))
    # It was written, and is read again.
    assert contents(store) == before | {"six": Question("six", "six")}


def test_a_read_only_folder_is_read_though_a_writer_was_killed(tmp_path):
    store = make(tmp_path, some(20))
    put(store, *ODD)
    (changes,) = tmp_path.glob("changes-*")
    with changes.open("ab") as file:
        file.write(b"of a writer that was killed")
    program = (
        "import os, sys\n"
        "from qpr_jax.index.folder import FolderStore\n"
        "from tests.index.folders import contents, some\n"
        "from tests.store_contract import put\n"
        "contents(FolderStore(sys.argv[1]))\n"  # imports all that another user may not read
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "store = FolderStore(sys.argv[1])\n"
        "print(len(contents(store)))\n"
        "try: put(store, *some(1, 99))\n"
        "except OSError as error: print(type(error).__name__)\n"
    )
    for path in (tmp_path, *tmp_path.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    parents = [p for p in tmp_path.parents if p.stat().st_uid == os.geteuid() and p.name]
    for parent in parents:
        parent.chmod(0o755)
    printed, _ = run_python("-c", program, tmp_path)
    tmp_path.chmod(0o755)
    assert printed.split() == [str(20 + len(ODD)), "PermissionError"]


def test_a_full_disk_leaves_the_old_index_and_names_the_file(tmp_path, monkeypatch):
    store = make(tmp_path, some(5))
    before, plain = contents(store), os.fsync
    for kind in ("vectors", "questions", "codes", "manifest"):

        def full(descriptor, kind=kind):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if kind in os.path.basename(path):
                raise OSError(28, "No space left on device")
            plain(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=f"No space left on device: '.*{tmp_path.name}"):
                make(tmp_path, some(9), factory="HNSW4")
        assert contents(FolderStore(tmp_path)) == contents(store) == before
        assert len([*tmp_path.glob("[!.]*")]) == 4


def test_a_failed_build_removes_its_files_alone_where_the_manifest_is_damaged(tmp_path):
    make(tmp_path, some(5))
    (tmp_path / "manifest.json").write_text("{}")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyError):
        make(tmp_path, ({}[question.text] for question in some(5)))
    assert sorted(tmp_path.iterdir()) == before
