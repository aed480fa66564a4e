import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import read_json
from qpr_jax.training import workdir
from qpr_jax.training.workdir import open_workdir


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_other_settings_are_refused_with_the_differences(tmp_path):
    for _ in range(2):
        with open_workdir(tmp_path / "run", {"batch_size": 512, "seed": 0}) as folder:
            assert read_json(folder / "run.json") == {"format": 1, "batch_size": 512, "seed": 0}
    with (
        pytest.raises(UserError, match=r"batch_size: 512 there, 64 here, seed: 0 there, 1 here; "),
        open_workdir(tmp_path / "run", {"batch_size": 64, "seed": 1}),
    ):
        pass


def test_a_run_refused_before_its_first_step_leaves_the_folder_to_other_settings(tmp_path):
    def make(seed, *made):
        with open_workdir(tmp_path, {"seed": seed}):
            for name in made:
                (tmp_path / name).mkdir()
            raise UserError("too large")

    with pytest.raises(UserError, match="too large"):
        make(0, "splits", "clusters")
    assert names(tmp_path) == [".lock"]
    with pytest.raises(UserError, match="too large"):
        make(1, "splits", "checkpoints")
    with pytest.raises(UserError, match="seed: 1 there"), open_workdir(tmp_path, {"seed": 2}):
        pass


def test_overwrite_removes_the_run_and_nothing_else_also_after_a_kill(tmp_path, monkeypatch):
    with open_workdir(tmp_path, {"seed": 0}) as folder:
        (folder / "checkpoints" / "state").mkdir(parents=True)
        (folder / "report.json").touch()
        (folder / ".index.part").mkdir()
        (folder / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(workdir.shutil, "rmtree", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError), open_workdir(tmp_path, {"seed": 1}, overwrite=True):
            pass
    with open_workdir(tmp_path, {"seed": 0}) as folder:  # goes on, and is not finished
        assert names(folder) == [".index.part", ".lock", "checkpoints", "notes.txt", "run.json"]
    with open_workdir(tmp_path, {"seed": 1}, overwrite=True) as folder:
        assert names(folder) == [".lock", "notes.txt", "run.json"]
        assert read_json(folder / "run.json") == {"format": 1, "seed": 1}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path, overwrite):
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(UserError, match=r"expected an empty folder or a run, found 'thesis.tex'"),
        open_workdir(tmp_path, {}, overwrite=overwrite),
    ):
        pass


def test_a_folder_in_use_is_refused(tmp_path):
    with (
        open_workdir(tmp_path, {}),
        pytest.raises(UserError, match="another process works in this folder"),
        open_workdir(tmp_path, {}),
    ):
        pass
