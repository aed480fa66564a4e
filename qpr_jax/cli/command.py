"""The class of all commands of `qpr`: their output, `--json`, and what Ctrl-C leaves."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from qpr_jax.cli.options import as_json

_JSON = f"{__name__}.json"


def wants_json() -> bool:
    """Whether the command that runs was called with `--json`."""
    return bool(click.get_current_context().meta[_JSON])


@dataclass(frozen=True)
class Output:
    """What a command prints.

    Attributes:
      text: printed without `--json`; "" prints nothing.
      rows: printed with `--json`, a line of JSON each.
    """

    text: str
    rows: Sequence[Mapping[str, Any]]


class Command(click.Command):
    """A command that returns what it prints, and ends on Ctrl-C with a line that says what is kept.

    Its function returns an `Output`; or a mapping, which is printed with `--json` only; or an exit
    status; or None, which is 0. One that prints lines of JSON itself has `prints_json`, and
    `--json` changes nothing then.

    Args:
      stopped: what Ctrl-C leaves, `{folder}` in it is the value of this parameter.
      prints_json: the function prints JSON, unless there is `--output tsv`.
    """

    def __init__(self, *args: Any, stopped: str, prints_json: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stopped, self.prints_json = stopped, prints_json
        text = "Print JSON (the default)." if prints_json else "Print the result as JSON."
        self.params.append(click.Option(["--json", "wants_json"], is_flag=True, help=text))

    def invoke(self, ctx: click.Context) -> int:
        """Run the function and print what it returns; the exit status."""
        wants_json = ctx.meta[_JSON] = ctx.params.pop("wants_json")
        if wants_json and self.prints_json and ctx.params.get("output") == "tsv":
            raise click.UsageError("--json goes without --output tsv", ctx)
        try:
            result = super().invoke(ctx)
            if isinstance(result, int | None):
                return result or 0
            output = result if isinstance(result, Output) else Output("", [result])
            lines = map(as_json, output.rows) if wants_json else [output.text]
            sys.stdout.writelines(lines)
            sys.stdout.flush()
        except KeyboardInterrupt:
            # A terminal has just shown ^C.
            start = "\n" if sys.stderr.isatty() else ""
            kept = self.stopped.format_map(ctx.params)
            print(f"{start}stopped: {kept}", file=sys.stderr)
            return 128 + signal.SIGINT
        return 0
