"""Studies: trials whose results are kept, and a page that is written from what is kept.

A study is a module with a `Study`. From it come the flags, trials that resume and that several
processes share, and these modes:

    python -m experiments.NAME             train the trials that are not kept yet, write the page
    python -m experiments.NAME --rebuild   write the page from what is kept
    python -m experiments.NAME --smoke     train tiny models, in a folder of their own

Interrupted anywhere, the same command continues. Started twice at once, two processes share the
trials. A trial is kept in the folder `rows/` of the results.
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
from qpr_jax.errors import Interrupted, UserError, python_spelling, set_spelling
from qpr_jax.evaluation.bootstrap import Scores, read_ranks
from qpr_jax.files import locked, read_json, sha256_of, write_atomically
from qpr_jax.training.metric_writer import read_json_lines

ROOT = pathlib.Path(__file__).parent.parent

# The values of a study's flags: `results`, `workdir`, `rebuild`, `smoke` and its own.
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


class KeptRows:
    """The trials that are kept in the folder `rows/` of `results`; what pages are written from."""

    def __init__(self, results: pathlib.Path) -> None:
        self.results, self.rows = results, results / "rows"
        self._scores: dict[tuple[str, str, str], Scores] = {}

    @functools.cached_property
    def ranks(self) -> dict[str, list[dict[str, np.ndarray]]]:
        """Name -> the ranks of each seed."""
        found: dict[str, list[dict[str, np.ndarray]]] = {}
        queries: dict[bytes, list[str]] = {}
        # A name that begins with a dot is a part of a trial, left by a kill.
        for path in sorted(self.rows.glob("[!.]*/ranks.npz")):
            ranks = read_ranks(path)
            found.setdefault(path.parent.name.partition("-seed")[0], []).append(ranks)
            ids = b"".join(ranks[f"{split}_ids"].tobytes() for split in HELD_OUT)
            queries.setdefault(ids, []).append(path.parent.name)
        if len(queries) > 1:
            odd = min(queries.values(), key=len)
            raise UserError(
                f"{self.rows / odd[0]}: expected the queries of the other rows, got others",
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
        return {path.parent.name: read(path) for path in sorted(self.rows.glob(f"[!.]*/{file}"))}

    def discussion(self) -> list[str]:
        """The text of `discussion.md`, which people write, if there is one."""
        path = self.results / "discussion.md"
        return [path.read_text(encoding="utf-8")] if path.exists() else []


def write_page(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the lines as README.md of the folder."""
    with write_atomically(folder / "README.md", "w") as file:
        file.write("\n".join(lines).rstrip() + "\n")


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
      results: the folder, in the repository, where trials are kept and the page is written.
      trials: the trials that the flags ask for, in their order.
      page: the lines of README.md, from the trials kept; it writes tables and plots beside it.
      data: the path of the data and their hash.
      flags: its own flags.
      actions: what a switch among `flags` does instead of the trials: (flags) -> what failed.
      measurements: files of the results that a page can be written from without any trial.
    """

    name: str
    results: str
    trials: Callable[[Flags], list[Trial]]
    page: Callable[[KeptRows], list[str]]
    data: Callable[[Flags], Data] = quora_data
    flags: Mapping[str, Flag] = field(default_factory=dict)
    actions: Mapping[str, Callable[[Flags], list[str]]] = field(default_factory=dict)
    measurements: tuple[str, ...] = ()

    def main(self) -> int:
        """The program; the exit status."""
        from absl import flags

        use_huge_pages()
        set_spelling(self._spell)
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
        if action:
            refuse_both(flags, action, "rebuild")
        failed: list[str] = []
        try:
            if action:
                failed = self.actions[action](flags)
            elif not flags.rebuild:
                if flags.smoke:
                    trials = [replace(trial, config=shrink(trial.config)) for trial in trials]
                failed = make_trials(trials, flags.workdir, flags.results, self.data(flags))
        except Interrupted as interrupted:
            return 128 + int(interrupted.args[0])
        # Locked, since a page that another process writes may lack the trials just made.
        with locked(flags.results / ".pages.lock", wait=True):
            self.rebuild(flags.results)
        log.info("see %s", flags.results / "README.md")
        if failed:
            raise UserError(f"{len(failed)} rows could not be made: {'; '.join(failed)}")
        return 0

    def rebuild(self, results: pathlib.Path) -> None:
        """Write the page, with its tables and plots, from what is kept in `results` alone."""
        kept = any(results.glob("**/rows/[!.]*/ranks.npz"))
        if not kept and not any((results / file).exists() for file in self.measurements):
            expected = " or ".join(("rows", *self.measurements))
            raise UserError(
                f"{results}: expected {expected}, found none",
                remedy="run the study without {rebuild}",
            )
        write_page(results, self.page(KeptRows(results)))

    def _spell(self, name: str, value: str | None) -> str:
        return f"`--{name}`" if name in self._all_flags() else python_spelling(name, value)

    def _all_flags(self) -> dict[str, Flag]:
        return {
            **self.flags,
            "workdir": Flag(f"runs/{self.name}", "Where models are trained."),
            "results": Flag(
                str(ROOT / "results" / self.results),
                "Where trials are kept and the page is written.",
            ),
            "rebuild": Flag(False, "Write the page from what is kept; train nothing."),
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
        for name in ("results", "workdir"):
            path = getattr(flags, name)
            if flags.smoke and path == known[name].default:
                path = f"runs/{self.name}_smoke/{name}"
            setattr(flags, name, pathlib.Path(path))
        return flags
