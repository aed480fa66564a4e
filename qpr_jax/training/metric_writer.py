"""Records of a training: JSON lines and TensorBoard events."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from tensorboardX import SummaryWriter

from qpr_jax.errors import UserError


class JsonLines:
    """A file of one JSON object a line, each with a `step`, that a resumed run continues.

    What stands after step `resume_at`, and a line that a kill cut off, are removed on opening, so
    that each step stands once.
    """

    def __init__(self, path: pathlib.Path, *, resume_at: int) -> None:
        """Open `path`, keeping the lines up to step `resume_at`."""
        kept = 0
        with open(path, "a+b") as file:
            file.seek(0)
            for line in file:
                step = _step_of(line)
                if step is None or step > resume_at:
                    break
                kept += len(line)
            file.truncate(kept)
        self._file = open(path, "ab")  # noqa: SIM115 (closed by close)

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append rows; they are on disk when this returns."""
        self._file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _step_of(line: bytes) -> int | None:
    """The step of a line; None of one that is not whole."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):
        return None


def read_json_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """All rows of a file that `JsonLines` wrote; none where there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"{path}: expected JSON lines, got {error}; restore or remake it") from None


class MetricWriter:
    """metrics.jsonl (a line a step), evaluations.jsonl (a line an evaluation), TensorBoard."""

    def __init__(self, workdir: pathlib.Path, *, resume_at: int) -> None:
        """Continue the records of `workdir` after step `resume_at`."""
        self._metrics = JsonLines(workdir / "metrics.jsonl", resume_at=resume_at)
        self._evaluations = JsonLines(workdir / "evaluations.jsonl", resume_at=resume_at)
        self._events = SummaryWriter(
            str(workdir / "tensorboard"), purge_step=resume_at + 1 if resume_at else None
        )

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Record training steps."""
        self._metrics.write(rows)
        self._to_events("train", rows)

    def evaluation(self, row: dict[str, Any]) -> None:
        """Record an evaluation."""
        self._evaluations.write([row])
        self._to_events("validation", [row])

    def close(self) -> None:
        """Close all files."""
        self._metrics.close()
        self._evaluations.close()
        self._events.close()

    def _to_events(self, group: str, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for name, value in row.items():
                if name != "step":
                    self._events.add_scalar(f"{group}/{name}", value, row["step"])
        self._events.flush()


class NullWriter:
    """Those of a process that does not write."""

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Record nothing."""

    def evaluation(self, row: dict[str, Any]) -> None:
        """Record nothing."""

    def close(self) -> None:
        """Nothing is open."""
