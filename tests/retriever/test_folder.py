import pathlib
import subprocess
import sys
import threading
import time

import pytest

import qpr_jax
from qpr_jax.data.questions import Entry
from qpr_jax.errors import UserError
from qpr_jax.retriever import Retriever
from tests.retriever.conftest import QUESTIONS
from tests.runs import WORDS, write_encoder

KILLED = """
import sys
from qpr_jax import Retriever
retriever = Retriever.load(sys.argv[1])
print("go", flush=True)
for number in range(10**6):
    retriever.add([f"question {number}"], [5])
    retriever.add(["more", "still more"])
    retriever.remove([5])
    if number % 20 == 19:
        retriever.compact()
    print(number, flush=True)
"""

ROOT = pathlib.Path(qpr_jax.__file__).parents[1]


def test_saved_and_loaded(retriever, tmp_path):
    folder = tmp_path / "deep" / "saved"
    retriever.save(folder)
    loaded = Retriever.load(folder)
    assert loaded.search(["learn rice"]) == retriever.search(["learn rice"])
    assert loaded.encoder.identity == retriever.encoder.identity
    assert loaded.encoder.settings == {"steps": 3}
    loaded.save(str(folder))  # over itself
    assert Retriever.load(str(folder)).search(["rice"], 1) == retriever.search(["rice"], 1)
    assert sorted(path.name for path in folder.iterdir()) == ["export", "index"]
    assert len([*(folder / "index").glob("[!.]*")]) == 6


def test_changes_are_kept_in_the_folder(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    assert retriever.add(["How do I bake bread?", "What is rye?"]) == [9, 10]
    assert retriever.add(["Where is rice grown?"], [3]) == [3]
    retriever.remove([8, 10])
    assert len(retriever) == 4
    expected = {7: QUESTIONS[0], 4: QUESTIONS[3], 9: "How do I bake bread?"}
    expected[3] = "Where is rice grown?"
    for same in (retriever, Retriever.load(tmp_path / "saved")):
        assert dict(same.index) == expected
        assert same.search(["How do I bake bread?"], 1)[0][0].id == 9
        same.compact()
        assert dict(same.index) == expected
        assert not same.index.changed
    again = Retriever.load(tmp_path / "saved")
    assert dict(again.index) == expected
    assert again.add(["What is rye?"]) == [11]  # 10 was another question


def test_two_retrievers_of_one_folder_take_turns(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    other = Retriever.load(tmp_path / "saved")
    assert retriever.add(["one"]) == [9]
    assert other.add(["two"]) == [10]
    retriever.remove([10])
    other.compact()
    assert retriever.add(["three"]) == [11]
    expected = {9: "one", 11: "three"} | dict(zip([7, 8, 3, 4], QUESTIONS, strict=True))
    assert dict(retriever.index) == dict(Retriever.load(tmp_path / "saved").index) == expected


def test_saving_in_its_own_folder_keeps_what_others_added(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    Retriever.load(tmp_path / "saved").add(["five"], [500])
    retriever.save(tmp_path / "saved")
    assert 500 in dict(Retriever.load(tmp_path / "saved").index)


def test_a_failed_build_leaves_the_index_and_its_encoder(retriever, run, tmp_path):
    retriever.save(tmp_path / "saved")
    other = tmp_path / "other"
    write_encoder(other, seed=1)
    names = sorted(path.name for path in (tmp_path / "saved").rglob("*"))

    def broken():
        yield Entry(1, None, "one")
        raise UserError("a bad row")

    for entries, message in (
        (broken(), "a bad row"),
        ([], "expected questions to index, got none"),
        ([(1, -1, "x")], r"`ids`: expected 0 to .*, got -1 in `entries`, line 1"),
        ([(1, 2**63, "x")], "in `entries`, line 1"),
        ([(1, [], "x")], r"expected whole numbers or strings, got \[\] in `entries`, line 1"),
        ([(1, None, None)], "expected strings, got NoneType"),
    ):
        with pytest.raises(UserError, match=message):
            Retriever.build_in(tmp_path / "saved", entries, run=other)
        assert dict(Retriever.load(tmp_path / "saved").index) == dict(retriever.index)
    Retriever.build_in(tmp_path / "saved", [Entry(1, None, "one")], run=other)
    again = Retriever.load(tmp_path / "saved")
    assert dict(again.index) == {0: "one"}
    assert again.encoder.identity != retriever.encoder.identity
    # A second one with the old encoder; the first retriever may not write any more.
    with pytest.raises(UserError, match="the index was made with encoder"):
        retriever.add(["two"])
    Retriever.build_in(tmp_path / "saved", [Entry(1, None, "one")], run=run)
    assert Retriever.load(tmp_path / "saved").encoder.identity == retriever.encoder.identity
    after = sorted(path.name for path in (tmp_path / "saved").rglob("*"))
    assert len(after) == len(names)


def test_a_change_without_a_folder_stays_in_memory(retriever):
    retriever.add(["What is rye?"])
    retriever.remove([7])
    before = dict(retriever.index)
    retriever.compact()
    assert dict(retriever.index) == before
    assert retriever.search(["What is rye?"], 1)[0][0].id == 9


def test_what_was_changed_in_memory_is_saved(retriever, tmp_path):
    retriever.add(["What is rye?"])
    retriever.remove([7])
    retriever.save(tmp_path / "saved")
    assert dict(Retriever.load(tmp_path / "saved").index) == dict(retriever.index)
    retriever.remove([9])
    assert 9 not in dict(Retriever.load(tmp_path / "saved").index)


def test_nothing_to_change(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    assert retriever.add([]) == []
    retriever.remove([])
    assert len(retriever) == 4


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([7, 5], "`ids`: expected ids of indexed questions, got 5 that no question has; leave"),
        ([1, 7, 5, 0], "got 1 and 2 others that no question has"),
        ([7, 7], "expected distinct ids, got 7 twice"),
        ("12", r"`ids`: expected a list of ids, got a str; pass \[ids\]"),
        (["7", 7], "expected distinct ids, got 7 twice"),
        (["07", "x"], "got '07' and 1 others that no question has"),
        ([b"7"], "expected whole numbers or strings, got b'7' at position 0"),
    ],
)
def test_wrong_removals_change_nothing(retriever, ids, message):
    with pytest.raises(UserError, match=message):
        retriever.remove(ids)
    assert len(retriever) == 4


def test_wrong_additions_change_nothing(retriever):
    with pytest.raises(UserError, match=r"`ids`: expected one a question \(1\), got 2"):
        retriever.add(["a"], [1, 2])
    with pytest.raises(UserError, match="`questions`: expected a list of strings, got a str"):
        retriever.add("a")
    assert len(retriever) == 4


def kill_and_count(folder: pathlib.Path, pause: float) -> None:
    """Kill a process that changes the index; what it acknowledged is there, and nothing half."""

    def count() -> int:
        return sum(value != 5 for value, _ in Retriever.load(folder).index)

    before = count()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "go\n"
    assert process.stdout.readline() == "0\n"
    time.sleep(pause)
    process.kill()
    acknowledged = 1 + len(process.stdout.read().splitlines())
    process.wait()
    process.stdout.close()
    # Two more with every round that was acknowledged; the last may be half done.
    assert count() - before - 2 * acknowledged in (0, 2)
    after = Retriever.load(folder).index
    assert {q for i, q in after if i > 8} <= {"more", "still more"}


def test_a_killed_process_leaves_a_whole_index(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    for pause in (0, 0.05):
        kill_and_count(tmp_path / "saved", pause)


@pytest.mark.slow
def test_thirty_kills_leave_a_whole_index(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    for number in range(30):
        kill_and_count(tmp_path / "saved", 0.007 * number)


def test_after_compaction_no_byte_of_a_removed_question_is_left(retriever, tmp_path):
    secrets = ["My secret name is Eve", "Where do I live \ud800 really?", "Replaced secret"]
    retriever.add([*secrets, *QUESTIONS], range(100, 107))
    retriever.save(tmp_path / "saved")
    retriever.add(["Another secret", secrets[2].upper()], [200, 201])
    retriever.add(["harmless", "harmless too"], [102, 201])
    retriever.remove([100, 101, 200])

    def found() -> set[str]:
        hidden = (*secrets, "Another secret", secrets[2].upper())
        files = [path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()]
        return {
            secret
            for secret in hidden
            for data in files
            if secret.encode("utf-8", "surrogatepass") in data
        }

    assert len(found()) == 5
    Retriever.load(tmp_path / "saved").compact()
    assert found() == set()
    assert {i for i, _ in Retriever.load(tmp_path / "saved").index} >= {102, 201, 103}


def test_an_encoder_that_a_kill_left_half_written_is_removed(retriever, tmp_path):
    folder = tmp_path / "saved"
    retriever.save(folder)
    for name in (".export-0123456789abcdef.part", "export-fedcba9876543210", ".mine"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
    loaded = Retriever.load(folder)
    assert len([*folder.iterdir()]) == 5  # reading changes nothing
    loaded.add(["more"])
    assert sorted(path.name for path in folder.iterdir()) == [".mine", "export", "index"]


def test_a_failed_change_in_memory_is_read_again_from_the_folder(retriever, tmp_path, monkeypatch):
    retriever.save(tmp_path / "saved")

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(retriever.index.vectors, "add", fail)
        with pytest.raises(MemoryError):
            retriever.add(["one"])
    assert retriever.add(["two"]) == [10]
    assert [hits[0].id for hits in retriever.search(["one", "two"], 1)] == [9, 10]


def test_a_change_of_the_working_directory_changes_no_folder(retriever, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    retriever.save("saved")
    loaded = Retriever.load("saved")
    monkeypatch.chdir("/")
    loaded.add(["one"])
    retriever.compact()
    assert 9 in dict(Retriever.load(tmp_path / "saved").index)


def test_threads_search_while_one_changes(retriever):
    queries = [f"how can i {word}" for word in WORDS]
    expected = [[hit for hit in hits if hit.id < 9] for hits in retriever.search(queries)]
    stop = threading.Event()
    answers: list[bool] = []

    def ask():
        while not stop.is_set():
            found = retriever.search(queries, 10)
            kept = [[hit for hit in hits if hit.id < 9] for hits in found]
            answers.append(
                all(
                    [hit.id for hit in a] == [hit.id for hit in b]
                    for a, b in zip(kept, expected, strict=True)
                )
            )

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        (new,) = retriever.add(["a question of another kind"])
        retriever.remove([new])
    retriever.compact()
    stop.set()
    for thread in threads:
        thread.join()
    assert len(answers) > 4
    assert all(answers)


def test_what_a_kill_leaves_of_an_encoder_is_removed(retriever, tmp_path):
    folder = tmp_path / "saved"
    retriever.save(folder)
    (folder / ".export.old").mkdir()
    (folder / ".export.part").mkdir()
    Retriever.load(folder).add(["What is rye?"])
    assert sorted(path.name for path in folder.iterdir()) == ["export", "index"]
