"""The command `qpr` as a user meets it."""

import io
import json
import sys

import pytest

from qpr_jax.cli import main
from tests.runs import ROOT, start_python

TINY = ROOT / "tests" / "pair_model" / "tiny_cross_encoder"
QUESTIONS = {
    5: "How can I learn Python quickly?",
    3: "What is the best way to learn Python?",
    8: "How to cook rice?",
    2**63 - 1: "What is\ttye \u2028 é?",
}
TABLE = """id,question,product,votes
a,learn python,x,3
7,Learn Python,x,20
c,learn python,y,5
d,"cook, ""rice""
",y,1
"""
JSONL = "".join(json.dumps({"id": i, "question": q}) + "\n" for i, q in QUESTIONS.items())


@pytest.fixture(scope="session")
def run(encoder_run):
    return encoder_run


@pytest.fixture
def qpr(tmp_path, monkeypatch, capfd):
    """The program: arguments -> (status, output, what it says)."""
    monkeypatch.chdir(tmp_path)
    # Else `train` and `serve` start the whole program anew.
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")

    def call(*arguments, given=b""):
        monkeypatch.setattr(sys, "argv", ["qpr", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given))))
        capfd.readouterr()
        status = main.main()
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return call


@pytest.fixture
def start(tmp_path):
    """The program in a process of its own: (arguments, variables) -> the process, with pipes."""
    started = []

    def call(*arguments, **variables):
        command = ("-m", "qpr_jax.cli.main", *arguments)
        started.append(start_python(*command, folder=tmp_path, GLIBC_TUNABLES=None, **variables))
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def done(qpr):
    """The program, which must succeed: arguments -> (output, what it says)."""

    def call(*arguments, given=b""):
        status, out, err = qpr(*arguments, given=given)
        assert status == 0, err
        return out, err

    return call


@pytest.fixture
def refused(qpr):
    """The program, which must fail: (what it says, arguments) -> nothing."""

    def call(said, *arguments, status=1, given=b""):
        found, out, err = qpr(*arguments, given=given)
        assert (found, out, said in err) == (status, "", True), err

    return call


@pytest.fixture
def objects(done):
    """The objects that the program prints as JSON: arguments -> a list."""

    def call(*arguments, given=b""):
        lines = done(*arguments, "--json", given=given)[0].splitlines()
        return [json.loads(line) for line in lines]

    return call


@pytest.fixture
def index(done, run, tmp_path):
    (tmp_path / "questions.jsonl").write_text(JSONL)
    _, stderr = done("index", "mine", "questions.jsonl", "--encoder", run)
    assert "mine: 4 questions\n" in stderr
    return tmp_path / "mine"


@pytest.fixture
def table(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    return "t.csv"
