"""The unlabeled texts of a training, which a student learns a teacher's vectors of."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from typing import NamedTuple

from qpr_jax.data.spliced import replace_words, splice_questions
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.lists import read_listed

log = logging.getLogger(__name__)


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
