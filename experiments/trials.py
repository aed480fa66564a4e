"""Trials of a study: trainings and searches that are made one by one, resumed and kept."""

from __future__ import annotations

import json
import logging
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import write_ranks
from qpr_jax.evaluation.retrieval import RankFn
from qpr_jax.files import locked, read_json, replace_folder, write_atomically, write_json
from qpr_jax.training.config import TrainConfig, flatten, identity, trains
from qpr_jax.training.metric_writer import read_json_lines
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.presets import smoke_changes
from qpr_jax.training.second_stage_config import RerankConfig

log = logging.getLogger("qpr_jax.study")

# The path of the data and their hash; None for generated data.
Data = tuple[pathlib.Path | None, str | None]
# Makes a search of questions, and what its report says besides.
MakeSearch = Callable[[list[str]], tuple[RankFn, dict[str, Any]]]


def load(name: str, changes: Mapping[str, Any] | None = None, **more: Any) -> TrainConfig:
    """The config of that name, with changes by the dotted names of settings; of one stage."""
    config = replace(load_config(name), rerank=RerankConfig())
    return override(config, {**(changes or {}), **more})


def shrink(config: TrainConfig) -> TrainConfig:
    """The config at tiny shapes, of a few steps; for `--smoke`."""
    return override(config, smoke_changes(flatten(config)))


@dataclass(frozen=True)
class Trial:
    """A training, or a search without one, whose scores are kept.

    Attributes:
      name: of its folder; for several seeds see `seeded`.
      config: the settings of the training; for a search, those of the data.
      search: makes the search that is scored instead of a training.
      group: the subfolder of the results and of the work directory that the trial belongs to.
      keep_export: leave the encoder of a training in the work directory.
      keep_run: train beside the work directory, and leave the whole run there.
      kept_steps: the metrics of all steps are kept as means over at most this number of stretches.
      files: JSON files that are kept besides: name -> value, a function of the finished run.
    """

    name: str
    config: TrainConfig
    search: MakeSearch | None = None
    group: str = ""
    keep_export: bool = False
    keep_run: bool = False
    kept_steps: int = 200
    files: Mapping[str, Callable[[pathlib.Path], Any]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What the trial's results depend on besides the data."""
        return {"search": self.name} if self.search else identity(self.config)

    def folder(self, results: pathlib.Path) -> pathlib.Path:
        """Where the trial is kept."""
        return results / self.group / "rows" / self.name


def seeded(name: str, seed: int) -> str:
    """The name of a trial with this seed; seed 0 is not named."""
    return f"{name}-seed{seed}" if seed else name


def make_trials(
    trials: Sequence[Trial], workdir: pathlib.Path, results: pathlib.Path, data: Data
) -> list[str]:
    """Make the trials that are not kept, but for those that another process makes.

    Returns the trials that failed, each with the reason.
    """
    failed = []
    sha256 = data[1]
    for i, trial in enumerate(trials):
        kept = trial.folder(results)
        with locked(workdir / trial.group / f".{trial.name}.lock") as ours:
            if is_done(kept, trial.settings, sha256):
                continue
            if not ours:
                log.info("%s is being made by another process", trial.name)
                continue
            left = [t for t in trials[i:] if not is_done(t.folder(results), t.settings, sha256)]
            log.info("%s; next: %s", _time_left(left, results), trial.name)
            try:
                if trial.search:
                    _make_search(trial, trial.search, data, kept)
                else:
                    _make_training(trial, workdir, kept)
            except UserError as error:
                log.error("%s: %s", trial.name, error)
                failed.append(f"{trial.name}: {error}")
    return failed


def is_done(kept: pathlib.Path, settings: dict[str, Any], sha256: str | None) -> bool:
    """Whether a trial with these settings and data is kept; UserError if it has others."""
    if not (kept / "config.json").exists():
        return False
    # A setting that is newer than the trial had the effect of its default.
    known = identity(TrainConfig()) | read_json(kept / "config.json")
    for key, value in (settings | {"data.sha256": sha256}).items():
        if known.get(key) != value:
            raise UserError(
                f"{kept}: expected `{key}` {value!r}, got {known.get(key)!r}",
                remedy="to train it again, remove the folder, and that of the trial in {workdir} "
                "if there is one",
            )
    return True


def _make_training(trial: Trial, workdir: pathlib.Path, kept: pathlib.Path) -> None:
    from qpr_jax.training.main import train_and_evaluate

    run = (workdir.parent if trial.keep_run else workdir / trial.group) / trial.name
    train_and_evaluate(trial.config, run)
    keep_training(trial, run, kept)
    if trial.keep_run:
        return
    for folder in run.iterdir():  # checkpoints and index take over a gigabyte
        if folder.is_dir() and not (trial.keep_export and folder.name == "export"):
            shutil.rmtree(folder)
    if not trial.keep_export:
        shutil.rmtree(run)


def keep_training(trial: Trial, run: pathlib.Path, kept: pathlib.Path) -> None:
    """Keep a finished run as what the trial trains, with the settings that the run has."""
    if not (run / "report.json").is_file():
        raise UserError(f"{run}: expected a finished run, got one without a report")
    with replace_folder(kept) as part:
        for file in ("report.json", "ranks.npz"):
            shutil.copy(run / file, part / file)
        if trains(trial.config):  # else there were no steps
            shutil.copy(run / "evaluations.jsonl", part / "evaluations.jsonl")
            steps = _thinned(read_json_lines(run / "metrics.jsonl"), trial.kept_steps)
            with write_atomically(part / "metrics.jsonl", "w") as lines:
                lines.writelines(f"{json.dumps(step)}\n" for step in steps)
        for file, value_of in trial.files.items():
            write_json(part / file, value_of(run))
        shutil.copy(run / "run.json", part / "config.json")


def _make_search(trial: Trial, make: MakeSearch, data: Data, kept: pathlib.Path) -> None:
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.report import score_searches

    dataset = load_dataset(trial.config, data[0])
    search, more = make(dataset.data.questions)
    scores, _, ranks = score_searches({"exact": search}, dataset)
    with replace_folder(kept) as part:
        write_ranks(part / "ranks.npz", ranks)
        report = {split: found["exact"] for split, found in scores.items()}
        write_json(part / "report.json", report | more)
        write_json(part / "config.json", trial.settings | {"data.sha256": data[1]})


def _thinned(steps: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The metrics of all steps as means over at most `count` stretches."""
    thinned = []
    for stretch in np.array_split(np.arange(len(steps)), min(count, len(steps))):
        rows = [steps[i] for i in stretch]
        means = {
            key: float(np.mean([row[key] for row in rows if key in row]))
            for key in dict.fromkeys(key for row in rows for key in row)
            if key != "step"
        }
        thinned.append({"step": rows[-1]["step"], **means})
    return thinned


def _time_left(left: list[Trial], results: pathlib.Path) -> str:
    """How many trials are left, and how long they take if they train like those kept."""
    reports = map(read_json, results.glob("**/rows/[!.]*/report.json"))
    seconds = [
        report["timing"]["train_seconds"]
        for report in reports
        if "train_seconds" in report.get("timing", ())  # not those of searches
    ]
    if not seconds:
        return f"{len(left)} rows left"
    minutes = len(left) * sum(seconds) / len(seconds) / 60
    return f"{len(left)} rows left, about {minutes:.0f} minutes of training"
