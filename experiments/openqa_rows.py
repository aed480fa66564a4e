"""The trainings on question-answer logs: the rows of tables 5 and 6, under each filter."""

from __future__ import annotations

import pathlib

from experiments.configs import openqa_sdml
from experiments.quora_rows import ROWS, STUDY, row_name
from experiments.trials import Row, training_row

FULL = "openqa_sdml"  # the config as it stands, beside the rows of the better filter


def row_config(name: str, coherence: str, seed: int = 0) -> TrainConfig:
    """The settings of a row: those of the row on the Quora pairs, on these data."""
    config: TrainConfig = openqa_sdml.get_config()
    if name != FULL:
        config = override(config, STUDY | ROWS[name])
    config.data.coherence = coherence
    config.seed = seed
    return config


def openqa_row(name: str, coherence: str, seed: int, workdir: pathlib.Path) -> Row:
    """A training; that of the config as it stands stays beside `workdir`."""
    folder = row_name(name, seed)
    home = workdir.parent if name == FULL else workdir / coherence
    return training_row(
        folder, row_config(name, coherence, seed), home / folder, keep_run=name == FULL
    )
