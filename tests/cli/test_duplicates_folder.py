"""The output folder of `qpr duplicates`: runs that are killed, a second run, files of others."""

import numpy as np
import pytest

from qpr_jax import Retriever
from qpr_jax.cli import duplicates as command
from qpr_jax.duplicates import files, search, vectors
from qpr_jax.files import locked
from qpr_jax.index.question_index import QuestionIndex
from tests.runs import WORDS


class Killed(BaseException):
    """Ends a run as a kill does: nothing is cleaned up."""


PHASES = {
    "read": (search, "encode_entries"),
    "encode": (vectors, "write_json"),
    "find": (search, "group_pairs"),
    "group": (search, "group_rows"),
    "write pairs": (files, "groups_of"),
    "write groups": (files, "kept_of"),
    "add": (QuestionIndex, "put"),
    "end": (command, "write_json"),
}


@pytest.mark.parametrize(
    "phase",
    [
        phase
        if phase in ("encode", "write pairs", "end")
        else pytest.param(phase, marks=pytest.mark.slow)
        for phase in PHASES
    ],
)
def test_a_run_that_is_killed_goes_on(qpr, calibrated, tmp_path, monkeypatch, phase):
    rng = np.random.default_rng(0)
    rows = [" ".join(rng.choice(WORDS[:9], 3)) for _ in range(60)]
    (tmp_path / "q.txt").write_text("\n".join(rows))
    (tmp_path / "old.txt").write_text("\n".join(rows[:5]))
    monkeypatch.setattr(vectors, "_PART", 16)
    for index in ("i", "j"):
        assert qpr("index", index, "old.txt", "--run", calibrated)[0] == 0
    how = ("duplicates", "q.txt", "--threshold", "0.9")
    assert qpr(*how, "--incremental", "i", "--out", "whole")[0] == 0
    owner, name = PHASES[phase]

    def kill(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(command.shutil, "rmtree", lambda *args, **kwargs: None)
        patch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            qpr(*how, "--incremental", "j", "--out", "cut")
    assert not (tmp_path / "cut" / "info.json").exists()
    assert qpr(*how, "--incremental", "j", "--out", "cut")[0] == 0
    for name in ("pairs.csv", "groups.csv", "deduplicated.csv"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(Retriever.load(tmp_path / "j")) == len(Retriever.load(tmp_path / "i"))
    assert not (tmp_path / "cut" / ".work").exists()


def test_a_second_run_leaves_the_folder_of_the_first_alone(qpr, calibrated, table, tmp_path):
    work = tmp_path / "d" / ".work"
    how = ("duplicates", table, "--run", calibrated, "--out", "d")
    with locked(work / "lock"):
        (work / "vectors.f32").write_bytes(b"half")
        status, _, stderr = qpr(*how)
        assert (status, "d: another `qpr duplicates` writes it" in stderr) == (1, True)
        assert sorted(path.name for path in work.iterdir()) == ["lock", "vectors.f32"]
    assert qpr(*how)[0] == 0


def test_files_of_others_stay(qpr, calibrated, table, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "groups.tsv").write_text("mine")
    (tmp_path / "d" / "pairs.jsonl").symlink_to(tmp_path / "t.csv")
    how = ("duplicates", table, "--run", calibrated, "--out", "d")
    for output in ("csv", "parquet"):
        assert qpr(*how, "--output", output)[0] == 0
    names = {path.name for path in (tmp_path / "d").iterdir()}
    assert names == {
        *("groups.tsv", "pairs.jsonl", "info.json"),
        *("pairs.parquet", "groups.parquet", "deduplicated.parquet"),
    }


@pytest.mark.parametrize("output", ["csv", "jsonl"])
@pytest.mark.parametrize("role", ["questions", "against"])
def test_an_input_is_never_written(qpr, calibrated, table, tmp_path, output, role):
    assert qpr("duplicates", table, "--run", calibrated, "--out", "d")[0] == 0
    path = tmp_path / "d" / "deduplicated.csv"
    before = path.read_bytes()
    inputs = (table, "--against", path) if role == "against" else (path,)
    how = ("--run", calibrated, "--out", "d", "--output", output)
    status, _, stderr = qpr("duplicates", *inputs, *how)
    assert (status, "expected an input that is no file of the output" in stderr) == (1, True)
    assert path.read_bytes() == before
    assert (tmp_path / "d" / "info.json").exists()
    assert qpr("duplicates", *inputs, "--run", calibrated, "--out", "e")[0] == 0


def test_a_file_of_the_user_is_not_replaced(qpr, calibrated, table, tmp_path):
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "pairs.csv"
    path.write_text("mine\n")
    status, _, stderr = qpr("duplicates", table, "--run", calibrated, "--out", "d")
    assert (status, "expected no file pairs.csv of another program" in stderr) == (1, True)
    assert path.read_text() == "mine\n"
    path.unlink()
    assert qpr("duplicates", table, "--run", calibrated, "--out", "d")[0] == 0
