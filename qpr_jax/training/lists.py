"""Lists of questions and other texts: `data.path`, `data.unlabeled`, and what is made of them."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from qpr_jax.data.columns import Columns
from qpr_jax.data.questions import read_questions
from qpr_jax.data.spliced import replace_words, splice_questions
from qpr_jax.data.translations import find_files, parse_spec, read_translations
from qpr_jax.distant.logs import log_files
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import TrainConfig, read

log = logging.getLogger(__name__)


def listed_files(config: TrainConfig, setting: str) -> list[pathlib.Path]:
    """The files that a setting names, those of a folder one by one.

    Its entries are separated by commas. An entry is a file or folder of questions, or `xx-yy:PATH`,
    the texts in language xx of a file of translations.

    Raises:
      UserError: one is not there.
    """
    files = [file for entry in _entries(config, setting) for file in _files(entry, setting)]
    return [pathlib.Path(file) for file in files]


def read_listed(config: TrainConfig, setting: str) -> Iterator[str]:
    """The texts of these files, each once if it is of translations."""
    for entry in _entries(config, setting):
        files = _files(entry, setting)
        if parse_spec(entry)[0]:
            found = read_translations(entry, skip_bad_rows=config.data.skip_bad_rows)
            yield from dict.fromkeys(found.sources)
            continue
        for file in files:
            yield from _questions(config, file)


def _questions(config: TrainConfig, file: str) -> Iterator[str]:
    """The questions of a file, in any format of `data.questions`."""
    column = config.data.question_column
    columns = Columns("" if column == TrainConfig().data.question_column else column, None)
    skip = config.data.skip_bad_rows
    for entry in read_questions(file, columns=columns, skip_bad_rows=skip):
        yield entry.question


def _entries(config: TrainConfig, setting: str) -> list[str]:
    value = str(read(config, setting))
    if os.path.exists(os.path.expanduser(value)):  # commas may be part of a name
        return [value]
    return [entry for part in value.split(",") if (entry := part.strip())]


def _files(entry: str, setting: str) -> list[str]:
    try:
        languages, paths = parse_spec(entry)
        if languages:
            return find_files(entry)[1]
    except UserError as error:
        raise UserError(error.what, setting=setting, remedy=error.remedy) from error
    if not os.path.exists(paths[0]):
        raise UserError(
            f"expected a file of questions or a folder of them, found none at {paths[0]}",
            setting=setting,
        )
    return [*log_files(paths)]


class Unlabeled(NamedTuple):
    """Texts that a teacher encodes, each once: found in files, words, and spliced questions."""

    given: list[str]
    words: list[str]
    spliced: list[str]


def unlabeled_texts(
    config: TrainConfig,
    questions: list[str],
    trained: list[str],
    held_out: Container[str],
    words: Sequence[str],
) -> Unlabeled:
    """The texts of `data.unlabeled`, words, and questions spliced from `trained` and the former.

    Texts among `questions` or with a normalized text in `held_out` are left out.

    words: of `teacher.words`; those are replaced by them that spliced questions hold.
    """
    given: list[str] = []
    spliced: list[str] = []
    known = set(questions)

    def is_new(text: str) -> bool:
        return text not in known and normalized_text(text) not in held_out

    for text in read_listed(config, "data.unlabeled"):
        if is_new(text):
            known.add(text)
            given.append(text)
    if config.data.unlabeled:
        log.info("data: %s unlabeled texts", f"{len(given):,}")
    alone = [word for word in dict.fromkeys(words) if is_new(word)]
    known.update(alone)
    if config.data.spliced:
        spliced = splice_questions(trained + given, config.data.spliced, accept=is_new)
        if words:
            replaced = dict.fromkeys(replace_words(spliced, words))
            spliced = [text for text in replaced if is_new(text)]
        log.info("data: %s spliced questions", f"{len(spliced):,}")
    return Unlabeled(given, alone, spliced)
