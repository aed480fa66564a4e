"""How questions come in, and how results go out."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from qpr_jax.data.questions import Entry, read_questions
from qpr_jax.data.tables import FORMATS
from qpr_jax.text.tokenizer import replace_surrogates

log = logging.getLogger("qpr_jax")


class NamedPath(click.Path):
    """A path; a shell makes an empty one of a variable that is not set."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        return super().convert(value or self.fail("expected a path, got none", param), param, ctx)


BATCH = 1024  # questions that are searched or added together
Command = Callable[..., Any]


def questions_input(command: Command) -> Command:
    """The options of a command that reads questions."""
    for option in reversed(
        (
            click.option(
                "--format",
                type=click.Choice(FORMATS),
                help="Of the input; else what its name ends in says, else a question a line.",
            ),
            click.option("--column", default="question", help="Where the question stands."),
            click.option("--skip-bad-rows", is_flag=True, help="Count and leave out bad rows."),
        )
    ):
        command = option(command)
    return command


def read_input(path: str, format: str | None, column: str, skip_bad_rows: bool) -> Iterator[Entry]:
    """The questions of an input, with the options of `questions_input`."""
    return read_questions(
        path, format=format or "", column=column, skip_bad_rows=skip_bad_rows, log=log.info
    )


def chunked(entries: Iterable[Entry], size: int = BATCH) -> Iterator[list[Entry]]:
    """The entries, so many at a time."""
    stream = iter(entries)
    return iter(lambda: list(itertools.islice(stream, size)), [])


def as_json(fields: Mapping[str, object]) -> str:
    """A line of JSON."""
    return json.dumps(fields) + "\n"


def as_tsv(fields: Mapping[str, object]) -> str:
    """A line of cells; blanks of a text that would break it become spaces."""
    return "\t".join(map(_cell, fields.values())) + "\n"


def _cell(value: object) -> str:
    text = " ".join(value.split()) if isinstance(value, str) else f"{value}"
    return replace_surrogates(text)
