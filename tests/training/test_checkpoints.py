import shutil

import jax.numpy as jnp
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training import checkpoints
from qpr_jax.training.early_stopping import EarlyStopping
from qpr_jax.training.sparse_adam import fresh_rows
from qpr_jax.training.train_step import TrainState


def state_at(step):
    return TrainState(
        params={"w": jnp.full(3, float(step))},
        optimizer={"m": jnp.ones(2)},
        table=fresh_rows(jnp.full((4, 2), float(step))),
        average={"w": jnp.full(3, step / 2)},
        step=jnp.asarray(step),
    )


def save(folder, *steps):
    """Save steps, the best marked by a minus sign, in one opening of the folder."""
    with checkpoints.open_checkpoints(folder) as manager:
        for step in steps:
            stopping = EarlyStopping(best_step=abs(step))
            checkpoints.save(manager, state_at(abs(step)), stopping, best=step < 0)
        checkpoints.wait(manager)
        return sorted(manager.all_steps())


def test_the_latest_and_the_newest_best_are_kept_also_when_reopened(tmp_path):
    assert save(tmp_path, 1, -2, 3) == [2, 3]
    assert save(tmp_path, 4) == [2, 4]
    assert save(tmp_path, 5, 6) == [2, 6]
    assert save(tmp_path, -7) == [7]
    assert save(tmp_path, 8, -9, 10) == [9, 10]


def test_a_state_comes_back_whole(tmp_path):
    save(tmp_path, 1, -2, 3)
    with checkpoints.open_checkpoints(tmp_path) as manager:
        for step in (2, 3):
            state, stopping = checkpoints.restore(manager, state_at(0), step)
            assert state.params["w"].tolist() == [step] * 3
            assert state.average["w"].tolist() == [step / 2] * 3
            assert state.table.values.tolist() == [[step] * 2] * 4
            assert int(state.step) == step
            assert stopping == EarlyStopping(best_step=step)


def test_a_step_saved_before_is_not_saved_again(tmp_path):
    assert save(tmp_path, -2, -2) == [2]


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path):
    save(tmp_path, 1)
    other = state_at(0)._replace(params={"w": jnp.ones(4)}, optimizer={})
    with (
        checkpoints.open_checkpoints(tmp_path) as manager,
        pytest.raises(UserError, match=r"/1: the checkpoint cannot be read"),
    ):
        checkpoints.restore(manager, other, 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_told(tmp_path, damage):
    save(tmp_path, 1, -2, 3)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) > 20
    for path in files:
        if path.name == "manifest.json" and damage == "remove":
            continue
        data = path.read_bytes()
        middle = len(data) // 2
        if damage == "remove":
            path.unlink()
        else:
            flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            path.write_bytes(flipped if damage == "flip" else data[:middle])
        step = int(path.relative_to(tmp_path).parts[0])
        with (
            pytest.raises(UserError, match=r"the checkpoint cannot be read .*remove this") as error,
            checkpoints.open_checkpoints(tmp_path) as manager,
        ):
            checkpoints.restore(manager, state_at(0), step)
        assert "\n" not in str(error.value)
        path.write_bytes(data)
    assert save(tmp_path, 4) == [2, 4]


def test_one_that_a_kill_left_half_removed_is_in_nobodys_way(tmp_path):
    save(tmp_path, 1, -2, 3)
    half = tmp_path / "1"
    shutil.copytree(tmp_path / "2", half)
    shutil.rmtree(half / "state")
    with checkpoints.open_checkpoints(tmp_path) as manager:
        for step in (2, 3):
            assert int(checkpoints.restore(manager, state_at(0), step)[0].step) == step


def test_a_full_disk_is_told_in_one_line(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device\ntrace")

    with checkpoints.open_checkpoints(tmp_path) as manager:
        monkeypatch.setattr(manager, "save", fail)
        with pytest.raises(UserError, match=r"written \(No space left on device\); make room, and"):
            checkpoints.save(manager, state_at(1), EarlyStopping(), best=False)
