from functools import partial

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.metric_writer import MetricWriter, read_json_lines
from qpr_jax.training.sampler import BatchIndices
from qpr_jax.training.trainer import MetricBuffer, _refuse


class Data:
    ids = np.arange(10)


class Dataset:
    data = Data


class Stage:
    rate = "optimizer.learning_rate"


class Plan:
    def indices(self, step):
        return BatchIndices(np.array([[step, step + 1]]))

    def stage_at(self, step):
        return Stage


@pytest.mark.parametrize("leave", [0, 1, 3, 5, 8])
def test_the_last_steps_are_left_for_later_and_every_step_is_written_once(tmp_path, leave):
    writer = MetricWriter(tmp_path, resume_at=0)
    buffer = MetricBuffer(writer, partial(_refuse, Dataset, Plan(), tmp_path))
    for step in range(1, 18):
        buffer.add(step, 512, {"loss": np.float32(step), "grad_norm": np.float32(1)})
        if step % 5 == 0:
            line = buffer.flush(leave=leave)
            written = [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")]
            assert written == list(range(1, step - leave + 1))
            assert line.startswith(f"loss {step - leave}.0000" if written else "")
    buffer.flush()
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["loss"]) for row in rows] == [(n, n) for n in range(1, 18)]
    assert buffer.flush() == ""
    writer.close()


def test_a_loss_that_is_not_finite_names_its_own_step(tmp_path):
    buffer = MetricBuffer(None, partial(_refuse, Dataset, Plan(), tmp_path))
    for step, loss in enumerate([1, 1, np.nan, 1, 1], start=1):
        buffer.add(step, 512, {"loss": np.float32(loss), "grad_norm": np.float32(1)})
    assert buffer.flush(leave=3).startswith("loss 1.0000")
    with pytest.raises(UserError, match="at step 3"):
        buffer.flush()
