import contextlib
import resource
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.checkpoints import Checkpoints, open_checkpoints
from qpr_jax.training.early_stopping import EarlyStopping
from qpr_jax.training.sparse_adam import init_table
from qpr_jax.training.train_step import TrainState


def state_at(step):
    return TrainState(
        params={"w": jnp.full(3, float(step))},
        optimizer={"m": jnp.ones(2)},
        table=init_table(jnp.full((4, 2), float(step))),
        average={"w": jnp.full(3, step / 2)},
        step=jnp.asarray(step),
    )


def save(folder, *steps, best=0):
    """Save steps, those that are best marked by a minus sign, in one opening of the folder."""
    with open_checkpoints(folder) as manager:
        for step in steps:
            best = max(best, -step)
            manager.save(state_at(abs(step)), EarlyStopping(best_step=best))
        manager.wait()
        return manager.steps


def restored(folder, step=None):
    """The step of the checkpoint restored, after checking each of its values."""
    with open_checkpoints(folder) as manager:
        state, stopping = manager.restore(state_at(0), step or manager.steps[-1])
    same = jax.tree.map(lambda a, b: bool((a == b).all()), state, state_at(int(state.step)))
    assert all(jax.tree.leaves(same))
    return int(state.step), stopping


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 2, the best, and 3."""
    folder = tmp_path_factory.mktemp("saved")
    assert save(folder, 1, -2, 3) == [2, 3]
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return copied(saved, tmp_path / "copy")


def copied(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def test_the_latest_and_the_newest_best_are_kept_also_when_reopened(tmp_path):
    assert save(tmp_path, 1, -2, 3) == [2, 3]
    assert save(tmp_path, 4, best=2) == [2, 4]
    assert save(tmp_path, 5, 6, best=2) == [2, 6]
    assert save(tmp_path, -7) == [7]
    assert save(tmp_path, 8, -9, 10, best=7) == [9, 10]


def test_a_state_comes_back_whole(saved):
    for step in (2, 3):
        assert restored(saved, step) == (step, EarlyStopping(best_step=2))


def test_a_step_saved_before_is_not_saved_again(tmp_path):
    assert save(tmp_path, -2, -2) == [2]


def test_a_checkpoint_of_another_model_is_named(saved):
    other = state_at(0)._replace(params={"w": jnp.ones(4)}, optimizer={})
    with (
        open_checkpoints(saved) as manager,
        pytest.raises(UserError, match=r"/3: expected a checkpoint of this run, got .*overwrite"),
    ):
        manager.restore(other, 3)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_the_checkpoint_before_replaces_a_damaged_one(saved, tmp_path, caplog, damage):
    files = [path.relative_to(saved) for path in (saved / "3").rglob("*") if path.is_file()]
    assert len(files) > 10
    for number, name in enumerate(files):
        path = copied(saved, tmp_path / "copy") / name
        data = bytearray(path.read_bytes())
        if damage == "remove" or not data:
            path.unlink()
        elif damage == "cut":
            path.write_bytes(data[: len(data) // 2])
        else:
            data[len(data) // 2] ^= 1 << number % 8
            path.write_bytes(data)
        caplog.clear()
        step, stopping = restored(tmp_path / "copy")
        assert stopping == EarlyStopping(best_step=2)
        # Orbax's notes of the saving, which it does not need to restore.
        unread = name.parent.name == "3" and name.name in (
            "_CHECKPOINT_METADATA",
            "commit_success.txt",
        )
        assert step == (3 if unread else 2), name
        lines = [record.message for record in caplog.records]
        assert len(lines) == (not unread)
        if lines:
            assert lines[0].startswith("removed the damaged checkpoint of step 3 (")
            assert lines[0].endswith("); continuing from that of step 2")


def test_training_continues_after_a_damaged_checkpoint(copy):
    (copy / "3" / "manifest.json").unlink()
    assert save(copy, 3, 4, best=2) == [2, 4]


@pytest.mark.parametrize("name", ["manifest.json", "stopping/metadata"])
def test_damage_of_the_best_is_found_before_training_continues(copy, name):
    (copy / "2" / name).unlink()
    with pytest.raises(UserError, match=r"a whole checkpoint, got none \(.*/2.*overwrite") as error:
        restored(copy)
    assert "\n" not in str(error.value)
    assert (copy / "3").exists()


def test_damage_while_the_folder_is_open_is_named(copy):
    with open_checkpoints(copy) as manager:
        (copy / "2" / "stopping" / "metadata").write_bytes(b"{}")
        with pytest.raises(UserError, match=r"/copy/2: expected .*metadata: expected \d+ bytes, g"):
            manager.restore(state_at(0), 2)


def test_a_checkpoint_that_a_kill_left_half_removed_is_ignored(copy):
    copied(copy / "2", copy / "1")
    shutil.rmtree(copy / "1" / "state")
    assert restored(copy, 2)[0] == 2
    assert restored(copy, 3)[0] == 3
    assert save(copy, 4, best=2) == [2, 4]
    assert not (copy / "1").exists()


KILLED = """
import os, sys
from qpr_jax import files
from qpr_jax.training import checkpoints
from tests.training.test_checkpoints import save

def kill(*_, **__):
    os._exit(9)

checkpoints.write_manifest = kill
save(sys.argv[1], 4, best=2)
"""


def test_a_kill_before_the_manifest_is_written_leaves_the_checkpoints_before(copy):
    command = [sys.executable, "-c", KILLED, str(copy)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 9
    assert [path.name for path in copy.glob("4*")] == ["4.orbax-checkpoint-tmp"]
    assert restored(copy)[0] == 3
    assert save(copy, 4, best=2) == [2, 4]


@contextlib.contextmanager
def files_limited(size):
    """The system refuses to write more of a file, in any thread."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_gives_one_line(copy, caplog, capfd):
    random = jax.random.normal(jax.random.key(0), (3, 5000))
    state = state_at(4)._replace(params=dict(zip("abc", random, strict=True)))
    message = r"/copy/4: cannot write the checkpoint \(File too large\); make room, then run"
    with open_checkpoints(copy) as manager, files_limited(1 << 14):
        manager.save(state, EarlyStopping(best_step=2))
        with pytest.raises(UserError, match=message):
            manager.wait()
    assert not caplog.records
    assert capfd.readouterr().err == ""
    assert restored(copy)[0] == 3


@pytest.mark.parametrize(
    "call",
    ["qpr_jax.training.checkpoints.write_manifest", "orbax.checkpoint.CheckpointManager.save"],
)
def test_a_full_disk_is_an_error_that_names_the_file(copy, monkeypatch, call):
    def no_space(*_, **__):
        raise OSError(28, "No space left on device", "/full/file")

    monkeypatch.setattr(call, no_space)
    with (
        pytest.raises(UserError, match=r"/copy/4: cannot .*\(No space .* device: /full/file\)"),
        open_checkpoints(copy) as manager,
    ):
        manager.save(state_at(4), EarlyStopping(best_step=2))


def test_leaving_waits_for_the_last_save(tmp_path):
    with open_checkpoints(tmp_path) as manager:
        assert isinstance(manager, Checkpoints)
        manager.save(state_at(1), EarlyStopping())
    assert restored(tmp_path)[0] == 1
