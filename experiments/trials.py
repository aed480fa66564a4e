"""Trials of a study: trainings and searches, made one after the other and resumed."""

from __future__ import annotations

import logging
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import write_ranks
from qpr_jax.evaluation.retrieval import RankFn
from qpr_jax.files import locked, read_json, replace_folder, write_json
from qpr_jax.training.config import RerankConfig, TrainConfig, flatten, identity
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.presets import smoke_changes

log = logging.getLogger("qpr_jax.study")

# The path of the data and their hash; None for generated data.
Data = tuple[pathlib.Path | None, str | None]
# Makes a search of questions, and what its report says besides.
MakeSearch = Callable[[list[str]], tuple[RankFn, dict[str, Any]]]


def load(name: str, changes: Mapping[str, Any] | None = None, **more: Any) -> TrainConfig:
    """The config of that name, with changes by the dotted names of settings; of one stage."""
    config = load_config(name).model_copy(update={"rerank": RerankConfig()})
    return override(config, {**(changes or {}), **more})


def shrink(config: TrainConfig) -> TrainConfig:
    """The config at tiny shapes, of a few steps; for `--smoke`."""
    return override(config, smoke_changes(flatten(config)))


@dataclass(frozen=True)
class Trial:
    """A training, or a search without one, that is scored.

    Attributes:
      name: of its folder; for several seeds see `seeded`.
      config: the settings of the training; for a search, those of the data.
      search: makes the search that is scored instead of a training.
      group: the subfolder of the work directory that has the trial.
      keep: what stays of a finished training: its scores, also its encoder, or the whole run.
      files: JSON files to add to a finished run: name -> value, a function of the run.
    """

    name: str
    config: TrainConfig
    search: MakeSearch | None = None
    group: str = ""
    keep: Literal["scores", "encoder", "run"] = "scores"
    files: Mapping[str, Callable[[pathlib.Path], Any]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What the trial's results depend on besides the data."""
        return {"search": self.name} if self.search else identity(self.config)

    def folder(self, workdir: pathlib.Path) -> pathlib.Path:
        """The folder of the trial."""
        return workdir / self.group / self.name

    def is_done(self, workdir: pathlib.Path, sha256: str | None) -> bool:
        """Whether the trial is finished; UserError if it was made with other settings or data."""
        folder = self.folder(workdir)
        if not all((folder / file).exists() for file in ("run.json", "report.json", *self.files)):
            return False
        known = read_json(folder / "run.json")
        for key, value in (self.settings | {"data.sha256": sha256}).items():
            if known.get(key) != value:
                raise UserError(
                    f"{folder}: `{key}` is {known.get(key)!r}, the study asks for {value!r}",
                    remedy="remove the folder to train the trial again",
                )
        return True


def seeded(name: str, seed: int) -> str:
    """The name of a trial with this seed; seed 0 is not named."""
    return f"{name}-seed{seed}" if seed else name


def make_trials(trials: Sequence[Trial], workdir: pathlib.Path, data: Data) -> list[str]:
    """Make the trials that are not done, but for those that another process makes.

    Returns:
      The trials that failed, each with the reason.
    """
    failed = []
    for i, trial in enumerate(trials):
        with locked(workdir / trial.group / f".{trial.name}.lock") as ours:
            if trial.is_done(workdir, data[1]):
                continue
            if not ours:
                log.info("%s is being made by another process", trial.name)
                continue
            left = [other for other in trials[i:] if not other.is_done(workdir, data[1])]
            log.info("%s; next: %s", _time_left(left, workdir), trial.name)
            try:
                if trial.search:
                    _make_search(trial, trial.search, data, trial.folder(workdir))
                else:
                    _make_training(trial, trial.folder(workdir))
            except UserError as error:
                log.error("%s: %s", trial.name, error)
                failed.append(f"{trial.name}: {error}")
    return failed


def _make_training(trial: Trial, run: pathlib.Path) -> None:
    """Train, add the trial's files, and remove what need not stay."""
    from qpr_jax.training.main import train_and_evaluate

    train_and_evaluate(trial.config, run)
    for file, value_of in trial.files.items():
        write_json(run / file, value_of(run))
    if trial.keep == "run":
        return
    for folder in run.iterdir():  # checkpoints and index take over a gigabyte
        if folder.is_dir() and not (trial.keep == "encoder" and folder.name == "export"):
            shutil.rmtree(folder)


def _make_search(trial: Trial, make: MakeSearch, data: Data, folder: pathlib.Path) -> None:
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.report import score_searches

    dataset = load_dataset(trial.config, data[0])
    search, more = make(dataset.data.questions)
    scores, _, ranks = score_searches({"exact": search}, dataset)
    with replace_folder(folder) as part:
        write_ranks(part / "ranks.npz", ranks)
        report = {split: found["exact"] for split, found in scores.items()}
        write_json(part / "report.json", report | more)
        write_json(part / "run.json", trial.settings | {"data.sha256": data[1]})


def _time_left(left: list[Trial], workdir: pathlib.Path) -> str:
    """How many trials are left, and how long they take if they train like the finished ones."""
    reports = map(read_json, workdir.glob("**/report.json"))
    seconds = [
        report["timing"]["train_seconds"]
        for report in reports
        if "train_seconds" in report.get("timing", ())  # not those of searches
    ]
    if not seconds:
        return f"{len(left)} trials left"
    minutes = len(left) * sum(seconds) / len(seconds) / 60
    return f"{len(left)} trials left, about {minutes:.0f} minutes of training"
