"""Records of a training: JSON lines and TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from qpr_jax.files import name_in_errors, write_atomically


def read_json_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, without a last line that was cut short; none without a file."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


FILES = {"train": "metrics.jsonl", "validation": "evaluations.jsonl"}


class MetricWriter:
    """Writes metrics.jsonl (a line per step), evaluations.jsonl and TensorBoard events.

    Opening removes what comes after step `resume_at`, so that each step has one line. Lines are on
    disk when a method returns. If it is full, methods raise OSError with the file or its folder.
    """

    def __init__(self, workdir: pathlib.Path, *, resume_at: int) -> None:
        self._paths = {name: workdir / file for name, file in FILES.items()}
        for path in self._paths.values():
            kept = [row for row in read_json_lines(path) if row["step"] <= resume_at]
            with write_atomically(path) as file:
                file.write(_lines(kept))
        self._folder = workdir / "tensorboard"
        self._folder.mkdir(exist_ok=True)
        # Not SummaryWriter: its thread prints a traceback when the disk is full.
        self._events = EventsWriter(str(self._folder / "events"))
        # TensorBoard hides what older files have from this step on.
        start = SessionLog(status=SessionLog.START)
        self._write_events([Event(step=resume_at + 1, session_log=start)])

    def close(self) -> None:
        """Close the file of events."""
        with contextlib.suppress(OSError):  # a full disk, which `_write_events` has reported
            self._events.close()

    def write(self, group: str, rows: list[dict[str, Any]]) -> None:
        """Write metrics of steps, `group` "train", or scores of evaluations, "validation"."""
        path = self._paths[group]
        with name_in_errors(path), open(path, "ab") as file:
            file.write(_lines(rows))
            file.flush()
            os.fsync(file.fileno())
        events = []
        for row in rows:
            values = (name for name in row if name != "step")
            summary = [Summary.Value(tag=f"{group}/{n}", simple_value=row[n]) for n in values]
            events.append(Event(step=row["step"], summary=Summary(value=summary)))
        self._write_events(events)

    def _write_events(self, events: list[Any]) -> None:
        with name_in_errors(self._folder):
            for event in events:
                event.wall_time = time.time()
                self._events.write_event(event)
            self._events.flush()


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
