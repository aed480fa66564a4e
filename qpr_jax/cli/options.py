"""Options that commands share, and the lines that they print."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.data.cells import tsv_cell
from qpr_jax.data.columns import Columns
from qpr_jax.data.questions import Entry, read_questions
from qpr_jax.data.tables import FORMATS
from qpr_jax.printable import printable

if TYPE_CHECKING:
    from qpr_jax.reranking.base import Rerank
    from qpr_jax.retriever import Retriever

_IDS = ("id", "id1", "id2")  # keys of output whose values go out as they came
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


def _add_options(command: Command, *options: Command) -> Command:
    """The command with these options, whose order in its help is the reverse."""
    for option in options:
        command = option(command)
    return command


def questions_input(command: Command) -> Command:
    """Add the options of a command that reads questions."""
    format_help = "Of the input.  [default: by the file's suffix, or lines]"
    text_help = "Column of the question.  [default: question, text, query, title, ...]"
    return _add_options(
        command,
        click.option("--skip-bad-rows", is_flag=True, help="Skip and count bad rows."),
        click.option("--text-column", "--column", "text_column", help=text_help),
        click.option("--format", type=click.Choice(FORMATS), help=format_help),
    )


def ids_input(command: Command) -> Command:
    """Add the options of a command that reads questions with ids."""
    id_help = "Column of the id.  [default: id, qid, ..., if there is one]"
    return _add_options(
        command,
        click.option("--no-ids", is_flag=True, help="Number the questions instead."),
        click.option("--id-column", help=id_help),
    )


def payload_input(command: Command) -> Command:
    """Add the options of a command that reads questions with ids and payload."""
    payload_help = "Columns to keep with a question, as a,b.  [default: all others]"
    kept = _add_options(
        command,
        click.option("--no-payload", is_flag=True, help="Keep no other columns."),
        click.option("--payload", metavar="NAMES", help=payload_help),
    )
    return ids_input(kept)


def read_input(
    path: str,
    *,
    format: str | None,
    text_column: str | None,
    skip_bad_rows: bool,
    id_column: str | None = None,
    no_ids: bool = True,
    payload: str | None = None,
    no_payload: bool = True,
    say: Callable[[str], object] | None = None,
) -> Iterator[Entry]:
    """Read questions with the options of `questions_input`, `ids_input` and `payload_input`."""
    if id_column and no_ids:
        raise click.UsageError("--id-column and --no-ids exclude each other")
    if payload and no_payload:
        raise click.UsageError("--payload and --no-payload exclude each other")
    kept = tuple(filter(None, map(str.strip, (payload or "").split(",")))) or not no_payload
    columns = Columns(text_column or "", None if no_ids else id_column or "", kept)
    return read_questions(
        path, format=format or "", columns=columns, skip_bad_rows=skip_bad_rows, say=say
    )


def load_index(folder: str, cross_encoder: str | None = None) -> Retriever:
    """Load the index of a folder; imported late, since `--help` needs no FAISS."""
    from qpr_jax.retriever import Retriever

    return Retriever.load(folder, indexed=True, cross_encoder=cross_encoder)


def second_stage(command: Command) -> Command:
    """Add the options of a command that may search in two stages."""
    return _add_options(
        command,
        click.option("--cross-encoder", type=NamedPath(), help="Folder of a cross-encoder."),
        click.option(
            "--rerank",
            type=click.Choice(["false", "light", "cross_encoder"]),
            help="The re-ranker of the first hits.  [default: light, if there is one]",
        ),
    )


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
    """A line of cells that `data.tables` reads.

    Whitespace in a text becomes spaces, except in an id; None is an empty cell; a mapping is JSON.
    Characters that a terminal would act on are escaped.
    """
    return "\t".join(_cell(name, value) for name, value in fields.items()) + "\n"


def _cell(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        value = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, str) and name not in _IDS:
        value = " ".join(value.split())
    return "" if value is None else tsv_cell(printable(f"{value}"))
