"""The re-rankers in the folder of an encoder, and the search in two stages."""

from __future__ import annotations

import functools
import itertools
import pathlib
import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import read_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import check_ids
from qpr_jax.index.base import Hit
from qpr_jax.index.question_index import QuestionIndex
from qpr_jax.index.run import export_name, run_encoder_folder
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking.base import Rerank, Reranker
from qpr_jax.reranking.cross_encoder import CrossEncoder, CrossReranker, read_cross_encoder
from qpr_jax.reranking.lexical import LexicalIndex
from qpr_jax.reranking.light import (
    LIGHT,
    STACKED,
    LightModel,
    LightReranker,
    rank_hits,
    read_light,
    save_light,
    serialize_light,
)

WORDS = ("light", "cross_encoder")
UNKNOWN = -1  # the id of a text that is not in the index
_UNIT = 1e-3  # tolerance of the length of a unit vector: encoders may round to bfloat16


class Explanation(NamedTuple):
    """The scores of a query and a question by both stages.

    Attributes:
      distance: by the encoder.
      raw_score: the score that the second stage sorts by; None without a second stage.
      probability: that the two mean the same: `Hit.score`; None without a second stage.
      features: the inputs of the second stage, by name.
    """

    distance: float
    raw_score: float | None = None
    probability: float | None = None
    features: dict[str, float] = {}  # noqa: RUF012


class SecondStages:
    """The re-rankers of an encoder, by their name in `rerank`; each is made at its first use.

    Attributes:
      models: the trained models by the name of their folder, LIGHT or STACKED.
      cross_encoder: the cross-encoder, or None.
    """

    def __init__(
        self,
        encoder: Encoder,
        models: dict[str, LightModel],
        cross_encoder: CrossEncoder | None = None,
    ) -> None:
        self.models, self.cross_encoder = models, cross_encoder
        self._encoder = encoder
        self._lock = threading.Lock()  # guards the two below
        self._index: QuestionIndex | None = None
        self._made: dict[str, Stage] = {}  # for `_index`

    @classmethod
    def read(
        cls, folder: StrPath, encoder: Encoder, cross_encoder: StrPath | None = None
    ) -> SecondStages:
        """Read those of an encoder's folder; UserError if damaged or of another encoder.

        cross_encoder: the folder of a cross-encoder.
        """
        models = {}
        for name in (LIGHT, STACKED):
            path = pathlib.Path(folder, name)
            if not path.is_dir():
                continue
            models[name] = read_light(path)
            if models[name].encoder != encoder.identity:
                raise UserError(
                    f"{path}: expected a re-ranker of the encoder {encoder.identity[:12]}, got one "
                    f"of {models[name].encoder[:12]}",
                    remedy="remove the folder, or put the re-ranker of this encoder there",
                )
        return cls(encoder, models, read_cross_encoder(cross_encoder) if cross_encoder else None)

    def save(self, run: pathlib.Path, build: str, *, replace: bool) -> str:
        """Write the encoder and its models beside the index of `run`; return the folder's name.

        build: the new build of the index. replace: replace other models of the encoder.
        """
        name = export_name(run, self._encoder, build)
        save_encoder(run / name, self._encoder)
        self.save_models(run / name, replace=replace)
        return name

    def save_models(self, folder: StrPath, *, replace: bool = True) -> None:
        """Write the models to the folder of the encoder."""
        for name, model in self.models.items():
            path = pathlib.Path(folder, name)
            try:
                present = read_light(path)
            except UserError:  # missing, or damaged
                save_light(path, model)
            else:
                if present.encoder != model.encoder or (
                    replace and serialize_light(present) != serialize_light(model)
                ):
                    save_light(path, model)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what `qpr info` prints of each model, by the name of its folder."""
        return {
            name: {
                "candidates": model.candidates,
                "lexical_candidates": model.lexical_candidates,
                "features": len(model.features),
                "trees": len(model.forest.starts) - 1,
                **({"cross_encoder": model.cross_encoder} if model.cross_encoder else {}),
            }
            for name, model in self.models.items()
        }

    def words(self, metric: str) -> list[Rerank]:
        """List what `choose` accepts for an index of this metric, the default first."""
        default = self.choose(None, metric)
        found: list[Rerank] = [default] if default is False else [default, False]
        return [*found, "cross_encoder"] if self.cross_encoder is not None else found

    def choose(self, rerank: Rerank, metric: str) -> Literal[False, "light", "cross_encoder"]:
        """Resolve `rerank` for an index of this metric; None: light if possible, else False.

        UserError for any other value, or if there is no such second stage.
        """
        readable = metric == "l2" or self._has_unit_vectors
        if rerank is None:
            return "light" if LIGHT in self.models and readable else False
        if rerank is False:
            return False
        if rerank not in WORDS:
            what = f"expected None, False, 'light' or 'cross_encoder', got {rerank!r}"
            raise UserError(what, setting="rerank")
        if rerank == "cross_encoder":
            if self.cross_encoder is None:
                raise UserError(
                    "expected a cross-encoder, found none",
                    setting="rerank",
                    remedy="name the folder of one by {cross_encoder}",
                )
            return "cross_encoder"
        if LIGHT not in self.models:
            raise UserError(
                f"expected an encoder with a folder {LIGHT}/, found none",
                setting="rerank",
                remedy="train a run with {rerank.kind=light}, or search without",
            )
        if not readable:
            raise UserError(
                "expected squared Euclidean distances, got inner products of vectors of different "
                "lengths, which the light re-ranker has not learned",
                setting="rerank",
                remedy="index with {metric=l2}, or search without",
            )
        return "light"

    def stage(self, rerank: Rerank, index: QuestionIndex) -> Stage | None:
        """Return the second stage for an index; None if `rerank` means one stage."""
        word = self.choose(rerank, index.recipe.metric)
        if not word:
            return None
        with self._lock:
            if self._index is not index:
                self._index, self._made = index, {}
            if word not in self._made:
                squares = index.recipe.metric == "l2"
                reranker = self._reranker(word, index.keep_statistics(), squares)
                self._made[word] = Stage(reranker, self._encoder, index, quick=word == "light")
            return self._made[word]

    def explain(
        self, rerank: Rerank, index: QuestionIndex, text: str, other: str, id: int | None
    ) -> Explanation:
        """Implement `Retriever.explain`."""
        if id is not None:
            (found,) = index.questions(check_ids([id], 1, 0))
            if found is None:
                raise UserError(f"`id`: expected the id of an indexed question, got {id}")
            other = found
        left, right = self._encoder.encode([text, other])
        products = index.recipe.metric == "ip"
        distance = float(-left @ right if products else ((left - right) ** 2).sum())
        stage = self.stage(rerank, index)
        if stage is None:
            return Explanation(distance)
        return stage.explain(text, Hit(UNKNOWN if id is None else id, other, distance))

    def _reranker(self, word: str, statistics: Statistics, squares: bool) -> Reranker:
        if word == "light" or self.cross_encoder is None:
            return LightReranker(self.models[LIGHT], self._encoder, statistics)
        cross, stacked = self.cross_encoder, self.models.get(STACKED)
        if stacked is None or stacked.cross_encoder != cross.identity:
            return CrossReranker(cross)
        if not squares and not self._has_unit_vectors:
            return CrossReranker(cross)
        return LightReranker(stacked, self._encoder, statistics, cross)

    @functools.cached_property
    def _has_unit_vectors(self) -> bool:
        """Whether the vectors have length 1, judged by three: no encoder does so by chance."""
        lengths = np.linalg.norm(self._encoder.encode(["", "a", "how do i learn to cook"]), axis=1)
        return bool((abs(lengths - 1) < _UNIT).all())


class Stage:
    """A re-ranker of the hits of one index."""

    def __init__(
        self, reranker: Reranker, encoder: Encoder, index: QuestionIndex, *, quick: bool
    ) -> None:
        """quick: the index is locked during a search, so that its statistics cannot change."""
        self._reranker, self._encoder, self._index, self._quick = reranker, encoder, index, quick
        self._products = index.recipe.metric == "ip"
        self._lexical = LexicalIndex(index) if reranker.lexical_candidates else None

    def search(self, queries: Sequence[str], vectors: np.ndarray, k: int) -> list[list[Hit]]:
        """Find the first `k` hits of each query; `vectors`, float32 [n, d], encode the queries."""

        def reorder(start: int, distances: np.ndarray, rows: np.ndarray) -> list[list[Hit]]:
            some = slice(start, start + len(rows))
            near, pool = self._pool(queries[some], vectors[some], distances, rows)
            best = self._best(queries[some], near, pool, k)
            first = self._reranker.candidates  # the rest keeps its order
            if k <= first:
                return best
            rest = np.where(_is_in(rows[:, first:], pool[:, first:]), -1, rows[:, first:])
            others = self._index.hits(distances[:, first:], rest)
            return [(hits + more)[:k] for hits, more in zip(best, others, strict=True)]

        most = max(k, self._reranker.candidates)
        if self._quick:
            return self._index.find(vectors, most, reorder)
        return reorder(0, *self._index.search(vectors, min(most, max(1, len(self._index)))))

    def explain(self, query: str, given: Hit) -> Explanation:
        """Explain the score of one question among the hits that the re-ranker would reorder.

        given: the question as a hit; its id is UNKNOWN if it is not from the index.
        """
        vectors = self._encoder.encode([query])
        parts: dict[str, Any] = {}

        def reorder(_: int, distances: np.ndarray, rows: np.ndarray) -> list[list[Hit]]:
            (pool,) = self._index.hits(*self._pool([query], vectors, distances, rows))
            by_id = given.id != UNKNOWN
            keys = [hit.id if by_id else hit.question for hit in pool]
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
        self, queries: Sequence[str], vectors: np.ndarray, distances: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and rows, [n, c], of the hits to reorder; row -1 for none."""
        first = self._reranker.candidates
        distances, rows = distances[:, :first], rows[:, :first]
        if self._lexical is None:
            return distances, rows
        more = self._lexical.search(queries, self._reranker.lexical_candidates)
        more[_is_in(more, rows)] = -1
        found = more >= 0
        others = self._encoder.encode(self._index.store.fields(more[found])[1])
        own = vectors[np.nonzero(found)[0]]
        products = self._products
        near = -(others * own).sum(axis=1) if products else ((others - own) ** 2).sum(axis=1)
        far = np.full(more.shape, np.inf, np.float32)
        far[found] = near
        return np.hstack([distances, far]), np.hstack([rows, more])

    def _best(
        self, queries: Sequence[str], distances: np.ndarray, rows: np.ndarray, k: int
    ) -> list[list[Hit]]:
        """Sort the rows, [n, c], of each query by the re-ranker, and return the first `k` hits.

        Only these become a `Hit`: creating one takes as long as scoring a candidate by the trees.
        """
        found = rows >= 0
        if not found.any():
            return [[] for _ in rows]
        ids, texts = self._index.store.fields(rows[found])
        near = distances[found]
        starts = np.concatenate([[0], np.cumsum(found.sum(axis=1))])
        squares = 2 + 2 * near if self._products else near
        raw, known = self._reranker.score(queries, texts, squares, starts)
        order = rank_hits(raw, near, np.array(ids, np.int64), starts).tolist()
        scores = [None if score != score else score for score in known.tolist()]
        facts = [*zip(ids, texts, near.tolist(), scores, strict=True)]
        return [
            [Hit(*facts[i]) for i in order[start : min(start + k, stop)]]
            for start, stop in itertools.pairwise(starts.tolist())
        ]


def _is_in(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which rows, [n, c], are in `others`, [n, d], of the same query: bool [n, c]."""
    last = max(rows.max(initial=0), others.max(initial=0))
    owners = (2 + last) * np.arange(len(rows))[:, None]
    return np.isin(rows + owners, others + owners)


def read_stages(run: StrPath, cross_encoder: StrPath | None = None) -> tuple[Encoder, SecondStages]:
    """Read the encoder of `run`, as `run_encoder` does, and its re-rankers."""
    folder = run_encoder_folder(run)
    encoder = read_encoder(folder)
    return encoder, SecondStages.read(folder, encoder, cross_encoder)
