"""Candidates of the questions of a run, and their features for re-rankers."""

from __future__ import annotations

import functools
import logging
import pathlib
import zipfile
from dataclasses import dataclass

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import RankFn, rank
from qpr_jax.files import write_atomically
from qpr_jax.reranking.base import owners_of, starts_of
from qpr_jax.reranking.features import FeatureExtractor
from qpr_jax.reranking.lexical import LexicalIndex
from qpr_jax.reranking.light import PairScorer
from qpr_jax.reranking.word_weights import weight_rows, zero_weights
from qpr_jax.retriever import Retriever

log = logging.getLogger(__name__)

_BLOCK = 1024  # queries whose distances are computed at once
_PART = 4096  # pairs in a file; a kill loses at most one file


@dataclass(frozen=True)
class Candidates:
    """The candidates of q queries, without the query itself.

    Attributes:
      queries: int64 [q], rows of questions.
      rows: int64 [m], rows of the candidates; those of a query are contiguous.
      distances: float32 [m].
      starts: int64 [q + 1].
    """

    queries: np.ndarray
    rows: np.ndarray
    distances: np.ndarray
    starts: np.ndarray

    @functools.cached_property
    def owners(self) -> np.ndarray:
        """The query of each candidate, 0 to q - 1: int64 [m]."""
        return owners_of(self.starts)

    def select(self, kept: np.ndarray) -> Candidates:
        """Keep some candidates, bool [m]."""
        counts = np.bincount(self.owners[kept], minlength=len(self.queries))
        kept_rows, distances = self.rows[kept], self.distances[kept]
        return Candidates(self.queries, kept_rows, distances, starts_of(counts))


class LogitCache:
    """A cache in files of a cross-encoder's logits for pairs of questions, which take long.

    A kill loses at most the file that was being computed. The same pairs are then computed
    together, on which their last bits depend; see `CrossEncoder.predict`.
    """

    def __init__(self, folder: pathlib.Path, scorer: PairScorer, questions: list[str]) -> None:
        """folder: gets a sub-folder for this cross-encoder."""
        self.identity = scorer.identity
        self._folder = folder / scorer.identity[:16]
        self._scorer, self._questions = scorer, questions
        self._known: dict[int, float] = {}
        for path in sorted(self._folder.glob("*.npz")):
            try:
                with np.load(path, allow_pickle=False) as part:
                    self._known |= zip(part["pairs"].tolist(), part["logits"].tolist(), strict=True)
            except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
                what = f"{path}: expected logits of pairs, got {error}"
                raise UserError(what, remedy="remove the file") from error

    def compute(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the logits of pairs of questions, rows int [m] each: float32 [m]."""
        keys = (queries.astype(np.int64) * len(self._questions) + rows).tolist()
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        for start in range(0, len(missing), _PART):
            self._add(missing[start : start + _PART])
            done = min(start + _PART, len(missing))
            log.info("cross-encoder: scored %s of %s pairs", f"{done:,}", f"{len(missing):,}")
        return np.array([self._known[key] for key in keys], np.float32)

    def _add(self, keys: list[int]) -> None:
        texts, count = self._questions, len(self._questions)
        logits = self._scorer.predict([(texts[k // count], texts[k % count]) for k in keys])
        number = len([*self._folder.glob("*.npz")])
        with write_atomically(self._folder / f"{number:06}.npz") as file:
            np.savez(file, pairs=np.array(keys, np.int64), logits=logits)
        self._known |= zip(keys, logits.tolist(), strict=True)


class Finder:
    """Finds candidates of questions of the run, and computes their features."""

    def __init__(
        self,
        retriever: Retriever,
        questions: list[str],
        vectors: np.ndarray,
        *,
        dense: int,
        lexical: int = 0,
        logits: LogitCache | None = None,
    ) -> None:
        """Read the statistics of the index.

        Args:
          retriever: the encoder, and the index of the questions.
          questions: Q texts, in the order of the index.
          vectors: float32 [Q, d], of the questions.
          dense: the number of candidates from the first stage.
          lexical: the number of further candidates from BM25.
          logits: the cross-encoder's logits, the last feature; None for no such feature.
        """
        self.dense, self.lexical, self.logits = dense, lexical, logits
        self._questions, self._vectors = questions, vectors
        statistics = retriever.index.keep_statistics()
        self._extractor = FeatureExtractor(retriever.encoder, statistics, zero_weights())
        self._bm25 = LexicalIndex(retriever.index) if lexical else None

    def find(self, first: RankFn, queries: np.ndarray, dense: int = 0) -> Candidates:
        """Find the candidates of queries, rows int [q], by the first stage `first` and by BM25.

        dense: a smaller number of candidates from the first stage; 0 for the default.
        """
        return self.collect(rank(first, queries, min(dense or self.dense, self.dense)), queries)

    def collect(self, found: np.ndarray, queries: np.ndarray) -> Candidates:
        """Take the first `dense` rows of a ranking, int64 [q, k], and those of BM25."""
        queries, found = np.asarray(queries, np.int64), found[:, : self.dense]
        if self._bm25 is not None:
            bm25, texts = self._bm25, self._questions

            def search(rows: np.ndarray, k: int) -> np.ndarray:
                return bm25.search([texts[i] for i in rows.tolist()], k)

            more = rank(search, queries, self.lexical)
            known = (more[:, :, None] == found[:, None, :]).any(axis=2)
            found = np.concatenate([found, np.where(known, -1, more)], axis=1)
        valid = found >= 0
        starts = starts_of(valid.sum(axis=1))
        distances = np.empty(found.shape, np.float32)
        for start in range(0, len(found), _BLOCK):
            block = slice(start, start + _BLOCK)
            ends = self._vectors[found[block]]
            distances[block] = ((self._vectors[queries[block]][:, None] - ends) ** 2).sum(axis=2)
        return Candidates(queries, found[valid], distances[valid], starts)

    def use_weights(self, weights: np.ndarray) -> None:
        """Set the word weights of the features, which are 0 at first."""
        self._extractor.weights = weights

    def weight_rows(self, lists: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """List the word weights of candidates; see `word_weights.weight_rows`."""
        return weight_rows(*self._texts(lists), lists.starts)

    def features(self, lists: Candidates, *, logits: bool = True) -> np.ndarray:
        """Compute the features of candidates, float32 [m, f].

        logits: whether to compute the cross-encoder's, if there is one; else they are 0.
        """
        texts = self._texts(lists)
        features = self._extractor.compute(*texts, lists.distances, lists.starts)
        if self.logits is None:
            return features
        found = np.zeros(len(lists.rows), np.float32)
        if logits:
            found = self.logits.compute(lists.queries[lists.owners], lists.rows)
        return np.column_stack([features, found])

    def _texts(self, lists: Candidates) -> tuple[list[str], list[str]]:
        """Return the texts of the queries, and those of the candidates."""
        texts = self._questions
        return [texts[i] for i in lists.queries.tolist()], [texts[i] for i in lists.rows.tolist()]
