"""The estimate before a long command, and what it took after."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import click

from qpr_jax.costs.estimate import Estimate, Stopwatch
from qpr_jax.costs.rows import Sample, sample_file, watch
from qpr_jax.data.questions import Entry
from qpr_jax.data.tables import STANDARD_INPUT, input_name
from qpr_jax.errors import UserError

log = logging.getLogger("qpr_jax")


def dry_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option to stop after the estimate."""
    text = "Say what it will take, and stop: nothing is written."
    return click.option("--dry-run", is_flag=True, help=text)(command)


class Costs:
    """Says what a command will take when its questions are known, and at its end what it took.

    Of a file that is before the work; standard input, and a pipe, must be read first.
    """

    def __init__(self, path: str, estimate: Callable[[Sample], Estimate], *, stop: bool) -> None:
        """path: what the command writes. estimate: also refuses what does not fit.

        stop: after the estimate, as with --dry-run.
        """
        self._estimate, self._stop = estimate, stop
        self._watch = Stopwatch(path)
        self.facts: dict[str, Any] = {}  # of the estimate
        self._source = "input"
        self.count = 0  # about how many questions there are; 0 where that is unknown

    def begin(self, path: str, read: Callable[[], Iterator[Entry]]) -> Iterator[Entry] | None:
        """The entries of an input, which `read` reads; None where the command ends here."""
        self._source = input_name(path)
        if path == STANDARD_INPUT or _is_pipe(path):
            entries = watch(read(), self._say)
            if not self._stop:
                return entries
            for _ in entries:
                pass
            return None
        sample = sample_file(path, read())
        self._say(sample)
        if self._stop:
            return None
        # Rows that are all read are not read, nor bad ones counted, again.
        return iter(sample.entries) if sample.whole else read()

    def begin_sample(self, sample: Sample) -> bool:
        """Say it of questions that are known; whether the command goes on."""
        self._say(sample)
        return not self._stop

    def end(self) -> None:
        """Log what the command took."""
        log.info("%s", self._watch.line())

    def _say(self, sample: Sample) -> None:
        if not sample.count:
            if self._stop:
                raise UserError(f"{self._source}: expected questions, got none")
            return  # the command says it
        self.count = sample.count
        found = self._estimate(sample)
        # With what was measured and, of standard input, read so far.
        found = replace(found, seconds=found.seconds + self._watch.seconds)
        self.facts = asdict(found)
        log.info("%s", found.line())


def _is_pipe(path: str) -> bool:
    """Whether what is read of a file is gone, as of `<(zcat log.gz)` in a shell."""
    return pathlib.Path(path).exists() and not pathlib.Path(path).is_file()
