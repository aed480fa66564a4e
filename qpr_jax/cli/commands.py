"""All commands of `qpr`, in one group."""

from __future__ import annotations

import io
import os
import signal
import sys

import click

from qpr_jax.cli import data, duplicates, evaluate, indexes, judging, runs, serve
from qpr_jax.errors import UserError, did_you_mean, printable

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
_GROUPS = {
    "Find": "duplicates index search add remove compact serve review info",
    "Train": "train presets evaluate errors publish",
    "Data and more": "clusters splits encode calibrate sample",
}
_FILE_OPTIONS = ("--file", "--input")  # of other programs


class _Grouped(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _GROUPS.items():
            limit = formatter.width - 6 - max(len(name) for name in self.commands)
            rows = [(n, self.commands[n].get_short_help_str(limit)) for n in names.split()]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(cls=_Grouped, context_settings=_SETTINGS)
@click.version_option(package_name="qpr_jax")
def qpr() -> None:
    """Find questions with the same meaning among those already asked.

    FOLDER is a folder that `qpr train`, `python -m experiments.main` or `qpr index` wrote.
    Questions are read from files, or from standard input for "-": lines, CSV, TSV, JSON lines,
    JSON, Parquet or Arrow, compressed with gzip or zstd or not.
    """


for module in (data, duplicates, evaluate, indexes, judging, runs, serve):
    for value in vars(module).values():
        if isinstance(value, click.Command):
            qpr.add_command(value)


def _usage_line(error: click.UsageError) -> str:
    """Return what is wrong with the words of a command, and where its help is."""
    name = next((word for word in sys.argv[1:] if word in qpr.commands), "")
    what, near, command = error.format_message().rstrip("."), "", qpr.commands.get(name, qpr)
    if isinstance(error, click.NoSuchOption):
        what = f"no option {error.option_name}"
        near = _as_argument(error.option_name, command)
    elif name == "" and sys.argv[1:]:
        what, near = f"no command {sys.argv[1]}", did_you_mean(sys.argv[1], qpr.commands)
    near = near.strip(" ()").replace("`", "")
    help = f"see `{' '.join(filter(None, ['qpr', name, '--help']))}`"
    return f"{what[:1].lower()}{what[1:]}; {f'{near} ' if near else ''}{help}"


def _as_argument(option: str, command: click.Command) -> str:
    """Return what is meant by an option that a command lacks: an argument, or another option.

    An argument is, if it has this name, or if the value is a file and no option has a like name.
    An index or a run has its own encoder.
    """
    _, _, words = "\0".join(sys.argv).partition(f"\0{option}")
    value = words[1:].partition("\0")[0]  # behind a blank or =
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    flags = [flag for one in command.params if one not in arguments for flag in one.opts]
    near = did_you_mean(option, [*flags, "--help"])
    if option == "--encoder" and any(one.name == "folder" for one in arguments):
        return "leave it out, since FOLDER has its own encoder;"
    named = [*_FILE_OPTIONS, *(f"--{one.name}" for one in arguments)]
    if not arguments or not (option in named or (os.path.isfile(value) and not near)):
        return near
    names = " ".join(one.human_readable_name for one in arguments)
    return f"give it as an argument: qpr {command.name} {names};"


def run() -> int:
    """Run the command that the arguments of the program name; the exit status."""
    if sys.stdout is None:
        raise UserError("standard output is closed", remedy="send it to a file or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        return qpr.main(standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        print(printable(f"error: {_usage_line(error)}"), file=sys.stderr)
        return error.exit_code
    except click.Abort as stop:  # without a message: Ctrl-C came before the command began
        start = "\n" if stop.args and sys.stderr.isatty() else ""  # a terminal has just shown ^C
        message = stop.args[0] if stop.args else "nothing was changed"
        print(f"{start}stopped: {message}", file=sys.stderr)
        return 128 + signal.SIGINT
