"""Scores of an encoder on a set of translations, and how much of a language it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.parallel import Translations
from qpr_jax.evaluation.translation import score_retrieval, score_translations
from qpr_jax.text.base import Tokenizer

_SAMPLED = 20_000  # texts whose tokens are counted

Encode = Callable[[Sequence[str]], np.ndarray]  # n texts -> float32 [n, d]


class Corpus(NamedTuple):
    """Questions that translations are searched among, and their vectors, float32 [Q, d]."""

    questions: Sequence[str]
    vectors: np.ndarray


def score_set(
    texts: Translations,
    encode: Encode,
    *,
    encode_sources: Encode | None = None,
    teacher: Encode | None = None,
    corpus: Corpus | None = None,
) -> dict[str, Any]:
    """Score an encoder on one set of translations.

    Args:
      texts: one or more.
      encode: the encoder of both sides.
      encode_sources: another encoder of the sources, into the same space.
      teacher: its vectors of the sources, [n, d] too, are compared with those of both sides.
      corpus: the targets are searched for their sources among its questions, too.

    Returns:
      `language`, `name`, `sentences`, the scores of `score_translations` and, with a corpus,
      `retrieval`: those of `score_retrieval`.
    """
    sides = (encode_sources or encode)(texts.sources), encode(texts.targets)
    expected = teacher(texts.sources) if teacher else None
    facts = {"language": texts.language, "name": texts.name, "sentences": len(texts.sources)}
    found = facts | score_translations(*sides, expected, texts.sources, texts.targets)
    if corpus:
        found["retrieval"] = score_retrieval(
            sides[1], sides[0], corpus.vectors, texts.sources, corpus.questions
        )
    return found


def known_share(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """The share of the tokens of texts that have a row of their own, of a sample of 20,000."""
    sample = np.random.default_rng(0).permutation(np.array([*texts], object))[:_SAMPLED]
    ids = tokenizer.token_ids(sample.tolist(), 1 << 30).ids
    return float(tokenizer.is_known(ids).sum() / max(1, (ids > 0).sum()))


def known_shares(
    tokenizer: Tokenizer, files: Sequence[Translations], source_language: str
) -> dict[str, float]:
    """`known_share` of each language of translations, by its code; dictionaries do not count."""
    sentences = [file for file in files if not file.dictionary]
    texts: dict[str, dict[str, None]] = {source_language: {}}
    for file in sentences:
        texts[source_language] |= dict.fromkeys(file.sources)
        texts.setdefault(file.language, {}).update(dict.fromkeys(file.targets))
    return {language: known_share(tokenizer, found) for language, found in texts.items()}
