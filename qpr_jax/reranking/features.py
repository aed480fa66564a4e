"""The features of the light re-ranker: numbers of a query, a hit and the list of hits."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Sequence

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.index import text_kernels
from qpr_jax.index.statistics import Statistics
from qpr_jax.machine import cpu_count
from qpr_jax.reranking import feature_kernels, feature_tables
from qpr_jax.reranking.feature_kernels import FEATURES, WORD_WEIGHTS
from qpr_jax.reranking.feature_tables import Lexicon, Scratch

__all__ = ["FEATURES", "WORD_WEIGHTS", "FeatureExtractor"]

_CHUNK = 32  # queries that a thread takes at a time
# A word of one letter is what an apostrophe cuts off: "don't" has the words "don" and "t".
_NEGATIONS = (
    *("not", "no", "never", "none", "nothing", "nobody", "nowhere", "neither", "nor", "without"),
    *("cannot", "t", "cant", "dont", "doesnt", "didnt", "isnt", "arent", "wasnt", "wont"),
    *("wouldnt", "shouldnt", "couldnt", "hasnt", "havent"),
)
_QUESTION_WORDS = (
    *("what", "which", "who", "whom", "whose", "when", "where", "why", "how"),
    *("is", "are", "was", "were", "do", "does", "did", "can", "could", "should", "will", "would"),
)


class FeatureExtractor:
    """Computes the features `feature_kernels.FEATURES` of queries and their hits.

    Safe to use from several threads, also while another one changes the statistics.
    """

    def __init__(self, encoder: Encoder, statistics: Statistics, weights: np.ndarray) -> None:
        """Make the table of the encoder's words; each call reads the current `statistics`.

        weights: the learned weights of `word_weights`, float32 [2 ** BITS].
        """
        self._statistics, self.weights = statistics, weights
        self._lexicon = make_lexicon(*encoder.word_embeddings())
        self._local = threading.local()
        # Kept, as is the working memory of its threads, which start with the first long call.
        self._pool = concurrent.futures.ThreadPoolExecutor(cpu_count())

    def compute(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> np.ndarray:
        """Compute the features of the hits of q queries.

        No feature depends on the order of the hits of a query, or compares the texts of two hits;
        gaps and ranks compare the values of one feature.

        Args:
          queries: q texts.
          questions: the m texts of the hits; those of a query are contiguous.
          distances: float32 [m], squared Euclidean, by the first stage.
          starts: int64 [q + 1]; the hits of query i are starts[i] to starts[i + 1].

        Returns:
          float32 [m, len(FEATURES)].
        """
        out = np.empty((len(questions), len(FEATURES)), np.float32)
        out[:, 0] = distances

        def fill(start: int) -> None:
            stop = min(start + _CHUNK, len(queries))
            first, last = int(starts[start]), int(starts[stop])
            sizes = np.diff(starts[start : stop + 1])
            feature_kernels.compute(
                text_kernels.as_bytes(queries[start:stop]),
                text_kernels.as_bytes(questions[first:last]),
                starts[start : stop + 1] - first,
                (float(self._statistics.count), self._statistics.mean_length),
                tuple(self._statistics.counters),
                tuple(self._lexicon),
                self.weights,
                tuple(self._scratch(int(sizes.max(initial=0)))),
                out[first:last],
            )

        if len(queries) <= _CHUNK:
            fill(0)
            return out
        for _ in self._pool.map(fill, range(0, len(queries), _CHUNK)):
            pass
        return out

    def _scratch(self, candidates: int) -> Scratch:
        """The working memory of this thread, for lists of up to this many candidates."""
        found: tuple[int, Scratch] | None = getattr(self._local, "scratch", None)
        if found is None or found[0] < candidates:
            found = self._local.scratch = candidates, feature_tables.make_scratch(candidates)
        return found[1]


def make_lexicon(words: Sequence[str], embeddings: np.ndarray) -> Lexicon:
    """Make the table of words with embeddings, float32 [n, e], and of words with a flag.

    Embeddings are rounded to 8-bit integers: their products are the same on any machine.
    """
    largest = np.abs(embeddings).max(axis=1, initial=0)
    vectors = np.rint(embeddings * (127 / np.maximum(largest, 1e-30))[:, None]).astype(np.int8)
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.int64)
    scales = (1 / np.sqrt(np.maximum(squares, 1))).astype(np.float32)
    hashes = text_kernels.word_hashes(words)
    size = 1 << (2 * (len(words) + len(_NEGATIONS) + len(_QUESTION_WORDS))).bit_length()
    slots = np.zeros(size, feature_tables.SLOT)
    feature_tables.add_rows(slots, hashes)
    feature_tables.add_flag(slots, text_kernels.word_hashes(_NEGATIONS), feature_tables.NEGATION)
    feature_tables.add_flag(
        slots, text_kernels.word_hashes(_QUESTION_WORDS), feature_tables.QUESTION_WORD
    )
    return Lexicon(slots, vectors, scales)
