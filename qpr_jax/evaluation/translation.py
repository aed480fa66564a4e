"""Score how well an encoder places a sentence next to its translation.

Row i of the source and of the target side translate each other. Candidates with equal normalized
texts are one answer, and so are the translations of one text. Of equal distances the first row
counts, so that an encoder that gives all texts one vector finds one right answer in n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.entries import numbered
from qpr_jax.data.parallel_sentences import Translations
from qpr_jax.evaluation.retrieval import DEPTH, first_scores
from qpr_jax.index.vectors import exact_top_k, nearest
from qpr_jax.models import unit_rows
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.text.vocabulary import Tokenizer

_NEAR = 8  # candidates among which equal distances are looked for
_SAMPLED = 20_000  # texts whose tokens are counted

Encode = Callable[[Sequence[str]], np.ndarray]  # n texts -> float32 [n, d]


class Corpus(NamedTuple):
    """Questions among which translations are searched, and their vectors, float32 [Q, d]."""

    questions: Sequence[str]
    vectors: np.ndarray


def score_set(
    texts: Translations,
    encode: Encode,
    *,
    teacher: Encode | None = None,
    corpus: Corpus | None = None,
) -> dict[str, Any]:
    """Score an encoder on one set of translations.

    Returns:
      `language`, `name` and `sentences`; `to_source` and `to_target`: how often the nearest vector
      of the other side, by Euclidean distance, is that of the translation. With a `teacher` also
      `cosine_source` and `cosine_target`: the mean cosine of each side to its vectors of the
      sources. With a `corpus` also `retrieval`: the scores of `score_retrieval` for the targets.
    """
    source, target = encode(texts.sources), encode(texts.targets)
    scores: dict[str, Any] = {
        "language": texts.language,
        "name": texts.name,
        "sentences": len(texts.sources),
    }
    groups = [numbered(map(normalized_text, side)) for side in (texts.sources, texts.targets)]
    for name, rows in (
        ("to_source", nearest_rows(target, source)),
        ("to_target", nearest_rows(source, target)),
    ):
        scores[name] = float(np.any([group[rows] == group for group in groups], axis=0).mean())
    if teacher:
        expected = unit_rows(np.asarray(teacher(texts.sources), np.float32))
        for name, side in (("cosine_source", source), ("cosine_target", target)):
            cosines = (unit_rows(np.asarray(side, np.float32)) * expected).sum(axis=1)
            scores[name] = float(cosines.mean())
    if corpus:
        scores["retrieval"] = score_retrieval(target, source, texts.sources, corpus)
    return scores


def score_retrieval(
    queries: np.ndarray, answers: np.ndarray, answer_texts: Sequence[str], corpus: Corpus
) -> dict[str, float]:
    """Score how well queries, float32 [n, d], find their translations behind a corpus.

    answers: float32 [n, d], of the translations `answer_texts`. All that reads like an answer is
    right. Returns `hits@1`, `hits@10` and `mrr@20`, in [0, 1].
    """
    size = len(corpus.questions)
    in_corpus = exact_top_k(queries, corpus.vectors, DEPTH)
    distances, rows = exact_top_k(queries, answers, DEPTH)
    in_answers = distances, np.where(rows >= 0, rows + size, -1)
    _, rankings = nearest(DEPTH, in_corpus, in_answers)
    numbers = numbered(map(normalized_text, [*corpus.questions, *answer_texts]))
    found = np.append(numbers, -1)[rankings]  # row -1 is the last
    return first_scores(found == numbers[size:, None])


def nearest_rows(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return the nearest candidate of each query, of equal distances the first row: int64 [n]."""
    # Equal vectors are searched once, as the first of them.
    _, first = np.unique(np.asarray(candidates, np.float32), axis=0, return_index=True)
    first.sort()
    distances, rows = exact_top_k(queries, candidates[first], min(_NEAR, len(first)))
    ties = np.where(distances == distances[:, :1], rows, len(first))
    return first[ties.min(axis=1)]


def known_shares(tokenizer: Tokenizer, files: Sequence[Translations]) -> dict[str, float]:
    """Return the share of known tokens of each language, in 20,000 texts of its translations.

    A known token has a row of its own. Dictionaries do not count.
    """
    texts: dict[str, dict[str, None]] = {}
    for file in files:
        if not file.dictionary:
            texts.setdefault(file.source_language, {}).update(dict.fromkeys(file.sources))
            texts.setdefault(file.language, {}).update(dict.fromkeys(file.targets))
    shares = {}
    for language, found in texts.items():
        sample = np.random.default_rng(0).permutation(np.array([*found], object))[:_SAMPLED]
        ids = tokenizer.token_ids(sample.tolist(), 1 << 30).ids
        shares[language] = float(tokenizer.is_known(ids).sum() / max(1, len(ids)))
    return shares
