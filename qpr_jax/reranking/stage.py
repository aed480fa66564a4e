"""The second stage over one index: it reorders what a search finds, and explains it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.ids import id_key, parse_key
from qpr_jax.index.base import Found, Hit, Index
from qpr_jax.index.question_index import QuestionIndex
from qpr_jax.reranking.base import Reranker, none_if_unknown, starts_of
from qpr_jax.reranking.differences import Differences
from qpr_jax.reranking.lexical import LexicalIndex
from qpr_jax.reranking.light import rank_hits

UNKNOWN = -1  # the id of a text that is not in the index


class Explanation(NamedTuple):
    """The scores of a query and a question by both stages.

    Attributes:
      distance: by the encoder.
      raw_score: the score that the second stage sorts by; None without a second stage.
      probability: that the two mean the same: `Hit.score`; None without a second stage.
      features: the inputs of the second stage, by name.
      pair_probability: that the two mean the same, by their distance alone, for a pair found among
        all questions; None without a calibration.
      differences: words, numbers and negation in which the two differ.
    """

    distance: float
    raw_score: float | None = None
    probability: float | None = None
    features: dict[str, float] = {}  # noqa: RUF012
    pair_probability: float | None = None
    differences: Differences = Differences()


class Stage:
    """A re-ranker of the hits of one index."""

    def __init__(self, reranker: Reranker, encoder: Encoder, index: Index, *, quick: bool) -> None:
        """quick: the index is locked during a search, so that its statistics cannot change."""
        self._reranker, self._encoder, self._index, self._quick = reranker, encoder, index, quick
        self._products = index.recipe.metric == "ip"
        self._lexical = None
        if reranker.lexical_candidates and isinstance(index, QuestionIndex):
            self._lexical = LexicalIndex(index)

    def search(self, queries: Sequence[str], vectors: np.ndarray, k: int) -> list[list[Hit]]:
        """Find the first `k` hits of each query; `vectors`, float32 [n, d], encode the queries."""

        def reorder(
            start: int, distances: np.ndarray, rows: np.ndarray, found: Found
        ) -> list[list[Hit]]:
            some = slice(start, start + len(rows))
            near, pool = self._pool(queries[some], vectors[some], distances, rows, found)
            best = self._best(queries[some], near, pool, k, found)
            first = self._reranker.candidates  # the rest keeps its order
            if k <= first:
                return best
            rest = np.where(_is_in(rows[:, first:], pool[:, first:]), -1, rows[:, first:])
            others = found.hits(distances[:, first:], rest)
            return [(hits + more)[:k] for hits, more in zip(best, others, strict=True)]

        most = max(k, self._reranker.candidates)
        return self._index.find(vectors, most, reorder, locked=self._quick)

    def explain(self, query: str, given: Hit) -> Explanation:
        """Explain the score of one question among the hits that the re-ranker would reorder.

        given: the question as a hit, with the key of its id, or UNKNOWN if it is not indexed.
        """
        vectors = self._encoder.encode([query])
        parts: dict[str, Any] = {}

        def reorder(
            _: int, distances: np.ndarray, rows: np.ndarray, found: Found
        ) -> list[list[Hit]]:
            (pool,) = found.hits(*self._pool([query], vectors, distances, rows, found))
            by_id = given.id != UNKNOWN
            keys = [id_key(hit.id) if by_id else hit.question for hit in pool]
            key = given.id if by_id else given.question
            if key in keys:
                place = keys.index(key)
            else:  # it takes the place of the farthest
                del pool[self._reranker.candidates - 1 : self._reranker.candidates]
                place = len(pool)
                pool.append(given)
            if self._products:
                pool = [hit._replace(distance=2 + 2 * hit.distance) for hit in pool]
            parts.update(self._reranker.explain(query, pool)[place])
            return []

        self._index.find(vectors, self._reranker.candidates, reorder)
        raw, probability = parts.pop("score"), parts.pop("probability")
        return Explanation(given.distance, raw, probability, parts)

    def _pool(
        self,
        queries: Sequence[str],
        vectors: np.ndarray,
        distances: np.ndarray,
        rows: np.ndarray,
        questions: Found,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and rows, [n, c], of the hits to reorder; row -1 for none."""
        first = self._reranker.candidates
        distances, rows = distances[:, :first], rows[:, :first]
        if self._lexical is None:
            return distances, rows
        more = self._lexical.search(queries, self._reranker.lexical_candidates)
        more[_is_in(more, rows)] = -1
        found = more >= 0
        others = self._encoder.encode(questions.fields(more[found])[1])
        own = vectors[np.nonzero(found)[0]]
        products = self._products
        near = -(others * own).sum(axis=1) if products else ((others - own) ** 2).sum(axis=1)
        far = np.full(more.shape, np.inf, np.float32)
        far[found] = near
        return np.hstack([distances, far]), np.hstack([rows, more])

    def _best(
        self,
        queries: Sequence[str],
        distances: np.ndarray,
        rows: np.ndarray,
        k: int,
        questions: Found,
    ) -> list[list[Hit]]:
        """Sort the rows, [n, c], of each query by the re-ranker, and return the first `k` hits.

        Only these become a `Hit`: creating one takes as long as scoring a candidate by the trees.
        """
        found = rows >= 0
        if not found.any():
            return [[] for _ in rows]
        ids, texts = questions.fields(rows[found])
        near = distances[found]
        starts = starts_of(found.sum(axis=1))
        squares = 2 + 2 * near if self._products else near
        raw, known = self._reranker.score(queries, texts, squares, starts)
        order = rank_hits(raw, near, ids, starts).tolist()
        best = [order[at : min(at + k, stop)] for at, stop in itertools.pairwise(starts.tolist())]
        chosen = [i for some in best for i in some]
        payloads = questions.payloads(rows[found][chosen])
        distances, scores = near.tolist(), none_if_unknown(known)
        hits = (
            Hit(ids[i], texts[i], distances[i], scores[i], payload)
            for i, payload in zip(chosen, payloads, strict=True)
        )
        return [[*itertools.islice(hits, len(some))] for some in best]


def text_of(index: Index, id: object) -> str:
    """Return the question of an id; UserError if there is none."""
    key = parse_key(id)
    (found,) = (None,) if key is None else index.questions([key])
    if found is None:
        raise UserError(
            f"`id`: expected the id of an indexed question, got {id!r:.80}",
            remedy="use the id of a hit, or give the text as `other`",
        )
    return found


def _is_in(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which rows, [n, c], are in `others`, [n, d], of the same query: bool [n, c]."""
    last = max(rows.max(initial=0), others.max(initial=0))
    owners = (2 + last) * np.arange(len(rows))[:, None]
    return np.isin(rows + owners, others + owners)
