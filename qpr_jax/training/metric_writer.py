"""Records of a training: JSON lines and TensorBoard events."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from tensorboardX import SummaryWriter

from qpr_jax.errors import UserError
from qpr_jax.files import name_in_errors

_unclosed: list[Any] = []  # TensorBoard's writers that failed


class JsonLines:
    """A file of one JSON object per line, each with a `step`, that a resumed run continues.

    On opening, lines after step `resume_at` are removed, and a line that a kill cut short, so that
    each step has one line.
    """

    def __init__(self, path: pathlib.Path, *, resume_at: int) -> None:
        """Open `path` and keep its lines up to step `resume_at`."""
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

    Methods that write raise OSError, which names the file, if the disk is full.
    """

    def __init__(self, workdir: pathlib.Path, *, resume_at: int) -> None:
        """Open the files of `workdir` and remove what comes after step `resume_at`."""
        self._metrics = JsonLines(workdir / "metrics.jsonl", resume_at=resume_at)
        self._evaluations = JsonLines(workdir / "evaluations.jsonl", resume_at=resume_at)
        self._events = SummaryWriter(
            str(workdir / "tensorboard"), purge_step=resume_at + 1 if resume_at else None
        )

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Write the metrics of training steps."""
        self._metrics.write(rows)
        self._to_events("train", rows)

    def evaluation(self, row: dict[str, Any]) -> None:
        """Write the scores of an evaluation."""
        self._evaluations.write([row])
        self._to_events("validation", [row])

    def close(self) -> None:
        """Close all files."""
        self._metrics.close()
        self._evaluations.close()
        try:
            self._events.close()
        except OSError:  # a full disk, which `_to_events` has reported
            # Else tensorboardX tries again when the program ends, and prints a traceback; so does
            # its thread once the writer is deleted.
            _unclosed.append(self._events.file_writer.event_writer)
            self._events.file_writer.event_writer = NullWriter()

    def _to_events(self, group: str, rows: list[dict[str, Any]]) -> None:
        with name_in_errors(self._events.logdir):
            for row in rows:
                for name, value in row.items():
                    if name != "step":
                        self._events.add_scalar(f"{group}/{name}", value, row["step"])
            self._events.flush()


class NullWriter:
    """A `MetricWriter` that writes nothing, for all processes but the first."""

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Write nothing."""

    def evaluation(self, row: dict[str, Any]) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Close nothing."""
