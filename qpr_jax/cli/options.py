"""Options that commands share, and the lines that they print."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.data.questions import Entry, read_questions
from qpr_jax.data.tables import FORMATS
from qpr_jax.text.tokenizer import replace_surrogates

if TYPE_CHECKING:
    from qpr_jax.reranking.base import Rerank
    from qpr_jax.retriever import Retriever

CHUNK = 1024  # questions that are searched or added together
Command = Callable[..., Any]


class NamedPath(click.Path):
    """A path that is not empty, as the value of an unset shell variable would be."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        return super().convert(value or self.fail("expected a path, got none", param), param, ctx)


class FiniteRange(click.FloatRange):
    """A number in a range, neither NaN nor infinite."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no number", param, ctx)


def questions_input(command: Command) -> Command:
    """Add the options of a command that reads questions."""
    format_help = "Of the input.  [default: by the file's suffix, or lines]"
    for option in (
        click.option("--skip-bad-rows", is_flag=True, help="Skip and count bad rows."),
        click.option("--column", default="question", help="Column of the question."),
        click.option("--format", type=click.Choice(FORMATS), help=format_help),
    ):
        command = option(command)
    return command


def read_input(path: str, format: str | None, column: str, skip_bad_rows: bool) -> Iterator[Entry]:
    """Read questions with the options of `questions_input`."""
    return read_questions(path, format=format or "", column=column, skip_bad_rows=skip_bad_rows)


def load_index(folder: str, cross_encoder: str | None = None) -> Retriever:
    """Load the index of a folder; imported late, since `--help` needs no FAISS."""
    from qpr_jax.retriever import Retriever

    return Retriever.load(folder, indexed=True, cross_encoder=cross_encoder)


def second_stage(command: Command) -> Command:
    """Add the options of a command that may search in two stages."""
    for option in (
        click.option("--cross-encoder", type=NamedPath(), help="Folder of a cross-encoder."),
        click.option(
            "--rerank",
            type=click.Choice(["false", "light", "cross_encoder"]),
            help="The re-ranker of the first hits.  [default: light, if there is one]",
        ),
    ):
        command = option(command)
    return command


def parse_rerank(word: str | None) -> Rerank:
    """The value of `Retriever.search` for that of --rerank."""
    return False if word == "false" else word  # type: ignore[return-value]


def chunked(entries: Iterable[Entry], size: int = CHUNK) -> Iterator[list[Entry]]:
    """Yield the entries in lists of at most `size`."""
    stream = iter(entries)
    return iter(lambda: list(itertools.islice(stream, size)), [])


def as_json(fields: Mapping[str, object]) -> str:
    """A line of JSON."""
    return json.dumps(fields) + "\n"


def as_tsv(fields: Mapping[str, object]) -> str:
    """A line of cells, of None an empty one; whitespace in a text becomes spaces."""
    values = ("" if v is None else v for v in fields.values())
    cells = (" ".join(v.split()) if isinstance(v, str) else f"{v}" for v in values)
    return replace_surrogates("\t".join(cells)) + "\n"
