import contextlib
import resource
import shutil

import jax
import jax.numpy as jnp
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.checkpoints import Checkpoints, EarlyStopping
from qpr_jax.training.train_step import TrainState


def state_at(step):
    return TrainState({"w": jnp.full(3, float(step))}, {"m": jnp.ones(2)}, jnp.asarray(step))


def save(folder, *steps):
    """Save steps, those that are best marked by a minus sign; returns the steps that are kept."""
    with Checkpoints(folder) as checkpoints:
        _, best = checkpoints.restore_latest(state_at(0))
        for step in steps:
            best = best.update(abs(step), float(abs(step)) if step < 0 else -1.0)
            checkpoints.save(state_at(abs(step)), best)
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def restored(folder):
    """The latest step and its early stopping, after checking each value."""
    with Checkpoints(folder) as checkpoints:
        state, stopping = checkpoints.restore_latest(state_at(0))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), state, state_at(int(state.step)))
    assert all(jax.tree.leaves(same))
    return int(state.step), stopping


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 2, the best, and 3."""
    folder = tmp_path_factory.mktemp("saved")
    assert restored(folder) == (0, EarlyStopping())
    assert save(folder, -1, -2, 3) == [2, 3]
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_the_latest_and_the_best_are_kept_also_when_reopened(copy):
    assert restored(copy) == (3, EarlyStopping(2, 2.0, 1))
    assert save(copy, 4) == [2, 4]
    assert save(copy, 5, 6) == [2, 6]
    assert save(copy, -7) == [7]
    assert save(copy, 8, -9, 10) == [9, 10]


def test_a_checkpoint_of_another_model_is_named(saved):
    other = state_at(0)._replace(params={"w": jnp.ones(4)}, optimizer={})
    with (
        Checkpoints(saved) as checkpoints,
        pytest.raises(UserError, match=r"/3: cannot read the checkpoint .*overwrite"),
    ):
        checkpoints.restore(other, 3)


def test_what_a_kill_leaves_is_removed(copy):
    (copy / "4.orbax-checkpoint-tmp").mkdir()
    assert restored(copy)[0] == 3
    assert save(copy, 4) == [2, 4]


@contextlib.contextmanager
def files_limited(size):
    """The system refuses to write more of a file, in any thread."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_and_leaves_the_checkpoints_before(copy):
    random = jax.random.normal(jax.random.key(0), (3, 5000))
    state = state_at(4)._replace(params=dict(zip("abc", random, strict=True)))
    message = r"/copy/4: cannot write the checkpoint \(File too large\); make room"
    with Checkpoints(copy) as checkpoints, files_limited(1 << 14):
        checkpoints.save(state, EarlyStopping(2, 2.0))
        with pytest.raises(UserError, match=message):
            checkpoints.wait()
    assert restored(copy)[0] == 3


def test_the_best_step_is_the_first_of_equals():
    state = EarlyStopping()
    for step, score in enumerate([0.1, 0.5, 0.5, 0.2], start=1):
        state = state.update(step, score)
    assert state == EarlyStopping(2, 0.5, 2)
    assert state.update(5, 0.6) == EarlyStopping(5, 0.6, 0)
