import contextlib
import pathlib
import struct
import threading

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter

from qpr_jax.training.metrics import JsonLines, MetricWriter, read_json_lines


def test_a_resumed_file_holds_each_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path, resume_at=0)
    lines.write([{"step": step, "loss": 0.5} for step in range(1, 6)])
    lines.close()
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')  # cut off by a kill
    lines = JsonLines(path, resume_at=3)
    lines.write([{"step": 4, "loss": 0.25}])
    lines.close()
    assert [(row["step"], row["loss"]) for row in read_json_lines(path)] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.5),
        (4, 0.25),
    ]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def no_space(_):
        raise OSError(28, "No space left on device")

    lines = JsonLines(tmp_path / "lines.jsonl", resume_at=0)
    monkeypatch.setattr("os.fsync", no_space)
    with (
        contextlib.closing(lines),
        pytest.raises(OSError, match=r"No space left on device: .*/lines\.jsonl'"),
    ):
        lines.write([{"step": 1}])


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


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
def test_events_on_a_full_disk_are_one_error(tmp_path):
    threads = threading.active_count()
    writer = MetricWriter(tmp_path, resume_at=0)
    assert threading.active_count() == threads
    writer._events.close()
    writer._events = RecordWriter("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*events.out.tfevents"):
        writer.steps([{"step": 1, "loss": 0.5}])
    writer.close()
