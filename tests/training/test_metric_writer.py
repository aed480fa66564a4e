"""The records of a training: each step once, and one error of a full disk."""

import contextlib
import os
import pathlib
import struct
import threading

import pytest
from tensorboardX.proto.event_pb2 import Event

from qpr_jax.training.metrics import MetricWriter, read_json_lines


def test_a_resumed_file_holds_each_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with contextlib.closing(MetricWriter(tmp_path, resume_at=0)) as writer:
        writer.steps([{"step": step, "loss": 0.5} for step in range(1, 6)])
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')  # cut off by a kill
    with contextlib.closing(MetricWriter(tmp_path, resume_at=3)) as writer:
        writer.steps([{"step": 4, "loss": 0.25}])
    assert [(row["step"], row["loss"]) for row in read_json_lines(path)] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.5),
        (4, 0.25),
    ]


def read_events(path):
    """The events of a TFRecord file, whose CRCs are not checked."""
    data, start = path.read_bytes(), 0
    while start < len(data):
        (size,) = struct.unpack_from("Q", data, start)
        yield Event.FromString(data[start + 12 : start + 12 + size])
        start += size + 16


def test_events_of_tensorboard(tmp_path):
    with contextlib.closing(MetricWriter(tmp_path, resume_at=7)) as writer:
        writer.steps([{"step": 8, "loss": 0.5, "grad_norm": 2.0}])
        writer.evaluation({"step": 8, "mrr": 0.25})
    (path,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    first, resumed, *rows = read_events(path)
    assert first.file_version == "brain.Event:2"
    assert (resumed.step, resumed.session_log.status) == (8, 1)
    values = [(row.step, {v.tag: v.simple_value for v in row.summary.value}) for row in rows]
    assert values == [
        (8, {"train/loss": 0.5, "train/grad_norm": 2.0}),
        (8, {"validation/mrr": 0.25}),
    ]


def fill_disk_of(path):
    """Let this process write to a full disk where it has `path` open."""
    with open("/dev/full", "wb") as full:
        for entry in pathlib.Path("/proc/self/fd").iterdir():
            if entry.exists() and entry.samefile(path):
                os.dup2(full.fileno(), int(entry.name))


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.out.tfevents"])
def test_a_full_disk_is_one_error_that_names_the_file(tmp_path, name):
    threads = threading.active_count()
    writer = MetricWriter(tmp_path, resume_at=0)
    assert threading.active_count() == threads
    (path,) = tmp_path.rglob(f"{name}*")
    fill_disk_of(path)
    with pytest.raises(OSError, match=f"No space left on device: .*{name}"):
        writer.steps([{"step": 1, "loss": 0.5}])
    with contextlib.suppress(OSError):
        writer.close()
