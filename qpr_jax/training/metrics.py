"""Records of a training: JSON lines and TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import time
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter

from qpr_jax.errors import UserError
from qpr_jax.files import name_in_errors


class JsonLines:
    """A file of one JSON object per line, each with a `step`, that a resumed run continues.

    On opening, lines after step `resume_at` are removed, and a line that a kill cut short, so that
    each step has one line.
    """

    def __init__(self, path: pathlib.Path, *, resume_at: int) -> None:
        kept = 0
        with open(path, "a+b") as file:
            file.seek(0)
            for line in file:
                step = _step_of(line)
                if step is None or step > resume_at:
                    break
                kept += len(line)
            file.truncate(kept)
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append rows; they are on disk when this returns."""
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with name_in_errors(self._path):
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _step_of(line: bytes) -> int | None:
    """The step of a line; None if the line is not whole."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):
        return None


def read_json_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read all rows of a file that `JsonLines` wrote; none if there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(
            f"{path}: expected JSON lines, got {error}", remedy="restore or remove the file"
        ) from None


class MetricWriter:
    """Writes metrics.jsonl (a line per step), evaluations.jsonl and TensorBoard events.

    Opening removes what comes after step `resume_at`. Methods that write raise OSError, which names
    the file, if the disk is full.
    """

    def __init__(self, workdir: pathlib.Path, *, resume_at: int) -> None:
        self._metrics = JsonLines(workdir / "metrics.jsonl", resume_at=resume_at)
        self._evaluations = JsonLines(workdir / "evaluations.jsonl", resume_at=resume_at)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        self._path = workdir / "tensorboard" / name
        self._path.parent.mkdir(exist_ok=True)
        # Not SummaryWriter: its thread prints a traceback when the disk is full.
        self._events = RecordWriter(str(self._path))
        first = [Event(file_version="brain.Event:2")]
        if resume_at:  # TensorBoard hides what older files have from this step on
            start = SessionLog(status=SessionLog.START)
            first.append(Event(step=resume_at + 1, session_log=start))
        self._write_events(first)

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Write the metrics of training steps."""
        self._metrics.write(rows)
        self._write_events([_event("train", row) for row in rows])

    def evaluation(self, row: dict[str, Any]) -> None:
        """Write the scores of an evaluation."""
        self._evaluations.write([row])
        self._write_events([_event("validation", row)])

    def close(self) -> None:
        """Close all files."""
        self._metrics.close()
        self._evaluations.close()
        with contextlib.suppress(OSError):  # a full disk, which `_write_events` has reported
            self._events.close()

    def _write_events(self, events: list[Any]) -> None:
        with name_in_errors(self._path):
            for event in events:
                event.wall_time = time.time()
                self._events.write(event.SerializeToString())
            self._events.flush()


def _event(group: str, row: dict[str, Any]) -> Any:
    values = [
        Summary.Value(tag=f"{group}/{name}", simple_value=value)
        for name, value in row.items()
        if name != "step"
    ]
    return Event(step=row["step"], summary=Summary(value=values))
