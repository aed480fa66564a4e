"""The loop, over a model of one number."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training.loop import Phase, fit
from qpr_jax.training.metrics import read_json_lines
from qpr_jax.training.train_step import TrainState


@jax.jit
def step(state, batch):
    params = state.params + batch
    metrics = {"loss": 1.0 / params, "grad_norm": params}
    return TrainState(params, state.optimizer, state.step + 1), metrics


def phase(steps, batch_at=lambda step: np.float32(step), every=4):
    return Phase(steps, step, batch_at, lambda step: {"batch": step}, 2, every)


def train(folder, *phases, scores=None, patience=0):
    """Returns the parameter of the best step, and the rows of both files."""
    state = TrainState(jnp.float32(1), (), jnp.zeros((), jnp.int32))
    folder.mkdir(exist_ok=True)

    def evaluate(state):
        done = int(state.step)
        return {"mrr": scores[done] if scores else float(done)}

    how = {"watched": "mrr", "patience": patience, "checkpoint_every": 3}
    best = fit(state, phases, folder, evaluate=evaluate, **how)
    files = (read_json_lines(folder / f"{name}.jsonl") for name in ("metrics", "evaluations"))
    return float(best.params), *files


def test_each_step_is_taken_and_logged_once_and_each_phase_is_evaluated_at_its_end(tmp_path):
    best, metrics, evaluations = train(tmp_path, phase(range(6)), phase(range(6, 11)))
    assert [row["step"] for row in metrics] == [*range(1, 12)]
    assert [row["batch"] for row in metrics] == [*range(11)]
    assert [row["step"] for row in evaluations] == [4, 6, 10, 11]
    assert best == 1 + sum(range(11))


def test_the_best_step_comes_back_the_first_of_equals(tmp_path):
    scores = {4: 0.1, 8: 0.5, 12: 0.5, 16: 0.2}
    best, *_ = train(tmp_path, phase(range(16)), scores=scores)
    assert best == 1 + sum(range(8))
    kept = {int(path.name) for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {8, 16}


def test_patience_counts_in_the_last_phase_alone(tmp_path):
    scores = {4: 0.5, 8: 0.1, 12: 0.1, 16: 0.1, 20: 0.1, 24: 0.9}
    phases = phase(range(12)), phase(range(12, 24))
    _, _, evaluations = train(tmp_path, *phases, scores=scores, patience=2)
    assert [row["step"] for row in evaluations] == [4, 8, 12, 16, 20]


def test_a_signal_saves_and_the_same_call_ends_with_the_same_bits(tmp_path):
    expected = train(tmp_path / "whole", phase(range(20)))

    def stops_once(step):
        if step == 9 and not (tmp_path / "stopped.flag").exists():
            (tmp_path / "stopped.flag").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return np.float32(step)

    with pytest.raises(Interrupted) as error:
        train(tmp_path / "stopped", phase(range(20), stops_once))
    assert error.value.args == (signal.SIGTERM,)
    assert len(read_json_lines(tmp_path / "stopped" / "metrics.jsonl")) == 10
    best, metrics, evaluations = train(tmp_path / "stopped", phase(range(20), stops_once))
    assert (best, evaluations) == (expected[0], expected[2])
    for row in metrics + expected[1]:
        del row["pairs_per_second"]
    assert metrics == expected[1]


def test_a_loss_or_score_that_is_not_finite_ends_training_and_names_the_step(tmp_path):
    def batch_at(step):
        return np.float32(np.nan if step == 5 else step)

    with pytest.raises(UserError, match="diverged at step 6: loss is"):
        train(tmp_path, phase(range(20), batch_at, every=10))
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")] == [*range(1, 6)]
    with pytest.raises(UserError, match="diverged at step 4: mrr nan"):
        train(tmp_path / "score", phase(range(20)), scores={4: np.nan})
