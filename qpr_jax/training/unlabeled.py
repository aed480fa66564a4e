"""The unlabeled questions of a training, which a student learns a teacher's vectors of."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Container

from qpr_jax.data.spliced import splice_questions
from qpr_jax.distant.logs import log_files
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.sources import read_listed_questions

log = logging.getLogger(__name__)


def unlabeled_files(config: TrainConfig) -> list[pathlib.Path]:
    """The files of `data.unlabeled`; UserError if it names a path where nothing is."""
    if not config.data.unlabeled:
        return []
    path = pathlib.Path(config.data.unlabeled).expanduser()
    if not path.exists():
        raise UserError(
            f"expected a file of questions or a folder of them, found none at {path}",
            setting="data.unlabeled",
        )
    return [pathlib.Path(name) for name in log_files([str(path)])]


def unlabeled_questions(
    config: TrainConfig, questions: list[str], trained: list[str], held_out: Container[str]
) -> tuple[list[str], list[str]]:
    """The questions of `data.unlabeled`, and ones spliced from `trained` and them, each once.

    Questions with a normalized text in `held_out` are left out.
    """
    if not (config.data.unlabeled or config.data.spliced):
        return [], []
    found: list[str] = []
    spliced: list[str] = []
    known = set(questions)

    def is_new(question: str) -> bool:
        return question not in known and normalized_text(question) not in held_out

    for file in unlabeled_files(config):
        for question in read_listed_questions(config, file):
            if is_new(question):
                known.add(question)
                found.append(question)
    if config.data.unlabeled:
        log.info("data: %s unlabeled questions", f"{len(found):,}")
    if config.data.spliced:
        spliced = splice_questions(
            trained + found, config.data.spliced, accept=is_new, seed=config.data.split_seed
        )
        log.info("data: %s spliced questions", f"{len(spliced):,}")
    return found, spliced
