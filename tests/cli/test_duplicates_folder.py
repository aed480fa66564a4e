"""The output folder of `qpr duplicates`: kills, a second run, files of others."""

import contextlib
import json
import os

from qpr_jax.files import locked


class Killed(BaseException):
    """Ends a run as a kill does."""


def test_a_kill_leaves_whole_files_or_none(qpr, calibrated, table, tmp_path, monkeypatch):
    """Killed at each of the renames by which a file appears, among files of a run before."""
    how = ("duplicates", table, "--run", calibrated)
    names = ("pairs.csv", "groups.csv", "deduplicated.csv", "indistinguishable.csv")

    def made(folder, *more):
        assert qpr(*how, *more, "--out", folder)[0] == 0
        return read(folder)

    def read(folder):
        return {name: (tmp_path / folder / name).read_bytes() for name in names}

    whole, replace = made("whole"), os.replace
    for renames in range(100):
        before, left = made("cut", "--threshold", "1"), renames

        def until_killed(source, target):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", until_killed)
            with contextlib.suppress(Killed):
                qpr(*how, "--out", "cut")
        found = read("cut")
        assert all(found[name] in (before[name], whole[name]) for name in names)
        if json.loads((tmp_path / "cut" / "info.json").read_text())["complete"]:
            assert found in (before, whole)
        assert made("cut") == whole
        if left >= 0:  # it was not killed
            break
    assert 5 < renames < 99


def test_a_second_run_leaves_the_folder_of_the_first_alone(qpr, calibrated, table, tmp_path):
    how = ("duplicates", table, "--run", calibrated, "--out", "d")
    with locked(tmp_path / "d" / ".lock"):
        status, _, stderr = qpr(*how)
        assert (status, "d: another `qpr duplicates` writes it" in stderr) == (1, True)
        assert [path.name for path in (tmp_path / "d").iterdir()] == [".lock"]
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
        *("groups.tsv", "pairs.jsonl", "info.json", ".lock"),
        *("pairs.parquet", "groups.parquet", "deduplicated.parquet", "indistinguishable.parquet"),
    }


def test_an_input_is_never_written(qpr, calibrated, table, tmp_path):
    assert qpr("duplicates", table, "--run", calibrated, "--out", "d")[0] == 0
    path = tmp_path / "d" / "deduplicated.csv"
    before = path.read_bytes()
    for inputs in ((path,), (table, "--against", path)):
        for output in ("csv", "jsonl"):
            how = ("--run", calibrated, "--out", "d", "--output", output)
            status, _, stderr = qpr("duplicates", *inputs, *how)
            assert (status, "the input is a file of the output folder" in stderr) == (1, True)
            assert path.read_bytes() == before
        assert qpr("duplicates", *inputs, "--run", calibrated, "--out", "e")[0] == 0


def test_a_file_of_the_user_is_not_replaced(qpr, calibrated, table, tmp_path):
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "pairs.csv"
    path.write_text("mine\n")
    status, _, stderr = qpr("duplicates", table, "--run", calibrated, "--out", "d")
    assert (status, "pairs.csv is there already" in stderr) == (1, True)
    assert path.read_text() == "mine\n"
    path.unlink()
    assert qpr("duplicates", table, "--run", calibrated, "--out", "d")[0] == 0
