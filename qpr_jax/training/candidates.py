"""Candidates of the questions of a run, and their features for re-rankers."""

from __future__ import annotations

import functools
import logging
import pathlib
import zipfile
from dataclasses import dataclass

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import RankFn, rank
from qpr_jax.files import write_atomically
from qpr_jax.index.vectors import distances_to
from qpr_jax.reranking.base import owners_of, starts_of
from qpr_jax.reranking.cross_encoder import CrossEncoder
from qpr_jax.reranking.features import FeatureExtractor, zero_weights
from qpr_jax.reranking.terms import Frequencies

log = logging.getLogger(__name__)

PART = 4096  # pairs in a file; a kill loses at most one file


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

    def __init__(
        self, folder: pathlib.Path, scorer: CrossEncoder, questions: list[str], *, part: int = PART
    ) -> None:
        """folder: gets a sub-folder for this cross-encoder; part: pairs in a file."""
        self._part = part
        self.identity = scorer.identity
        self._folder = folder / scorer.identity[:16]
        self._scorer, self._questions = scorer, questions
        self._known: dict[int, float] = {}
        for path in sorted(self._folder.glob("*.npz")):
            try:
                with np.load(path, allow_pickle=False) as known:
                    self._known |= zip(
                        known["pairs"].tolist(), known["logits"].tolist(), strict=True
                    )
            except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
                what = f"{path}: expected logits of pairs, got {error}"
                raise UserError(what, remedy="remove the file") from error

    def compute(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the logits of pairs of questions, rows int [m] each: float32 [m]."""
        keys = (queries.astype(np.int64) * len(self._questions) + rows).tolist()
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        for start in range(0, len(missing), self._part):
            self._add(missing[start : start + self._part])
            done = min(start + self._part, len(missing))
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
    """Finds candidates of questions of the run, and computes their features.

    Attributes:
      candidates: the number of candidates of a query.
      frequencies: of the terms of the questions.
    """

    def __init__(
        self,
        encoder: Encoder,
        questions: list[str],
        vectors: np.ndarray,
        *,
        candidates: int,
        frequencies: Frequencies | None = None,
        logits: LogitCache | None = None,
    ) -> None:
        """Count the terms of the questions.

        Args:
          encoder: of the questions.
          questions: Q texts.
          vectors: float32 [Q, d], of the questions.
          candidates: the number of candidates of a query.
          frequencies: None to count those of the questions.
          logits: the cross-encoder's logits, the last feature; None for no such feature.
        """
        self.candidates, self.logits = candidates, logits
        self.frequencies = frequencies or Frequencies.count(questions)
        self._questions, self._vectors = questions, vectors
        self._extractor = FeatureExtractor(encoder, self.frequencies, zero_weights())

    def find(self, first: RankFn, queries: np.ndarray, count: int = 0) -> Candidates:
        """Find the candidates of queries, rows int [q], by the first stage `first`.

        count: a smaller number of candidates; 0 for `candidates`.
        """
        count = min(count or self.candidates, self.candidates)
        return self.collect(rank(first, queries, count), queries)

    def collect(self, found: np.ndarray, queries: np.ndarray) -> Candidates:
        """Take the first `candidates` rows of a ranking, int64 [q, k], -1 for none."""
        queries, found = np.asarray(queries, np.int64), found[:, : self.candidates]
        distances = distances_to(self._vectors[queries], self._vectors, found)
        valid = found >= 0
        return Candidates(queries, found[valid], distances[valid], starts_of(valid.sum(axis=1)))

    def use_weights(self, weights: np.ndarray) -> None:
        """Set the word weights of the features, which are 0 at first."""
        self._extractor.weights = weights

    def features(
        self, lists: Candidates, *, logits: bool = True, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute the features of candidates, float32 [m, f].

        logits: whether to compute the cross-encoder's, if there is one; else they are 0.
        rows: as of `FeatureExtractor.compute`.
        """
        queries = [self._questions[i] for i in lists.queries.tolist()]
        texts = [self._questions[i] for i in lists.rows.tolist()]
        features = self._extractor.compute(queries, texts, lists.distances, lists.starts, rows)
        if self.logits is None:
            return features
        found = np.zeros(len(lists.rows), np.float32)
        if logits:
            found = self.logits.compute(lists.queries[lists.owners], lists.rows)
        return np.column_stack([features, found])
