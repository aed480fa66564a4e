"""Records of a training: JSON lines and TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import pathlib
import time
from typing import Any

import jax
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from qpr_jax.errors import UserError
from qpr_jax.files import name_in_errors, write_atomically
from qpr_jax.training import distributed

log = logging.getLogger(__name__)


def read_json_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, without a last line that was cut short; none without a file."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


FILES = {"train": "metrics.jsonl", "validation": "evaluations.jsonl"}
# The host starts at most this number of steps before they are done. So the device has work while
# metrics are written, and a signal does not wait for many steps.
IN_FLIGHT = 8


class Metrics:
    """Writes metrics.jsonl (a line per step), evaluations.jsonl and TensorBoard events.

    Opening removes what comes after step `resume_at`, so that each step has one line. Lines are on
    disk when a method returns. If it is full, methods raise OSError with the file or its folder.
    Only the first of several processes writes.
    """

    def __init__(self, workdir: pathlib.Path, *, resume_at: int) -> None:
        self._kept: list[tuple[int, int, dict[str, Any]]] = []  # on the device, not written yet
        self._paths = {name: workdir / file for name, file in FILES.items()}
        self._folder = workdir / "tensorboard"
        self._events: Any = None
        self.restart_clock()
        if not distributed.is_first():
            return
        for path in self._paths.values():
            kept = [row for row in read_json_lines(path) if row["step"] <= resume_at]
            with write_atomically(path) as file:
                file.write(_lines(kept))
        self._folder.mkdir(exist_ok=True)
        # Not SummaryWriter: its thread prints a traceback when the disk is full.
        self._events = EventsWriter(str(self._folder / "events"))
        # TensorBoard hides what older files have from this step on.
        start = SessionLog(status=SessionLog.START)
        self._write_events([Event(step=resume_at + 1, session_log=start)])

    def close(self) -> None:
        """Close the file of events."""
        with contextlib.suppress(OSError):  # a full disk, which `_write_events` has reported
            if self._events:
                self._events.close()

    def restart_clock(self) -> None:
        """Measure the rate from now on, after work that is not training."""
        self._since = time.perf_counter()

    def add(self, step: int, pairs: int, metrics: dict[str, Any]) -> None:
        """Keep the metrics of a step and the number of its pairs; wait if many are in flight.

        Reading a metric waits for its step; read one by one they would leave the device idle.
        """
        self._kept.append((step, pairs, metrics))
        if len(self._kept) > IN_FLIGHT:
            jax.block_until_ready(self._kept[-IN_FLIGHT - 1][2])

    def flush(self) -> str:
        """Write what is kept; return a line on the last step. UserError if one is not finite."""
        read, kept = jax.device_get([metrics for *_, metrics in self._kept]), self._kept
        seconds, self._kept = time.perf_counter() - self._since, []
        self.restart_clock()
        rate = round(sum(pairs for _, pairs, _ in kept) / seconds, 1)
        times = {"seconds": round(seconds / max(1, len(kept)), 6), "pairs_per_second": rate}
        line, rows = "", list[dict[str, Any]]()
        for (step, *_), metrics in zip(kept, read, strict=True):
            values = {name: float(value) for name, value in metrics.items()}
            if not all(map(math.isfinite, values.values())):
                self.write("train", rows)
                what = f"loss is {values['loss']}, gradient norm is {values['grad_norm']}"
                raise _diverged(step, what)
            rows.append({"step": step, **values, **times})
            line = f"loss {values['loss']:.4f}, {rate:,.0f} pairs/s"
        self.write("train", rows)
        return line

    def write_scores(self, step: int, scores: dict[str, float]) -> dict[str, float]:
        """Write, log and return the scores after a step; UserError if one is not finite."""
        named = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        if not all(map(math.isfinite, scores.values())):
            raise _diverged(step, named)
        self.write("validation", [{"step": step, **scores}])
        log.info("step %d: %s", step, named)
        return scores

    def write(self, group: str, rows: list[dict[str, Any]]) -> None:
        """Write metrics of steps, `group` "train", or scores of evaluations, "validation"."""
        if not (self._events and rows):
            return
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


def _diverged(step: int, what: str) -> UserError:
    return UserError(
        f"training diverged at step {step}: {what}",
        setting="optimizer.learning_rate",
        remedy="lower it, and start again with `overwrite=True`",
    )


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
