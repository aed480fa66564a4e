"""Score how well an encoder places a sentence next to its translation.

Row i of the source and of the target side translate each other. Two candidates that read alike
(equal normalized texts) are one answer, and so are the translations of one text: data often has a
sentence more than once. Of equal distances the first row counts, so that an encoder that gives all
texts one vector finds one right answer in n, not all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.evaluation import metrics
from qpr_jax.evaluation.retrieval import DEPTH, HITS_AT
from qpr_jax.index.exact import ExactTopK, exact_top_k
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.unit_vectors import unit_rows

_NEAR = 8  # candidates whose distances are computed again, without rounding
_BLOCK = 1024  # queries searched at once
_CHUNK = 16_384  # rows of a corpus that are searched at once


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
    source_groups, target_groups = (
        text_groups(texts, len(source_vectors)) for texts in (sources, targets)
    )
    to_source = nearest(target_vectors, source_vectors)
    to_target = nearest(source_vectors, target_vectors)
    scores = {
        "to_source": translation_accuracy(to_source, source_groups, target_groups),
        "to_target": translation_accuracy(to_target, source_groups, target_groups),
    }
    if teacher_vectors is None:
        return scores
    _check_sides(source_vectors, teacher_vectors)
    teacher = unit_rows(np.asarray(teacher_vectors, np.float32))
    return scores | {
        "cosine_source": _mean_cosine(source_vectors, teacher),
        "cosine_target": _mean_cosine(target_vectors, teacher),
    }


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
        raise UserError(
            f"corpus: expected vectors [Q, {queries.shape[1]}], got {list(corpus.shape)}"
        )
    best = ExactTopK(_floats(queries), DEPTH)
    for start in range(0, len(corpus), _CHUNK):
        part = _floats(corpus[start : start + _CHUNK])
        best.add(np.arange(start, start + len(part)), part)
    best.add(np.arange(len(corpus), len(corpus) + len(answers)), _floats(answers))
    return score_rankings(best.rows, len(corpus), answer_texts, corpus_texts)


def score_rankings(
    rankings: np.ndarray,
    corpus_size: int,
    answer_texts: Sequence[str] | None = None,
    corpus_texts: Sequence[str] | None = None,
) -> dict[str, float]:
    """As `score_retrieval`, of rankings by any search.

    rankings: int64 [n, 20], rows of the corpus, then of the n answers; -1 where there are fewer.
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
    return {
        **{f"hits@{k}": float(metrics.hits(relevance, k).mean()) for k in HITS_AT},
        f"mrr@{DEPTH}": float(metrics.reciprocal_rank(relevance, DEPTH).mean()),
    }


def translation_accuracy(
    found: np.ndarray, source_groups: np.ndarray, target_groups: np.ndarray
) -> float:
    """How often the row found for row i is right: i, or one of the same text on either side.

    Args:
      found: int [n], -1 for none.
      source_groups: int [n], equal where source sentences read alike.
      target_groups: int [n], the same of the translations.
    """
    same_source = source_groups[found] == source_groups
    same_target = target_groups[found] == target_groups
    return float(((found >= 0) & (same_source | same_target)).mean())


def nearest(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The nearest candidate of each query; of equal distances the first row: int64 [n].

    queries: float32 [n, d]; candidates: float32 [m, d]; one or more of each.
    """
    queries, candidates = _floats(queries), _floats(candidates)
    # Equal vectors are searched once, as the first of them: however many there are, and however
    # the product rounds, they tie.
    _, first = np.unique(candidates, axis=0, return_index=True)
    first.sort()
    distinct = candidates[first]
    parts = []
    for start in range(0, len(queries), _BLOCK):
        block = queries[start : start + _BLOCK]
        found = np.sort(exact_top_k(block, distinct, min(_NEAR, len(first)))[1], axis=1)
        differences = block[:, None, :].astype(np.float64) - distinct[found]
        best = (differences**2).sum(axis=2).argmin(axis=1)
        parts.append(first[found[np.arange(len(block)), best]])
    return np.concatenate(parts)


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


def _check_sides(left: np.ndarray, right: np.ndarray) -> None:
    if left.ndim != 2 or len(left) == 0:
        raise UserError(f"expected vectors [n, d] of one or more texts, got {list(left.shape)}")
    if left.shape != right.shape:
        raise UserError(
            f"expected vectors of one shape on both sides, got {list(left.shape)} and "
            f"{list(right.shape)}"
        )


def _floats(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, np.float32)


def _mean_cosine(vectors: np.ndarray, teacher: np.ndarray) -> float:
    return float((unit_rows(_floats(vectors)) * teacher).sum(axis=1).mean())
