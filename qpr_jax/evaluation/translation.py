"""Score how well an encoder places a sentence next to its translation.

Row i of the source and of the target side translate each other. Two candidates that read alike
(equal normalized texts) are one answer, and so are the translations of one text: data often has a
sentence more than once. Of equal distances the first row counts, so that an encoder that gives all
texts one vector finds one right answer in n, not all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.translations import Translations
from qpr_jax.errors import UserError
from qpr_jax.evaluation import metrics
from qpr_jax.evaluation.retrieval import DEPTH, HITS_AT
from qpr_jax.index import exact
from qpr_jax.text.base import Tokenizer
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.unit_vectors import unit_rows

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
    encode_sources: Encode | None = None,
    teacher: Encode | None = None,
    corpus: Corpus | None = None,
) -> dict[str, Any]:
    """Score an encoder on one set of translations.

    Args:
      texts: one or more.
      encode: encodes both sides.
      encode_sources: another encoder of the sources, into the same space.
      teacher: its vectors of the sources, [n, d] too, are compared with those of both sides.
      corpus: the targets are also searched for their sources among its questions.

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


def score_translations(
    source_vectors: np.ndarray,
    target_vectors: np.ndarray,
    teacher_vectors: np.ndarray | None = None,
    sources: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> dict[str, float]:
    """Score the two directions of translation, and how near the vectors are to the teacher's.

    Args:
      source_vectors: float32 [n, d], one or more, of sentences in the teacher's language.
      target_vectors: float32 [n, d], of their translations.
      teacher_vectors: float32 [n, d], the teacher's of the source sentences.
      sources: the n source sentences; if they are given, equal ones are one answer.
      targets: the n translations, likewise.

    Returns:
      `to_source` and `to_target`: how often the nearest vector of the other side, by Euclidean
      distance, is that of the translation. With `teacher_vectors` also `cosine_source` and
      `cosine_target`: the mean cosine of each side to the teacher's vectors; a vector of zeros
      has a cosine of 0.
    """
    _check_sides(source_vectors, target_vectors)
    groups = [text_groups(texts, len(source_vectors)) for texts in (sources, targets)]
    to_source = nearest(target_vectors, source_vectors)
    to_target = nearest(source_vectors, target_vectors)
    scores = {
        "to_source": translation_accuracy(to_source, *groups),
        "to_target": translation_accuracy(to_target, *groups),
    }
    if teacher_vectors is None:
        return scores
    _check_sides(source_vectors, teacher_vectors)
    teacher = unit_rows(np.asarray(teacher_vectors, np.float32))
    for name, vectors in (("cosine_source", source_vectors), ("cosine_target", target_vectors)):
        own = unit_rows(np.asarray(vectors, np.float32))
        scores[name] = float((own * teacher).sum(axis=1).mean())
    return scores


def score_retrieval(
    queries: np.ndarray,
    answers: np.ndarray,
    corpus: np.ndarray,
    answer_texts: Sequence[str] | None = None,
    corpus_texts: Sequence[str] | None = None,
) -> dict[str, float]:
    """Score how well queries find their translations among the questions of a corpus.

    Args:
      queries: float32 [n, d], one or more.
      answers: float32 [n, d], of the translations; they are searched together with the corpus.
      corpus: floating [Q, d], may be memory-mapped and empty. Of equal distances its rows come
        first, so that vectors that are all equal find nothing.
      answer_texts: the n translations; with them, all that reads like an answer is right.
      corpus_texts: the Q questions; needs `answer_texts`.

    Returns:
      `hits@1`, `hits@10` and `mrr@20`, in [0, 1].
    """
    _check_sides(queries, answers)
    if corpus.ndim != 2 or corpus.shape[1] != queries.shape[1]:
        got = list(corpus.shape)
        raise UserError(f"corpus: expected vectors [Q, {queries.shape[1]}], got {got}")
    in_corpus = exact.exact_top_k(queries, corpus, DEPTH)
    distances, rows = exact.exact_top_k(queries, answers, DEPTH)
    in_answers = distances, np.where(rows >= 0, rows + len(corpus), -1)
    _, rankings = exact.nearest(DEPTH, in_corpus, in_answers)
    return score_rankings(rankings, len(corpus), answer_texts, corpus_texts)


def score_rankings(
    rankings: np.ndarray,
    corpus_size: int,
    answer_texts: Sequence[str] | None = None,
    corpus_texts: Sequence[str] | None = None,
) -> dict[str, float]:
    """Score rankings of any search as `score_retrieval` does.

    rankings: int64 [n, 20], rows of the corpus, then of the n answers; -1 beyond the last.
    """
    if corpus_texts is not None and answer_texts is None:
        raise UserError("answer_texts: expected the texts of the answers, got none")
    answers = text_groups(answer_texts, len(rankings))
    corpus = np.full(corpus_size, -1)
    if corpus_texts is not None and answer_texts is not None:
        together = text_groups([*answer_texts, *corpus_texts], len(rankings) + corpus_size)
        answers, corpus = np.split(together, [len(rankings)])
    found = np.concatenate([corpus, answers, [-1]])[rankings]  # row -1 is the last
    relevance = found == answers[:, None]
    scores = {f"hits@{k}": float(metrics.hits(relevance, k).mean()) for k in HITS_AT}
    return scores | {f"mrr@{DEPTH}": float(metrics.reciprocal_rank(relevance, DEPTH).mean())}


def translation_accuracy(
    found: np.ndarray, source_groups: np.ndarray, target_groups: np.ndarray
) -> float:
    """Return how often the row found for row i is i, or one of the same text on either side.

    Args:
      found: int [n], -1 for none.
      source_groups: int [n], equal where source sentences read alike.
      target_groups: int [n], the same of the translations.
    """
    same_source = source_groups[found] == source_groups
    same_target = target_groups[found] == target_groups
    return float(((found >= 0) & (same_source | same_target)).mean())


def nearest(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return the nearest candidate of each query, of equal distances the first row: int64 [n].

    queries: float32 [n, d]; candidates: float32 [m, d]; one or more of each.
    """
    # Equal vectors are searched once, as the first of them.
    _, first = np.unique(np.asarray(candidates, np.float32), axis=0, return_index=True)
    first.sort()
    distances, rows = exact.exact_top_k(queries, candidates[first], min(_NEAR, len(first)))
    ties = np.where(distances == distances[:, :1], rows, len(first))
    return first[ties.min(axis=1)]


def text_groups(texts: Sequence[str] | None, count: int) -> np.ndarray:
    """Number texts so that those with one normalized text have one number: int64 [count].

    Without texts, each row has a number of its own. UserError if there are not `count` texts.
    """
    if texts is None:
        return np.arange(count)
    if len(texts) != count:
        raise UserError(f"expected {count:,} texts, as many as vectors, got {len(texts):,}")
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(normalized_text(text), len(numbers)) for text in texts]
    return np.array(found, np.int64)


def known_share(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """Return the share of the tokens of 20,000 texts that have a row of their own."""
    sample = np.random.default_rng(0).permutation(np.array([*texts], object))[:_SAMPLED]
    ids = tokenizer.token_ids(sample.tolist(), 1 << 30).ids
    return float(tokenizer.is_known(ids).sum() / max(1, (ids > 0).sum()))


def known_shares(tokenizer: Tokenizer, files: Sequence[Translations]) -> dict[str, float]:
    """Return the `known_share` of each language of translations; dictionaries do not count."""
    texts: dict[str, dict[str, None]] = {}
    for file in files:
        if not file.dictionary:
            texts.setdefault(file.source_language, {}).update(dict.fromkeys(file.sources))
            texts.setdefault(file.language, {}).update(dict.fromkeys(file.targets))
    return {language: known_share(tokenizer, found) for language, found in texts.items()}


def _check_sides(left: np.ndarray, right: np.ndarray) -> None:
    if left.ndim != 2 or len(left) == 0:
        raise UserError(f"expected vectors [n, d] of one or more texts, got {list(left.shape)}")
    if left.shape != right.shape:
        shapes = f"{list(left.shape)} and {list(right.shape)}"
        raise UserError(f"expected vectors of one shape on both sides, got {shapes}")
