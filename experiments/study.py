"""Studies: trials, and a page with their scores.

A study is a module with a `Study`. It defines the flags and these modes:

    python -m experiments.NAME             train the missing trials, then write the page
    python -m experiments.NAME --smoke     train tiny models in runs/NAME_smoke

An interrupted study continues with the same command. Two processes share the trials of a study.
Finished trials stay in the work directory. Its folder `page` gets `scores.csv`, plots, and
README.md with the tables; `--results=results/FOLDER` publishes them. The tables stand between the
lines `<!-- results -->` and `<!-- end -->`; the text around them is written by people and stays.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from experiments.trials import Data, Trial, log, make_trials, shrink
from qpr_jax.cli.program import run_absl, use_huge_pages
from qpr_jax.data.sources import find_quora
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.evaluation.bootstrap import Scores, read_ranks
from qpr_jax.files import locked, read_json, sha256_of, write_atomically
from qpr_jax.training.metric_writer import read_json_lines

_BEGIN, _END = "<!-- results -->", "<!-- end -->"

# The values of a study's flags: `results`, `workdir`, `smoke` and its own.
Flags = SimpleNamespace


class Flag(NamedTuple):
    """A flag of a study: its default, its help, and the choices of a list or of None.

    The default says what it reads: False a switch, an int a positive number, () a list, None one of
    the choices.
    """

    default: Any
    help: str
    choices: Sequence[str] = ()

    def define(self, name: str) -> None:
        """Define the flag for absl."""
        from absl import flags

        match self.default:
            case bool():
                flags.DEFINE_bool(name, self.default, self.help)
            case int():
                flags.DEFINE_integer(name, self.default, self.help, lower_bound=1)
            case str():
                flags.DEFINE_string(name, self.default, self.help)
            case None:
                flags.DEFINE_enum(name, None, self.choices, self.help)
            case _:
                flags.DEFINE_list(name, [], self.help)
        # Without this `--help` does not list the flag.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


class Trials:
    """The finished trials in a work directory.

    Attributes:
      results: the folder of the page, its plots and tables.
      workdir: has a folder for each trial.
    """

    def __init__(self, results: pathlib.Path, workdir: pathlib.Path) -> None:
        self.results, self.workdir = results, workdir
        self._scores: dict[tuple[str, str, str], Scores] = {}

    @functools.cached_property
    def ranks(self) -> dict[str, list[dict[str, np.ndarray]]]:
        """Name -> the ranks of each seed."""
        found: dict[str, list[dict[str, np.ndarray]]] = {}
        queries: dict[bytes, list[str]] = {}
        for path in sorted(self.workdir.glob("[!.]*/ranks.npz")):
            if not (path.parent / "report.json").exists():
                continue  # still trained
            ranks = read_ranks(path)
            found.setdefault(path.parent.name.partition("-seed")[0], []).append(ranks)
            ids = b"".join(ranks[f"{split}_ids"].tobytes() for split in HELD_OUT)
            queries.setdefault(ids, []).append(path.parent.name)
        if len(queries) > 1:
            odd = min(queries.values(), key=len)
            raise UserError(
                f"{self.workdir / odd[0]}: scored on other queries than the other trials",
                remedy="remove the folder and run the study again",
            )
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.ranks

    def scores(self, split: str, over: str, search: str = "index") -> Scores:
        """The scores with their bootstrap, on a split, per "pair" or "query"."""
        key = split, over, search
        if key not in self._scores:
            self._scores[key] = Scores(self.ranks, split, over, search=search)
        return self._scores[key]

    def read(self, file: str) -> dict[str, Any]:
        """That JSON file of every trial that has it, by name and seed; of `.jsonl` the lines."""
        read = read_json_lines if file.endswith(".jsonl") else read_json
        paths = sorted(self.workdir.glob(f"[!.]*/{file}"))
        return {path.parent.name: read(path) for path in paths}


def write_page(folder: pathlib.Path, lines: list[str]) -> None:
    """Put the lines between the two markers of README.md in the folder; create it if missing."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else f"# Results\n\n{_BEGIN}\n{_END}\n"
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise UserError(
            f"{path}: the lines {_BEGIN} and {_END} are missing", remedy="add them to the page"
        )
    body = "\n".join(lines).strip()
    with write_atomically(path, "w") as file:
        file.write(f"{before}{begin}\n\n{body}\n\n{end}{after}")


def quora_data(flags: Flags) -> Data:
    """The Quora pair file and its SHA-256."""
    path = find_quora()
    return path, sha256_of(path)


def refuse_both(flags: Flags, one: str, other: str) -> None:
    """UserError where both flags are given."""
    if getattr(flags, one) and getattr(flags, other):
        raise UserError(
            f"`--{one}`, `--{other}`: expected one of the two, got both", remedy="leave one out"
        )


@dataclass(frozen=True)
class Study:
    """Trials and the page about them; `STUDY.main()` is the program.

    Attributes:
      name: of its work directory in runs/.
      results: the folder in results/ with the published page.
      trials: the trials that the flags ask for, in their order.
      page: the tables of README.md, from the finished trials; writes scores.csv and plots.
      data: the path of the data and their hash.
      flags: its own flags.
      actions: what a switch among `flags` does instead of the trials: (flags) -> what failed.
    """

    name: str
    results: str
    trials: Callable[[Flags], list[Trial]]
    page: Callable[[Trials], list[str]]
    data: Callable[[Flags], Data] = quora_data
    flags: Mapping[str, Flag] = field(default_factory=dict)
    actions: Mapping[str, Callable[[Flags], list[str]]] = field(default_factory=dict)

    def main(self) -> int:
        """The program; the exit status."""
        from absl import flags

        use_huge_pages()
        for name, flag in self._all_flags().items():
            flag.define(name)
        return run_absl(
            lambda: self.run(**{name: flags.FLAGS[name].value for name in self._all_flags()}),
            sys.argv,
        )

    def run(self, **values: Any) -> int:
        """Train the trials that these flags ask for, then write the page; the exit status.

        Raises:
          UserError: wrong flags; or some trials failed, after all others are made.
        """
        flags = self.read_flags(values)
        trials = self.trials(flags)
        action = next((name for name in self.actions if getattr(flags, name)), None)
        failed: list[str] = []
        try:
            if action:
                failed = self.actions[action](flags)
            else:
                if flags.smoke:
                    trials = [replace(trial, config=shrink(trial.config)) for trial in trials]
                failed = make_trials(trials, flags.workdir, self.data(flags))
        except Interrupted as interrupted:
            return 128 + int(interrupted.args[0])
        if not failed or any(flags.workdir.glob("**/report.json")):
            # Locked, since a page that another process writes may lack the trials just made.
            with locked(flags.workdir / ".pages.lock", wait=True):
                flags.results.mkdir(parents=True, exist_ok=True)
                write_page(flags.results, self.page(Trials(flags.results, flags.workdir)))
            log.info("see %s", flags.results / "README.md")
        if failed:
            raise UserError(f"{len(failed)} trials failed: {'; '.join(failed)}")
        return 0

    def _all_flags(self) -> dict[str, Flag]:
        return {
            **self.flags,
            "workdir": Flag(f"runs/{self.name}", "Where models are trained."),
            "results": Flag(
                "",
                f"Folder of the page, its plots and scores.csv; results/{self.results} to publish. "
                "Default: WORKDIR/page.",
            ),
            "smoke": Flag(False, "Train tiny models in runs/NAME_smoke, to try the study."),
        }

    def read_flags(self, values: Mapping[str, Any]) -> Flags:
        """The values of all flags, with their defaults; UserError for a wrong one."""
        known = self._all_flags()
        for name, flag in known.items():
            given = values.get(name) or () if flag.default == () else ()
            for value in given:
                if flag.choices and value not in flag.choices:
                    raise UserError(
                        f"`--{name}`: expected some of {', '.join(flag.choices)}, got {value!r}"
                    )
        flags = Flags(**{name: flag.default for name, flag in known.items()} | dict(values))
        if flags.smoke and flags.workdir == known["workdir"].default:
            flags.workdir += "_smoke"
        flags.workdir = pathlib.Path(flags.workdir)
        flags.results = pathlib.Path(flags.results or flags.workdir / "page")
        return flags
