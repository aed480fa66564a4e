"""The class of all commands of `qpr`, options that they share, and lines that they print."""

from __future__ import annotations

import functools
import glob
import itertools
import json
import logging
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.data.columns import one_column, tsv_cell
from qpr_jax.data.decoding import FORMATS, table_files
from qpr_jax.data.tables import Table, read_table
from qpr_jax.data.typed_rows import STANDARD_INPUT
from qpr_jax.errors import UserError, printable, printable_json

if TYPE_CHECKING:
    from qpr_jax.retriever import Retriever

CHUNK = 1024  # questions that are searched or added together
Read = functools.partial[Table]  # `read_table` with the options of what is read
_IDS = ("id", "query_id")  # keys of output whose values go out as they came
_PARAMETER = re.compile(r"`(\w+)(?:=([^`]*))?`")  # of Python, as `text_column` or `clean=False`


def wants_json() -> bool:
    """Return whether the command that runs was called with `--json`."""
    return bool(click.get_current_context().obj)


class Command(click.Command):
    """A command that prints the mapping that it returns as JSON, or returns an exit status.

    Args:
      stopped: what Ctrl-C leaves; `{folder}` in it is the value of this parameter.
      prints_json: print JSON without `--json`, too: a mapping in several lines then.
    """

    def __init__(self, *args: Any, stopped: str, prints_json: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stopped, self.prints_json = stopped, prints_json
        text = "Print JSON (the default)." if prints_json else "Print the result as JSON."
        self.params.append(click.Option(["--json", "wants_json"], is_flag=True, help=text))

    def in_options(self, text: str) -> str:
        """Name the options of this command in place of parameters of Python."""
        parameters = {parameter.name: parameter for parameter in self.params}

        def option(found: re.Match[str]) -> str:
            name, value = found[1], (found[2] or "").strip("\"'")
            parameter = parameters.get("no_ids" if found[0] == '`id_column=""`' else name)
            if parameter is None:
                return found[0]
            if isinstance(parameter, click.Argument):
                return f"`{parameter.human_readable_name}`"
            flags = parameter.secondary_opts if value == "False" else parameter.opts
            takes_value = value and not getattr(parameter, "is_flag", False)
            return f"`{max(flags, key=len)}{f' {value}' if takes_value else ''}`"

        return _PARAMETER.sub(option, text)

    def _what_is_left(self, values: Mapping[str, Any]) -> str:
        """Return what Ctrl-C leaves; nothing was changed where an output was not begun."""
        outputs = [values[name] for name in ("out", "to", "folder", "workdir") if values.get(name)]
        paths = [pathlib.Path(output) for output in outputs if "://" not in output]
        begun = any([*path.parent.glob(f"*{glob.escape(path.name)}*")] for path in paths)
        return self.stopped.format_map(values) if begun or not paths else "nothing was changed"

    def _translate(self, record: logging.LogRecord) -> bool:
        """Name options in a line of a log, as a filter; what is put into the line stays."""
        record.msg = self.in_options(record.msg)
        return True

    def invoke(self, ctx: click.Context) -> int:
        """Run the function and print what it returns; the exit status."""
        ctx.obj = ctx.params.pop("wants_json")
        for handler in logging.getLogger("qpr_jax").handlers:
            handler.addFilter(self._translate)
        try:
            result = super().invoke(ctx)
            if isinstance(result, Mapping) and (ctx.obj or self.prints_json):
                click.echo(json.dumps(result, indent=None if ctx.obj else 2))
        except EOFError as error:  # which click takes for Ctrl-C
            raise RuntimeError("a file ended too early") from error
        except UserError as error:  # what is wrong may name columns, which stay as they are
            setting = self.in_options(f"`{error.setting}`").strip("`")
            error.setting, error.remedy = setting, self.in_options(error.remedy)
            raise
        except KeyboardInterrupt:
            raise click.Abort(self._what_is_left(ctx.params)) from None
        return result if isinstance(result, int) else 0


class NamedPath(click.Path):
    """A path that is not empty, as an unset shell variable is; what is written is never -."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        if not value or (value == "-" and param.name in ("out", "to")):
            self.fail(f"expected the path of a file or a folder, got {value!r}", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within its limits, which NaN is not."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"expected a number such as 0.5, got {value!r}", param, ctx)
        return super().convert(number, param, ctx)


def checked(check: Callable[[str], object]) -> Callable[..., str | None]:
    """Return the callback of an option that is wrong where `check` raises UserError."""

    def call(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        try:
            check(value) if value is not None else None
        except UserError as error:
            raise click.BadParameter(error.what) from None
        return value

    return call


PATH, FILE, FOLDER = NamedPath(), NamedPath(dir_okay=False), NamedPath(file_okay=False)
COUNT, SHARE, DISTANCE = click.IntRange(1, 10**9), Number(0, 1), Number(0, 1e300)
PART = Number(0, 1, min_open=True, max_open=True)
argument, option = click.argument, click.option
command = functools.partial(click.command, cls=Command)

_ID = "Column of the id.  [default: id, qid, ..., if there is one]"
_PAYLOAD = "Columns to keep with a question, as a,b.  [default: all others]"
_FORMAT = "Format of the input.  [default: by the file's suffix, or lines]"
_TEXT = "Column of the question.  [default: question, text, query, title, ...]"
_TEXTS = "  Give it again for other texts of a row; the best one counts."
out_folder = option("--out", required=True, type=FOLDER, help="Output folder, new.")
lines_output = option("--output", type=click.Choice(["jsonl", "tsv"]), default="jsonl")
skip_bad_rows = option("--skip-bad-rows", is_flag=True, help="Skip and count bad rows.")
several_files = argument(
    "questions", nargs=-1, is_eager=True, callback=lambda *args: args[2] or (STANDARD_INPUT,)
)


def option_on_line(*names: str) -> str:
    """Return the first of these parameters that the command line has, as it is written; or ""."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in names and source == click.core.ParameterSource.COMMANDLINE:
            is_option = isinstance(parameter, click.Option)
            return max(parameter.opts, key=len) if is_option else parameter.human_readable_name
    return ""


def table_format(what: str) -> Callable[..., Any]:
    """Return the option --format of a command that reads tables only."""
    return option("--format", type=click.Choice(FORMATS[1:]), help=f"Format of {what}.")


def questions_input(
    *, ids: bool = False, payload: bool = False, texts: bool = False
) -> Callable[..., Any]:
    """Add the options of what is read; pass them as one function `read`.

    ids, payload, texts: whether they are read, and whether a row may have several texts.
    """
    id_options = [
        option("--id-column", help=_ID),
        option("--no-ids", is_flag=True, help="Read no ids."),
    ]
    payload_options = [
        option("--payload", metavar="NAMES", help=_PAYLOAD),
        option("--no-payload", is_flag=True, help="Keep no other columns."),
    ]
    options = [
        *id_options * ids,
        *payload_options * payload,
        option("--format", type=click.Choice(FORMATS), help=_FORMAT),
        option("--text-column", multiple=True, help=_TEXT + _TEXTS * texts),
        skip_bad_rows,
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(
            format: str | None,
            text_column: tuple[str, ...],
            skip_bad_rows: bool,
            id_column: str | None = None,
            no_ids: bool = not ids,
            payload: str | None = None,
            no_payload: bool = not payload,
            **others: Any,
        ) -> Any:
            if id_column and no_ids:
                raise click.UsageError("give --id-column or --no-ids, not both")
            if payload and no_payload:
                raise click.UsageError("give --payload or --no-payload, not both")
            text = text_column if texts else _one_column(text_column)
            names = tuple(filter(None, map(str.strip, (payload or "").split(","))))
            read = functools.partial(
                read_table,
                text=text,
                id=None if no_ids else id_column or "",
                payload=not no_payload and (names or True),
                format=format or "",
                skip_bad_rows=skip_bad_rows,
            )
            return function(read=read, **others)

        return functools.reduce(lambda inner, add: add(inner), reversed(options), call)

    return decorate


def _one_column(columns: Sequence[str]) -> str:
    try:
        return one_column(columns)
    except UserError as error:
        raise click.UsageError(f"--text-column: {error.what}; {error.remedy}") from None


def read_files(paths: Sequence[str], read: Read) -> Table:
    """Read the questions of files, and of files in folders."""
    return read(table_files(paths, format=read.keywords["format"]))


def beside(file: str, ending: str) -> pathlib.Path:
    """Return the path of an output folder beside a file."""
    path = pathlib.Path(file)
    if path.name in ("", ".."):  # the folder itself, or one above
        path = path.resolve()
    return path.parent / f"{path.name.partition('.')[0] or path.name}_{ending}"


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
    """Yield a line of JSON for each row, or, for "tsv", the header and lines of cells.

    Whitespace in a cell becomes spaces, except in an id; None is an empty cell; a mapping is JSON.
    """
    if output == "tsv":
        yield "\t".join(header) + "\n"
    for row in rows:
        if output == "tsv":
            yield "\t".join(_cell(name, value) for name, value in row.items()) + "\n"
        else:
            yield printable_json(row) + "\n"


def _cell(name: str, value: object) -> str:
    """Return a cell that `data.columns` reads, without what a terminal would act on."""
    if isinstance(value, Mapping):
        value = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, str) and name not in _IDS:
        value = " ".join(value.split())
    return "" if value is None else tsv_cell(printable(f"{value}"))
