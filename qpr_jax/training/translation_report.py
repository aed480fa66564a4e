"""The scores of a run on translations: each language, held-out sentences and test files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from qpr_jax.data.parallel import Translations
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.translation import score_retrieval, score_translations
from qpr_jax.text.base import Tokenizer
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.teacher import cached_vectors
from qpr_jax.training.translations import TranslationData

_SAMPLED = 20_000  # texts of a language whose known tokens are counted


def translation_scores(
    config: TrainConfig, dataset: TrainDataset, encoder: Encoder, vectors: np.ndarray
) -> dict[str, Any]:
    """Score an encoder on the translations of a run.

    vectors: float32 [Q, d], of the indexed questions.

    Returns:
      `known`: by language, the share of tokens with a row of their own. `sets`: a list of
      `language`, `name`, `sentences`, the scores of `score_translations` and, of held-out
      sentences, `retrieval`: those of `score_retrieval` among the indexed questions.
    """
    translations = dataset.translations
    if translations is None:
        return {}
    sets: list[dict[str, Any]] = []
    for name in HELD_OUT:
        for held_out in translations.splits.held_out[name]:
            sides = _encode(encoder, held_out)
            found = _score(config, dataset, name, held_out, sides)
            questions = dataset.data.questions
            texts = held_out.sources, questions
            found["retrieval"] = score_retrieval(sides[1], sides[0], vectors, *texts)
            sets.append(found)
    for test in translations.splits.tests:
        sets.append(_score(config, dataset, test.name, test, _encode(encoder, test)))
    return {"known": known_tokens(config, dataset, translations), "sets": sets}


def known_tokens(
    config: TrainConfig, dataset: TrainDataset, translations: TranslationData
) -> dict[str, float]:
    """The share of the tokens of each language that have a row of their own."""
    own = config.data.teacher_language
    shares = {own: _known(dataset.tokenizer, translations.sources)}
    for file in translations.splits.train:
        if file.language not in shares:
            files = [f for f in translations.splits.train if f.language == file.language]
            texts = [text for f in files if not f.dictionary for text in f.targets]
            shares[file.language] = _known(dataset.tokenizer, texts)
    return shares


def _known(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    sample = np.random.default_rng(0).permutation(np.array([*texts], object))[:_SAMPLED]
    ids = tokenizer.token_ids(sample.tolist(), 1 << 30).ids
    return float(tokenizer.is_known(ids).sum() / max(1, (ids > 0).sum()))


def _encode(encoder: Encoder, texts: Translations) -> tuple[np.ndarray, np.ndarray]:
    return encoder.encode(texts.sources), encoder.encode(texts.targets)


def _score(
    config: TrainConfig,
    dataset: TrainDataset,
    name: str,
    texts: Translations,
    sides: tuple[np.ndarray, np.ndarray],
) -> dict[str, Any]:
    teacher, expected = dataset.teacher, None
    if teacher and teacher.encoder:
        expected = cached_vectors(config.teacher.cache, teacher.encoder, texts.sources)
        if teacher.components is not None:
            expected = expected @ teacher.components
    facts = {"language": texts.language, "name": name, "sentences": len(texts.sources)}
    scores = score_translations(sides[0], sides[1], expected, texts.sources, texts.targets)
    return facts | scores
