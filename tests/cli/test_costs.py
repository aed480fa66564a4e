"""What the commands say of their costs, and that the remedies of refusals work."""

import os
import re
import shlex
import threading

import pytest

from qpr_jax.costs import estimate
from tests.runs import WORDS

LINE = re.compile(
    r"about [\d.]+ s, [\d.]+ [GMK]B memory, ([\d.]+ [GMK]B) disk; 300 questions, [\d.,]+ a second"
)
TOOK = re.compile(r"took [\d.]+ s, [\d.]+ [GMK]B memory, ([\d.]+ [GMK]B) disk")
COMMANDS = {
    "index": ("index", "out", "questions.txt", "--run", "run"),
    "encode": ("encode", "run", "questions.txt", "--out", "out"),
    "duplicates": ("duplicates", "questions.txt", "--run", "run", "--out", "out", "--pairs", "100"),
}


@pytest.fixture
def questions(tmp_path, run):
    (tmp_path / "run").symlink_to(run)
    lines = (f"{WORDS[i % 7]} {WORDS[i % 11]} {WORDS[i % 13]} {i}\n" for i in range(300))
    (tmp_path / "questions.txt").write_text("".join(lines))
    return tmp_path / "questions.txt"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_will_take_and_what_it_took(qpr, tmp_path, questions, name):
    before = sorted(tmp_path.iterdir())
    status, out, stderr = qpr(*COMMANDS[name], "--dry-run")
    assert (status, out) == (0, "")
    assert LINE.search(stderr)
    assert not TOOK.search(stderr)
    assert sorted(tmp_path.iterdir()) == before
    status, _, stderr = qpr(*COMMANDS[name])
    assert status == 0
    assert LINE.search(stderr).start() < TOOK.search(stderr).start()
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_standard_input_is_estimated_when_it_is_read(qpr, tmp_path, questions, name):
    given = questions.read_bytes()
    arguments = ["-" if word == "questions.txt" else word for word in COMMANDS[name]]
    status, _, stderr = qpr(*arguments, "--dry-run", given=given)
    assert status == 0
    assert LINE.search(stderr)
    assert not (tmp_path / "out").exists()
    status, _, stderr = qpr(*arguments, given=given)
    assert status == 0
    assert LINE.search(stderr)
    assert TOOK.search(stderr)


def test_compact_says_what_it_will_take(qpr, tmp_path, questions):
    assert qpr(*COMMANDS["index"])[0] == 0
    build = sorted(path.name for path in (tmp_path / "out" / "index").iterdir())
    status, _, stderr = qpr("compact", "out", "--dry-run")
    assert status == 0
    assert LINE.search(stderr)
    assert sorted(path.name for path in (tmp_path / "out" / "index").iterdir()) == build
    status, _, stderr = qpr("compact", "out")
    assert status == 0
    assert TOOK.search(stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_is_read_once(qpr, tmp_path, questions, name):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = questions.read_bytes()
    threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True).start()
    arguments = ["pipe" if word == "questions.txt" else word for word in COMMANDS[name]]
    status, _, stderr = qpr(*arguments)
    assert status == 0, stderr
    assert "300 questions" in stderr


def test_bad_rows_are_counted_once_and_payload_is_estimated(qpr, tmp_path, questions):
    rows = [f"{i},question {i},{'long payload ' * 400}\n" for i in range(300)]
    (tmp_path / "wide.csv").write_text("id,question,note\nbad,\n" + "".join(rows))
    arguments = ("index", "out", "wide.csv", "--run", "run", "--skip-bad-rows")
    status, _, stderr = qpr(*arguments)
    assert status == 0, stderr
    assert stderr.count("1 bad rows left out") == 1
    sizes = [pattern.search(stderr)[1].split() for pattern in (LINE, TOOK)]
    assert {unit for _, unit in sizes} == {"MB"}
    said, took = (float(number) for number, _ in sizes)
    assert 1 / 1.5 < said / took < 1.5


def run_remedy(qpr, arguments, remedy):
    """Run the command again with the options that a remedy names; its status."""
    options = [
        word for option in re.findall(r"`(--[^`]+)`", remedy) for word in shlex.split(option)
    ]
    kept, skip = [], False
    for word in arguments:
        if not skip and word not in options[::2]:
            kept.append(word)
        skip = word in options[::2]
    return qpr(*kept, *options)[0]


def test_an_index_that_does_not_fit_is_refused_with_one_that_does(
    qpr, tmp_path, questions, monkeypatch
):
    arguments = [*COMMANDS["index"], "--factory", "HNSW64"]
    monkeypatch.setattr(estimate, "free_disk", lambda path: 60_000)
    status, _, stderr = qpr(*arguments)
    assert status == 1
    assert "300 questions: expected" in stderr
    assert not (tmp_path / "out" / "index" / "manifest.json").exists()
    remedy = stderr.partition("; use ")[2]
    assert "`--factory IVF2000,SQ8`" in remedy
    assert run_remedy(qpr, arguments, remedy) == 0
    assert (tmp_path / "out" / "index" / "manifest.json").exists()


@pytest.mark.parametrize("given", [None, b""])
def test_too_few_bytes_for_any_index(qpr, tmp_path, questions, monkeypatch, given):
    """Of a file before anything is written; of standard input what was written is removed."""
    monkeypatch.setattr(estimate, "available_memory", lambda: 0)
    monkeypatch.setattr(estimate, "held_memory", lambda: 0)
    source, given = ("questions.txt", b"") if given is None else ("-", questions.read_bytes())
    status, _, stderr = qpr("index", "out", source, "--run", "run", given=given)
    assert status == 1
    assert stderr.rstrip().endswith("give fewer `QUESTIONS`")
    assert [path.name for path in tmp_path.glob("out/index/*")] in ([], [".lock"])


def test_other_commands_are_refused(qpr, tmp_path, questions, monkeypatch):
    monkeypatch.setattr(estimate, "free_disk", lambda path: 0 if "full" in str(path) else 10**9)
    arguments = ["encode", "run", "questions.txt", "--out", "full.npy"]
    status, _, stderr = qpr(*arguments)
    assert (status, "name a file on another disk with `--out`" in stderr) == (1, True)
    assert not (tmp_path / "full.npy").exists()
    arguments[-1] = "other.npy"
    assert qpr(*arguments)[0] == 0
    monkeypatch.setattr(estimate, "free_disk", lambda path: 200_000)
    found = ["duplicates", "questions.txt", "--run", "run", "--out", "full", "--pairs", "40000"]
    status, _, stderr = qpr(*found)
    assert (status, "ask for fewer pairs with `--pairs`" in stderr) == (1, True)
    assert not (tmp_path / "full").exists()
    assert qpr(*found[:-1], "40")[0] == 0


def test_bad_rows_and_empty_files_are_told_as_before(qpr, tmp_path, questions):
    (tmp_path / "empty.txt").write_text("")
    status, _, stderr = qpr("index", "out", "empty.txt", "--run", "run", "--dry-run")
    assert (status, stderr.rstrip().endswith("got none")) == (1, True)
    (tmp_path / "bad.jsonl").write_text('{"question": "a"}\n{}\n')
    status, _, stderr = qpr("index", "out", "bad.jsonl", "--run", "run", "--dry-run")
    assert (status, "line 2: expected" in stderr) == (1, True)
