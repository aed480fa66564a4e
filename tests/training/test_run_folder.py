"""The loop, and what it keeps in a folder: settings, checkpoints, records; kills, full disks."""

import contextlib
import os
import resource
import shutil
import struct
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from qpr_jax.errors import UserError
from qpr_jax.files import read_json
from qpr_jax.training import run
from qpr_jax.training.loop import Checkpoints, EarlyStopping, Phase, fit
from qpr_jax.training.metrics import Metrics, read_json_lines
from qpr_jax.training.run import open_workdir
from qpr_jax.training.train_step import TrainState


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def check_not_opened(folder, settings, said, **how):
    with pytest.raises(UserError, match=said), open_workdir(folder, settings, **how):
        pass


def test_folders_of_others_in_use_and_of_other_settings_are_refused(tmp_path):
    for _ in range(2):
        with open_workdir(tmp_path / "run", {"batch_size": 512, "seed": 0}) as folder:
            assert read_json(folder / "run.json") == {"format": 1, "batch_size": 512, "seed": 0}
            check_not_opened(folder, {}, "another process works in this folder")
    differences = r"batch_size: 512 there, 64 here, seed: 0 there, 1 here; "
    check_not_opened(tmp_path / "run", {"batch_size": 64, "seed": 1}, differences)
    (tmp_path / "thesis.tex").touch()
    for overwrite in (False, True):
        said = r"expected an empty folder or a run, found '(run|thesis.tex)'"
        check_not_opened(tmp_path, {}, said, overwrite=overwrite)


def test_a_run_refused_before_its_first_step_leaves_the_folder_to_other_settings(tmp_path):
    def make(seed, *made):
        with open_workdir(tmp_path, {"seed": seed}):
            for name in made:
                (tmp_path / name).mkdir()
            raise UserError("too large")

    with pytest.raises(UserError, match="too large"):
        make(0, "splits", "clusters")
    assert names(tmp_path) == []
    with pytest.raises(UserError, match="too large"):
        make(1, "splits", "checkpoints")
    check_not_opened(tmp_path, {"seed": 2}, "seed: 1 there")


def test_overwrite_removes_the_run_and_nothing_else_also_after_a_kill(tmp_path, monkeypatch):
    with open_workdir(tmp_path, {"seed": 0}) as folder:
        (folder / "checkpoints" / "state").mkdir(parents=True)
        (folder / "report.json").touch()
        (folder / ".index.part").mkdir()
        (folder / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(run.shutil, "rmtree", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError), open_workdir(tmp_path, {"seed": 1}, overwrite=True):
            pass
    with open_workdir(tmp_path, {"seed": 0}) as folder:  # goes on, and is not finished
        assert names(folder) == [".index.part", ".lock", "checkpoints", "notes.txt", "run.json"]
    with open_workdir(tmp_path, {"seed": 1}, overwrite=True) as folder:
        assert names(folder) == [".lock", "notes.txt", "run.json"]
        assert read_json(folder / "run.json") == {"format": 1, "seed": 1}


def state_at(step):
    return TrainState({"w": jnp.full(3, float(step))}, {"m": jnp.ones(2)}, jnp.asarray(step))


def save(folder, *steps, wait=False):
    """Save steps, those that are best marked by a minus sign; returns the steps that are kept."""
    with Checkpoints(folder) as checkpoints:
        _, best = checkpoints.restore_latest(state_at(0))
        for step in steps:
            best = best.update(abs(step), float(abs(step)) if step < 0 else -1.0)
            checkpoints.save(state_at(abs(step)), best)
        if wait:
            checkpoints.wait()
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
    assert save(copy, 4) == [2, 3, 4]
    assert save(copy, 5, 6) == [2, 5, 6]
    assert save(copy, -7) == [6, 7]
    assert save(copy, 8, -9, 10, 11) == [9, 10, 11]


def damage(path, size=0):
    """Cut all files of a checkpoint, as a loss of power leaves what was not synced."""
    files = [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        os.truncate(file, min(size, file.stat().st_size))
    return len(files)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_latest_checkpoint_gives_way_to_the_one_before(copy, caplog, sealed):
    assert save(copy, 4, wait=sealed) == [2, 3, 4]
    assert (copy / "4" / "manifest.json").exists() == sealed
    assert damage(copy / "4") > 3
    assert restored(copy)[0] == 3
    assert "damaged-4, and the checkpoint before is used" in caplog.text
    assert save(copy, 4, 5) == [2, 4, 5]
    for path in [copy / str(step) for step in (2, 4, 5)]:
        (path / "manifest.json").unlink(missing_ok=True)
        assert damage(path / "default") > 3
    with Checkpoints(copy) as checkpoints, pytest.raises(UserError, match="/5: cannot read"):
        checkpoints.restore_latest(state_at(0))


def test_each_altered_byte_of_a_checkpoint_is_noticed(copy, caplog):
    save(copy, 4)
    files = sorted(file for file in (copy / "3").rglob("*") if file.is_file())
    for number, file in enumerate(files):
        kept = shutil.copytree(copy, copy.with_name(f"altered {number}"))
        path = kept / file.relative_to(copy)
        data = bytearray(path.read_bytes() or b"?")
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        caplog.clear()
        assert restored(kept)[0] == 4
        assert "damaged-3" in caplog.text, path


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
    assert save(copy, 4) == [2, 3, 4]


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


def test_a_checkpoint_that_the_disk_has_no_room_for_is_not_begun(copy, monkeypatch):
    """Orbax would print 330 lines of tracebacks."""
    before = names(copy)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=3))
    message = r"/copy/4: cannot write the checkpoint \(No space left on device\); make room"
    with Checkpoints(copy) as checkpoints, pytest.raises(UserError, match=message):
        checkpoints.save(state_at(4), EarlyStopping(2, 2.0))
    assert names(copy) == before


def test_a_resumed_file_holds_each_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with contextlib.closing(Metrics(tmp_path, resume_at=0)) as writer:
        writer.write("train", [{"step": step, "loss": 0.5} for step in range(1, 6)])
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')  # cut off by a kill
    with contextlib.closing(Metrics(tmp_path, resume_at=3)) as writer:
        writer.write("train", [{"step": 4, "loss": 0.25}])
    kept = [(row["step"], row["loss"]) for row in read_json_lines(path)]
    assert kept == [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.25)]


def test_lines_are_on_disk_when_they_are_written(tmp_path, monkeypatch):
    fsync, synced = os.fsync, []
    with contextlib.closing(Metrics(tmp_path, resume_at=0)) as writer:
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file)) or fsync(file))
        writer.write("train", [{"step": 1, "loss": 0.5}])
    file = os.stat(tmp_path / "metrics.jsonl")
    assert (synced[0].st_ino, synced[0].st_size) == (file.st_ino, file.st_size)


def read_events(path):
    """The events of a TFRecord file, whose CRCs are not checked."""
    data, start = path.read_bytes(), 0
    while start < len(data):
        (size,) = struct.unpack_from("Q", data, start)
        yield Event.FromString(data[start + 12 : start + 12 + size])
        start += size + 16


def test_events_of_tensorboard(tmp_path):
    with contextlib.closing(Metrics(tmp_path, resume_at=7)) as writer:
        writer.write("train", [{"step": 8, "loss": 0.5, "grad_norm": 2.0}])
        writer.write("validation", [{"step": 8, "mrr": 0.25}])
    (path,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    first, resumed, *rows = read_events(path)
    assert first.file_version == "brain.Event:2"
    assert (resumed.step, resumed.session_log.status) == (8, 1)
    values = [{v.tag: v.simple_value for v in row.summary.value} for row in rows]
    assert values == [{"train/loss": 0.5, "train/grad_norm": 2.0}, {"validation/mrr": 0.25}]
    assert {row.step for row in rows} == {8}


@pytest.mark.parametrize(("limit", "name"), [(0, "metrics.jsonl"), (70, "tensorboard")])
def test_a_full_disk_is_one_error_that_names_the_file(tmp_path, limit, name):
    threads = {*threading.enumerate()}
    writer = Metrics(tmp_path, resume_at=0)
    assert {*threading.enumerate()} <= threads
    with files_limited(limit), pytest.raises(OSError, match=f"File too large: .*{name}"):
        writer.write("train", [{"step": 1, "loss": 0.5}])
    with contextlib.suppress(OSError):
        writer.close()


@jax.jit
def step(state, batch):
    params = state.params + batch
    metrics = {"loss": 1.0 / params, "grad_norm": params}
    return TrainState(params, state.optimizer, state.step + 1), metrics


def phase(steps, batch_at=lambda step: np.float32(step), every=4):
    return Phase(steps, step, lambda step: (batch_at(step), {"batch": step}), 2, every)


def train(folder, *phases, scores=None, patience=0, start=False):
    """Returns the parameter of the best step, and the rows of both files."""
    state = TrainState(jnp.float32(1), (), jnp.zeros((), jnp.int32))
    folder.mkdir(exist_ok=True)

    def evaluate(state):
        done = int(state.step)
        return {"mrr": scores[done] if scores else float(done)}

    how = {"watched": "mrr", "patience": patience, "checkpoint_every": 3}
    how["start_counts"] = start
    best = fit(state, phases, folder, evaluate=evaluate, **how)
    files = (read_json_lines(folder / f"{name}.jsonl") for name in ("metrics", "evaluations"))
    return float(best.params), *files


def test_each_step_is_taken_and_logged_once_and_each_phase_is_evaluated_at_its_end(tmp_path):
    best, metrics, evaluations = train(tmp_path, phase(range(6)), phase(range(6, 11)))
    assert [row["step"] for row in metrics] == [*range(1, 12)]
    assert [row["batch"] for row in metrics] == [*range(11)]
    assert [row["step"] for row in evaluations] == [4, 6, 10, 11]
    assert best == 1 + sum(range(11))


def test_the_best_step_comes_back_the_last_of_equals(tmp_path):
    scores = {4: 0.1, 8: 0.5, 12: 0.5, 16: 0.2}
    best, *_ = train(tmp_path, phase(range(16)), scores=scores)
    assert best == 1 + sum(range(12))
    kept = {int(path.name) for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {12, 15, 16}


def test_a_score_that_is_perfect_from_the_start_ends_nothing(tmp_path):
    scores = dict.fromkeys(range(0, 21, 4), 1.0)
    best, _, evaluations = train(tmp_path, phase(range(20)), scores=scores, patience=1, start=True)
    assert best == 1 + sum(range(20))
    assert [row["step"] for row in evaluations] == [0, 4, 8, 12, 16, 20]


def test_patience_counts_in_the_last_phase_alone(tmp_path):
    scores = {4: 0.5, 8: 0.1, 12: 0.1, 16: 0.1, 20: 0.1, 24: 0.9}
    phases = phase(range(12)), phase(range(12, 24))
    _, _, evaluations = train(tmp_path, *phases, scores=scores, patience=2)
    assert [row["step"] for row in evaluations] == [4, 8, 12, 16, 20]


def test_a_loss_or_score_that_is_not_finite_ends_training_and_names_the_step(tmp_path):
    def batch_at(step):
        return np.float32(np.nan if step == 5 else step)

    with pytest.raises(UserError, match="diverged at step 6: loss is"):
        train(tmp_path, phase(range(20), batch_at, every=10))
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")] == [*range(1, 6)]
    with pytest.raises(UserError, match="diverged at step 4: mrr nan"):
        train(tmp_path / "score", phase(range(20)), scores={4: np.nan})
