"""Studies: a list of trials, and a page with their scores.

A study is a module of `experiments` with a `Study`. Its program trains the trials that are missing,
then writes the page:

    python -m experiments.NAME                       all trials
    python -m experiments.NAME --rows=A,B --seeds=3  some rows, three trainings of each
    python -m experiments.NAME --rows='A_*'          those whose names match
    python -m experiments.NAME --results=results/X   publish: write the page into that folder
    python -m experiments.NAME --page --results=...  only write the page, from its scores.csv
    python -m experiments.NAME --smoke               try the study with tiny models

The same command resumes an interrupted study. The tables stand between `<!-- results -->` and
`<!-- end -->` of README.md; the text around them stays.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from experiments.pages import write_page
from experiments.scores import Measured, Scores, commit, retrieval, score_rows
from qpr_jax.cli.program import run_program, use_huge_pages
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import read_object, write_json
from qpr_jax.training.config import TrainConfig, fingerprint, load_config

log = logging.getLogger("qpr_jax.study")

DONE = "trial.json"  # written last: the settings of a finished trial, its command and commit


@dataclass(frozen=True)
class Trial:
    """One row of a study with one seed: a training, a measurement, or both."""

    name: str  # of the row
    preset: str = ""  # is trained; "" trains nothing
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the preset, by dotted name
    title: str = ""  # what the page calls the row
    minus: Sequence[str] = ()  # the rows that are subtracted from it
    # Adds files to the folder, after the training; the flag is that of `--smoke`.
    make: Callable[[pathlib.Path, bool], None] | None = None
    once: bool = False  # whether further seeds would change nothing
    seed: int = 0

    @property
    def folder(self) -> str:
        """The name of the trial's folder."""
        return f"{self.name}-seed{self.seed}" if self.seed else self.name

    def config(self, smoke: bool = False) -> TrainConfig:
        """Return the settings of the training, by default without a model of pairs."""
        changes = {"rerank.candidates": 0, **self.changes, "seed": self.seed}
        return load_config(self.preset + ":smoke" * smoke, changes)

    def run(self, folder: pathlib.Path, smoke: bool) -> None:
        """Train and measure; only files stay, since checkpoints and index take a gigabyte."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.preset:
            # Imported late, so that a wrong option is reported at once.
            from qpr_jax.training import run

            run.train_and_evaluate(self.config(smoke), folder)
        if self.make:
            self.make(folder, smoke)
        for part in folder.iterdir():
            if part.is_dir():
                shutil.rmtree(part)


def titles(trials: Sequence[Trial]) -> dict[str, str]:
    """Return what a page calls each row."""
    return {trial.name: trial.title for trial in trials}


@dataclass(frozen=True)
class Study:
    """Trials and the page about them; `STUDY.main()` is the program."""

    name: str  # of its module, and of its work directory in runs/
    trials: Sequence[Trial]  # with seed 0, in their order
    page: Callable[[Scores, pathlib.Path], list[str]]  # the tables; writes plots into the folder
    # Reads the scores of a finished trial, by stage; "" is the row itself.
    measure: Callable[[pathlib.Path], Mapping[str, Measured]] = retrieval
    smoke: Sequence[str] = ()  # the rows of `--smoke`
    seeds: int = 1  # trainings of each row unless `--seeds` says otherwise

    def main(self) -> NoReturn:
        """Run the program."""
        parser = argparse.ArgumentParser(f"python -m experiments.{self.name}")
        parser.add_argument("--rows", default="", help="only these rows, separated by commas")
        parser.add_argument("--seeds", type=int, default=0, help="trainings of each row")
        parser.add_argument("--workdir", default="", help=f"default: runs/{self.name}")
        parser.add_argument(
            "--results", default="", help="folder of the page; default: page in the work directory"
        )
        parser.add_argument("--smoke", action="store_true", help="try the study with tiny models")
        parser.add_argument("--page", action="store_true", help="write the page from scores.csv")
        options = vars(parser.parse_args())
        use_huge_pages()
        sys.exit(run_program(lambda: self.run(**options)))

    def run(
        self,
        *,
        rows: str = "",
        seeds: int = 0,
        workdir: str = "",
        results: str = "",
        smoke: bool = False,
        page: bool = False,
    ) -> int:
        """Make the trials that are missing, then write the page; return the exit status.

        Raises:
          UserError: a row is unknown; or trials failed, after all others are made.
        """
        folder = pathlib.Path(workdir or f"runs/{self.name}{'_smoke' * smoke}")
        target = pathlib.Path(results or folder / "page")
        failed: list[str] = []
        if not page:
            options = {"rows": rows, "seeds": seeds}
            words = [f"--{name}={value}" for name, value in options.items() if value]
            command = " ".join(["python -m experiments." + self.name, *words, *["--smoke"] * smoke])
            names = rows.split(",") if rows else [*(self.smoke if smoke else titles(self.trials))]
            trials = self.chosen(names, seeds or (1 if smoke else self.seeds))
            try:
                failed = make_trials(trials, folder, smoke, command)
            except Interrupted as interrupted:
                return 128 + int(interrupted.args[0])
            target.mkdir(parents=True, exist_ok=True)
            Scores.read(target).updated(self.score(folder)).write(target)
        # Of the rounded scores, as `--page` would.
        write_page(target, self.name, self.page(Scores.read(target), target))
        log.info("see %s", target / "README.md")
        if failed:
            raise UserError(f"{len(failed)} trials failed: {'; '.join(failed)}")
        return 0

    def chosen(self, rows: Sequence[str], seeds: int) -> list[Trial]:
        """Return the trials of some rows, those of the first seed first."""
        by_name = {trial.name: trial for trial in self.trials}
        names: list[str] = []
        for row in rows:
            names += (found := fnmatch.filter(by_name, row))
            if not found:
                remedy = f"choose of {', '.join(by_name)}"
                raise UserError(f"unknown row {row!r}", setting="--rows", remedy=remedy)
        return [
            replace(by_name[row], seed=seed)
            for seed in range(seeds)
            for row in names
            if seed == 0 or (by_name[row].preset and not by_name[row].once)
        ]

    def score(self, workdir: pathlib.Path) -> list[dict[str, Any]]:
        """Return the records of all finished trials."""
        measured: dict[str, list[Measured]] = {}
        minus: dict[str, Sequence[str]] = {}
        facts: dict[str, dict[str, Any]] = {}
        for trial in self.trials:
            for folder in [workdir / trial.name, *sorted(workdir.glob(f"{trial.name}-seed*"))]:
                if not (folder / DONE).exists():
                    continue
                done = read_object(folder / DONE)
                for stage, found in self.measure(folder).items():
                    row = f"{trial.name}, {stage}" if stage else trial.name
                    measured.setdefault(row, []).append(found)
                    minus[row] = [other for other in trial.minus if other != row]
                    facts[row] = {key: done[key] for key in ("command", "commit")}
        return [record | facts[record["row"]] for record in score_rows(measured, minus)]


def make_trials(
    trials: Sequence[Trial], workdir: pathlib.Path, smoke: bool, command: str
) -> list[str]:
    """Make the trials that are not finished, or were made with other settings.

    Returns:
      The trials that failed, each with the reason.
    """
    failed = []
    for number, trial in enumerate(trials, 1):
        folder = workdir / trial.folder
        settings = {"smoke": smoke, **(fingerprint(trial.config(smoke)) if trial.preset else {})}
        if (folder / DONE).exists() and read_object(folder / DONE)["settings"] == settings:
            continue
        log.info("%s of %s: %s", number, len(trials), trial.folder)
        try:
            trial.run(folder, smoke)
        except UserError as error:
            log.error("%s: %s", trial.folder, error)
            failed.append(f"{trial.folder}: {error}")
        else:
            done = {"settings": settings, "command": command, "commit": commit()}
            write_json(folder / DONE, done)
    return failed
