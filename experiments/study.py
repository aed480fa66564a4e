"""Studies: a list of trials, and a page with their scores.

A study is a module of `experiments` with a `Study`. Its program trains the trials that are missing,
then writes the page:

    python -m experiments.NAME                       all trials
    python -m experiments.NAME --rows=A,B --seeds=3  some rows, three trainings of each
    python -m experiments.NAME --results=results/X   publish: write the page into that folder
    python -m experiments.NAME --page --results=...  only write the page, from its scores.csv
    python -m experiments.NAME --smoke               try the study with tiny models

The same command resumes an interrupted study. The tables stand between `<!-- results -->` and
`<!-- end -->` of README.md; the text around them stays.
"""

from __future__ import annotations

import logging
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NoReturn

import click

from experiments.pages import write_page
from experiments.scores import Measured, Scores, commit, retrieval, score_rows
from qpr_jax.cli.program import run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import read_object, write_json
from qpr_jax.training.config import TrainConfig, identity, load_config

log = logging.getLogger("qpr_jax.study")

DONE = "trial.json"  # written last: the settings of a finished trial, its command and commit
Train = Callable[[TrainConfig, pathlib.Path], Any]
Options = SimpleNamespace  # the values of a study's options: `smoke`, `seeds` and its own


@dataclass(frozen=True)
class Trial:
    """One row of a study with one seed: a training, a measurement, or both."""

    name: str  # of the row
    preset: str = ""  # is trained; "" trains nothing
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the preset, by dotted name
    seed: int = 0
    once: bool = False  # whether further seeds would change nothing
    make: Callable[[pathlib.Path], None] | None = None  # adds files to the folder, after training
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else the result depends on
    keep: bool = False  # whether the trained encoder stays

    @property
    def folder(self) -> str:
        """The name of the trial's folder."""
        return f"{self.name}-seed{self.seed}" if self.seed else self.name

    def config(self, *, smoke: bool = False) -> TrainConfig:
        """The settings of the training; with `smoke` of a tiny one. By default no re-ranker."""
        changes = {"rerank.candidates": 0, **self.changes, "seed": self.seed}
        return load_config(self.preset + ":smoke" * smoke, changes)

    def settings(self, *, smoke: bool = False) -> dict[str, Any]:
        """What the result depends on besides the data."""
        trained = identity(self.config(smoke=smoke)) if self.preset else {}
        return {**trained, **self.facts, "smoke": smoke}


@dataclass(frozen=True)
class Study:
    """Trials and the page about them; `STUDY.main()` is the program."""

    name: str  # of its module, and of its work directory in runs/
    results: str  # the folder in results/ with the published page
    trials: Callable[[Options], Sequence[Trial]]  # with seed 0, in their order
    page: Callable[[Scores, pathlib.Path], list[str]]  # the tables; writes plots into the folder
    # Reads the scores of a finished trial, by stage; "" is the row itself.
    measure: Callable[[pathlib.Path], Mapping[str, Measured]] = lambda run: {"": retrieval(run)}
    compare: Callable[[str], Sequence[str]] = lambda row: ()  # the rows subtracted from a row
    smoke: Sequence[str] = ()  # the rows of `--smoke`
    seeds: int = 1  # trainings of each row unless `--seeds` says otherwise
    options: Mapping[str, str] = field(default_factory=dict)  # further options: name -> help

    def main(self) -> NoReturn:
        """The program."""
        use_huge_pages()
        sys.exit(run_program(lambda: self.run_arguments(sys.argv[1:])))

    def run_arguments(self, arguments: list[str]) -> int:
        """Parse the arguments and run."""
        page = f"Folder of the page; results/{self.results} to publish. Default: WORKDIR/page."
        where = f"Where models are trained. Default: runs/{self.name}."
        options: list[click.Parameter] = [
            click.Option(["--rows"], default="", help="Only these rows, separated by commas."),
            click.Option(["--seeds"], type=click.IntRange(1), help="Trainings of each row."),
            click.Option(["--workdir"], help=where),
            click.Option(["--results"], help=page),
            click.Option(["--smoke"], is_flag=True, help="Try the study with tiny models."),
            click.Option(["--page"], is_flag=True, help="Write the page from its scores.csv."),
        ]
        for name, text in self.options.items():
            options.append(click.Option([f"--{name}"], default="", help=text))
        name = f"python -m experiments.{self.name}"
        command = click.Command(name, params=options, callback=self.run)
        try:
            return command.main(arguments, standalone_mode=False) or 0
        except click.ClickException as error:
            raise UserError(error.format_message()) from None
        except click.Abort:  # Ctrl-C
            raise KeyboardInterrupt from None

    def run(
        self,
        *,
        rows: str = "",
        seeds: int | None = None,
        workdir: str | None = None,
        results: str | None = None,
        smoke: bool = False,
        page: bool = False,
        train: Train | None = None,
        **own: str,
    ) -> int:
        """Train the trials that are missing, then write the page; returns the exit status.

        train: trains a config in a folder; default: `train_and_evaluate`.

        Raises:
          UserError: an option is wrong; or trials failed, after all others are made.
        """
        folder = pathlib.Path(workdir or f"runs/{self.name}{'_smoke' * smoke}")
        mine = {name: own.get(name, "") for name in self.options}
        options = Options(smoke=smoke, seeds=seeds or (1 if smoke else self.seeds), **mine)
        target = pathlib.Path(results or folder / "page")
        failed: list[str] = []
        if not page:
            given = {"rows": rows, "seeds": seeds, **own}
            words = [f"--{name}={value}" for name, value in given.items() if value]
            command = [f"python -m experiments.{self.name}", *words, *["--smoke"] * smoke]
            trials = self.chosen(rows, options)
            try:
                failed = make_trials(
                    trials, folder, smoke=smoke, train=train, command=" ".join(command)
                )
            except Interrupted as interrupted:
                return 128 + int(interrupted.args[0])
            names = [trial.name for trial in self.trials(options)]
            target.mkdir(parents=True, exist_ok=True)
            Scores.read(target).updated(self.score(names, folder)).write(target)
        # Of the rounded scores, as `--page` would.
        write_page(target, self.name, self.page(Scores.read(target), target))
        log.info("see %s", target / "README.md")
        if failed:
            raise UserError(f"{len(failed)} trials failed: {'; '.join(failed)}")
        return 0

    def chosen(self, rows: str, options: Options) -> list[Trial]:
        """The trials of some rows, those of the first seed first; UserError for an unknown row."""
        by_name = {trial.name: trial for trial in self.trials(options)}
        names = rows.split(",") if rows else list((options.smoke and self.smoke) or by_name)
        for name in names:
            if name not in by_name:
                remedy = f"choose of {', '.join(by_name)}"
                raise UserError(f"unknown row {name!r}", setting="--rows", remedy=remedy)
        return [
            replace(by_name[name], seed=seed)
            for seed in range(options.seeds)
            for name in names
            if seed == 0 or (by_name[name].preset and not by_name[name].once)
        ]

    def score(self, names: Sequence[str], workdir: pathlib.Path) -> list[dict[str, Any]]:
        """The records of all finished trials of these rows."""
        measured: dict[str, list[Measured]] = {}
        facts: dict[str, dict[str, Any]] = {}
        for name in names:
            for folder in [workdir / name, *sorted(workdir.glob(f"{name}-seed*"))]:
                if not (folder / DONE).exists():
                    continue
                done = read_object(folder / DONE)
                for stage, found in self.measure(folder).items():
                    row = f"{name}, {stage}" if stage else name
                    measured.setdefault(row, []).append(found)
                    facts[row] = {key: done[key] for key in ("command", "commit")}
        return [record | facts[record["row"]] for record in score_rows(measured, self.compare)]


def make_trials(
    trials: Sequence[Trial],
    workdir: pathlib.Path,
    *,
    smoke: bool,
    train: Train | None,
    command: str,
) -> list[str]:
    """Make the trials that are not finished.

    Returns:
      The trials that failed, each with the reason.
    """
    failed = []
    for number, trial in enumerate(trials, 1):
        folder = workdir / trial.folder
        if _is_done(trial, folder, smoke):
            continue
        log.info("%s of %s: %s", number, len(trials), trial.folder)
        try:
            _make(trial, folder, smoke, train)
            settings = trial.settings(smoke=smoke)
            write_json(
                folder / DONE, {"settings": settings, "command": command, "commit": commit()}
            )
        except UserError as error:
            log.error("%s: %s", trial.folder, error)
            failed.append(f"{trial.folder}: {error}")
    return failed


def _is_done(trial: Trial, folder: pathlib.Path, smoke: bool) -> bool:
    """Whether the trial is finished; UserError if it was made with other settings."""
    if not (folder / DONE).exists():
        return False
    known = read_object(folder / DONE)["settings"]
    for key, value in trial.settings(smoke=smoke).items():
        if known.get(key) != value:
            what = f"was made with `{key}` {known.get(key)!r}, the study asks for {value!r}"
            remedy = "remove the folder to make the trial again"
            raise UserError(f"{folder} {what}", remedy=remedy)
    return True


def _make(trial: Trial, folder: pathlib.Path, smoke: bool, train: Train | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if trial.preset:
        # Imported late, so that a wrong option is reported at once.
        from qpr_jax.training.main import train_and_evaluate

        (train or train_and_evaluate)(trial.config(smoke=smoke), folder)
    if trial.make:
        trial.make(folder)
    if trial.preset:
        for part in folder.iterdir():  # checkpoints and index take over a gigabyte
            if part.is_dir() and not (trial.keep and part.name == "export"):
                shutil.rmtree(part)
