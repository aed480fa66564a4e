import dataclasses
import itertools
import subprocess
import sys
import threading
import time
import traceback

import jax
import numpy as np
import pytest

from qpr_jax.training import trainer
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.prefetch import AHEAD, Prefetch
from qpr_jax.training.stages import Plan, build_plan
from qpr_jax.training.teacher import Teacher
from qpr_jax.training.train_step import CompiledStep


@pytest.fixture(scope="module")
def config():
    return load_config("synthetic_sdml:smoke")


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert not {thread for thread in set(threading.enumerate()) - before if is_ours(thread)}


def is_ours(thread):
    return thread.name.startswith("prefetch")


def with_teacher(dataset):
    vectors = np.random.default_rng(0).normal(size=(len(dataset.token_ids), 16))
    return dataclasses.replace(dataset, teacher=Teacher((vectors.astype(np.float32),), None, None))


PLANS = {
    "plain": {},
    "all that is drawn": {
        "batch.sampling": "clusters",
        "batch.hard_negatives": 8,
        "batch.token_dropout": 0.2,
    },
    "both data in a batch": {"loss.names": "sdml,contrastive"},
    "in turns, after imitation": {
        "loss.names": "sdml,online_contrastive,ranking",
        "loss.alternate": True,
        "batch.token_dropout": 0.2,
        "encoder.output_dim": 16,
        "encoder.normalize": True,
        "teacher.epochs": 1,
        "teacher.batch_size": 64,
        "teacher.weight": 0.5,
    },
}


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("name", PLANS)
def test_the_batches_are_those_of_the_plain_loop(config, dataset, name, devices):
    plan = build_plan(
        override(config, PLANS[name] | {"devices": devices, "max_steps": 12}),
        with_teacher(dataset) if "teacher.epochs" in PLANS[name] else dataset,
    )
    ends = plan.stages[-1].ends
    for done in (0, ends // 2, ends - 1):
        with Prefetch(plan.load, range(done, ends)) as batches:
            read = list(batches)
        assert len(read) == ends - done
        for step, (batch, metrics) in enumerate(read, start=done):
            (loader, _), own_step = plan.objective_at(step)
            expected = loader.layout(own_step)
            assert batch.parts == expected.parts
            assert len(jax.tree.leaves(batch)) == 3  # transfers
            for found, array in zip(*map(jax.tree.leaves, (batch, expected)), strict=True):
                assert len(found.sharding.device_set) == devices
                np.testing.assert_array_equal(found, array)
            assert metrics == loader.metrics(loader.indices(own_step))


def test_the_questions_of_a_step_are_drawn_once(config, dataset, monkeypatch):
    plan = build_plan(override(config, {"max_steps": 6}), dataset)
    loader = plan.stages[0].objectives[0].loader
    drawn = []
    draw = loader.indices
    monkeypatch.setattr(loader, "indices", lambda step: (drawn.append(step), draw(step))[1])
    with Prefetch(plan.load, range(6)) as batches:
        list(batches)
    assert drawn == list(range(6))


def test_at_most_two_are_made_ahead():
    made = []
    with Prefetch(lambda step: made.append(step) or step, range(3, 20)) as values:
        assert not made
        for step in range(3, 20):
            assert next(values) == step
            until = time.monotonic() + 60
            while len(made) < min(step - 3 + 1 + AHEAD, 17) and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(0.005)  # for more, if it made more
            assert made == list(range(3, min(step + 1 + AHEAD, 20)))
        with pytest.raises(StopIteration):
            next(values)


def test_an_error_is_raised_at_its_step():
    def make(step):
        if step == 4:
            raise KeyError("the fifth")
        return step

    def read():
        with Prefetch(make, itertools.count()) as values:
            for value in values:
                seen.append(value)

    seen = []
    with pytest.raises(KeyError, match="the fifth") as error:
        read()
    assert seen == [0, 1, 2, 3]
    assert "make" in [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    with Prefetch(make, range(9)) as values:  # whose loop ends before
        assert [next(values) for _ in range(4)] == seen


def test_its_thread_ends_with_the_loop_however_that_ends():
    def stop_at(step, error):
        with Prefetch(lambda step: step, range(99)) as values:
            for value in values:
                assert any(map(is_ours, threading.enumerate()))
                if value == step:
                    raise error

    for error in (KeyboardInterrupt, RuntimeError, GeneratorExit):
        with pytest.raises(error):
            stop_at(3, error)
        assert not any(map(is_ours, threading.enumerate()))


def test_a_program_that_leaves_it_open_ends():
    program = """
from qpr_jax.training.prefetch import Prefetch
values = Prefetch(lambda step: step, range(99))
print(next(values), next(values))
raise SystemExit(7)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (7, "0 1\n"), ended.stderr


def test_only_waiting_of_an_idle_reader_counts():
    def make(step):
        time.sleep(0.01)

    for busy in (False, True):
        with Prefetch(make, range(5), busy=lambda busy=busy: busy) as values:
            list(values)
        assert (values.waited >= 0.01) is not busy


def test_a_training_fails_at_the_step_whose_batch_does(config, dataset, tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(Plan, "compile", lambda *_: None)

    def step(self, state, batch):
        steps.append(batch)
        return state, {"loss": np.float32(1), "grad_norm": np.float32(1)}

    monkeypatch.setattr(CompiledStep, "__call__", step)
    plan = build_plan(override(config, {"max_steps": 9}), dataset)
    loader = plan.stages[0].objectives[0].loader
    load = loader.load

    def fails_at_five(step, mesh):
        if step == 5:
            raise OSError("the disk of the teacher is gone")
        return load(step, mesh)

    monkeypatch.setattr(loader, "load", fails_at_five)
    monkeypatch.setattr(trainer, "build_plan", lambda *_: plan)
    with pytest.raises(OSError, match="the disk of the teacher is gone"):
        trainer.train(config, dataset, tmp_path)
    assert len(steps) == 5


def test_the_loop_seldom_waits_for_batches_of_512_pairs():
    """Where a step takes 2 ms, in less than a tenth of the time, unless others keep the cores."""
    config = override(load_config("synthetic_sdml"), {"batch_size": 512, "devices": 1})
    dataset = load_dataset(config, None)
    rng = np.random.default_rng(0)  # questions as long as Quora's, and their distinct tokens
    count, longest = len(dataset.token_ids), 64
    lengths = np.minimum(3 + rng.geometric(0.1, count), longest)
    token_ids = 1 + rng.zipf(1.3, (count, longest)) % (dataset.tokenizer.size - 1)
    token_ids[np.arange(longest) >= lengths[:, None]] = 0
    dataset = dataclasses.replace(dataset, token_ids=token_ids.astype(np.int32))
    plan = build_plan(config, dataset)
    shares = []
    while len(shares) < 20 and min(shares, default=1) >= 0.1:
        with Prefetch(plan.load, range(101)) as batches:
            next(batches)  # before which nothing can be ahead
            batches.waited, start = 0.0, time.perf_counter()
            for _ in range(100):
                time.sleep(0.002)
                next(batches)
            shares.append(batches.waited / (time.perf_counter() - start))
    assert min(shares) < 0.1


def test_an_end_of_iteration_in_making_a_value_does_not_end_the_loop_in_silence():
    with Prefetch(lambda step: next(iter(())), range(3)) as values, pytest.raises(RuntimeError):
        list(values)
