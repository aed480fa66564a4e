"""The class of all commands of `qpr`, options that they share, and lines that they print."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.data.columns import table_files, tsv_cell
from qpr_jax.data.decoding import FORMATS, STANDARD_INPUT
from qpr_jax.data.tables import Table, read_table
from qpr_jax.errors import printable, printable_json

if TYPE_CHECKING:
    from qpr_jax.retriever import Retriever

log = logging.getLogger("qpr_jax")

CHUNK = 1024  # questions that are searched or added together
_IDS = ("id", "query_id")  # keys of output whose values go out as they came
_JSON = f"{__name__}.json"
Function = Callable[..., Any]


def wants_json() -> bool:
    """Whether the command that runs was called with `--json`."""
    return bool(click.get_current_context().meta[_JSON])


class Command(click.Command):
    """A command that returns what it prints, and ends on Ctrl-C with a line that says what is kept.

    Its function returns a mapping, which is printed as JSON, or an exit status, or None for 0.

    Args:
      stopped: what Ctrl-C leaves, `{folder}` in it is the value of this parameter.
      prints_json: the command prints JSON without `--json`, too: a mapping in several lines then.
    """

    def __init__(self, *args: Any, stopped: str, prints_json: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stopped, self.prints_json = stopped, prints_json
        text = "Print JSON (the default)." if prints_json else "Print the result as JSON."
        self.params.append(click.Option(["--json", "wants_json"], is_flag=True, help=text))

    def invoke(self, ctx: click.Context) -> int:
        """Run the function and print what it returns; the exit status."""
        wants_json = ctx.meta[_JSON] = ctx.params.pop("wants_json")
        for name, no in (("id_column", "no_ids"), ("payload", "no_payload")):
            if ctx.params.get(name) and ctx.params.get(no):
                what = f"give --{name} or --{no}, not both".replace("_", "-")
                raise click.UsageError(what, ctx)
        try:
            result = super().invoke(ctx)
            if isinstance(result, Mapping) and (wants_json or self.prints_json):
                click.echo(json.dumps(result, indent=None if wants_json else 2))
            return result if isinstance(result, int) else 0
        except KeyboardInterrupt:
            start = "\n" if sys.stderr.isatty() else ""  # a terminal has just shown ^C
            print(f"{start}stopped: {self.stopped.format_map(ctx.params)}", file=sys.stderr)
            return 128 + signal.SIGINT


class NamedPath(click.Path):
    """A path that is not empty, as an unset shell variable is; what is written is never -."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        if not value or (value == "-" and param.name in ("out", "to")):
            self.fail(f"expected the path of a file or a folder, got {value!r}", param, ctx)
        return super().convert(value, param, ctx)


PATH, FILE, FOLDER = NamedPath(), NamedPath(dir_okay=False), NamedPath(file_okay=False)
COUNT, SHARE, DISTANCE = click.IntRange(1), click.FloatRange(0, 1), click.FloatRange(0)
PART = click.FloatRange(0, 1, min_open=True, max_open=True)
argument, option = click.argument, click.option
command = functools.partial(click.command, cls=Command)


def table_format(what: str) -> Function:
    """Return the option --format of a command that reads tables only."""
    return option("--format", type=click.Choice(FORMATS[1:]), help=f"Format of {what}.")


def options(*several: Function) -> Function:
    """Return a decorator that adds several options, in their order."""
    return lambda function: functools.reduce(lambda f, add: add(f), reversed(several), function)


_ID = "Column of the id.  [default: id, qid, ..., if there is one]"
_PAYLOAD = "Columns to keep with a question, as a,b.  [default: all others]"
_FORMAT = "Format of the input.  [default: by the file's suffix, or lines]"
_TEXT = "Column of the question.  [default: question, text, query, title, ...]"
out_folder = option("--out", required=True, type=FOLDER, help="Output folder, new.")
lines_output = option("--output", type=click.Choice(["jsonl", "tsv"]), default="jsonl")
skip_bad_rows = option("--skip-bad-rows", is_flag=True, help="Skip and count bad rows.")
several_files = argument(
    "questions", nargs=-1, is_eager=True, callback=lambda *given: given[2] or (STANDARD_INPUT,)
)
questions_input = options(
    option("--format", type=click.Choice(FORMATS), help=_FORMAT),
    option("--text-column", help=_TEXT),
    skip_bad_rows,
)
ids_input = options(
    option("--id-column", help=_ID), option("--no-ids", is_flag=True, help="Read no ids.")
)
payload_input = options(
    ids_input,
    option("--payload", metavar="NAMES", help=_PAYLOAD),
    option("--no-payload", is_flag=True, help="Keep no other columns."),
)


def read_input(paths: Sequence[str], **given: Any) -> Table:
    """Read questions with the options of `questions_input`, `ids_input` and `payload_input`.

    paths: of files, and of folders of files.
    """
    key = None if given.get("no_ids", True) else given["id_column"] or ""
    names = tuple(filter(None, map(str.strip, (given.get("payload") or "").split(","))))
    form, text = given["format"] or "", given["text_column"] or ""
    return read_table(
        table_files(paths, format=form),
        text=text,
        id=key,
        payload=not given.get("no_payload", True) and (names or True),
        format=form,
        skip_bad_rows=given["skip_bad_rows"],
    )


def load_index(folder: str, cross_encoder: str | None = None) -> Retriever:
    """Load the index of a folder; imported late, since `--help` needs no FAISS."""
    from qpr_jax.retriever import Retriever

    return Retriever.load(folder, indexed=True, cross_encoder=cross_encoder)


def chunked(entries: Iterable[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """Yield the entries in lists of at most `size`."""
    stream = iter(entries)
    return iter(lambda: list(itertools.islice(stream, size)), [])


def as_lines(
    rows: Iterable[Mapping[str, object]], output: str, header: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a line of JSON for each row, or, for "tsv", the header and lines of cells."""
    if output == "tsv":
        yield "\t".join(header) + "\n"
    for row in rows:
        yield as_tsv(row) if output == "tsv" else printable_json(row) + "\n"


def as_tsv(fields: Mapping[str, object]) -> str:
    """Return a line of cells that `data.columns` reads, without what a terminal would act on.

    Whitespace in a text becomes spaces, except in an id; None is an empty cell; a mapping is JSON.
    """
    cells = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            value = json.dumps(value, ensure_ascii=False)
        elif isinstance(value, str) and name not in _IDS:
            value = " ".join(value.split())
        cells.append("" if value is None else tsv_cell(printable(f"{value}")))
    return "\t".join(cells) + "\n"
