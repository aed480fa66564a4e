"""What a model of pairs reads of a labeled table: distances, density and words."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from experiments.transfer_tables import Table
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.models import unit_rows
from qpr_jax.pair_model.guards import compare_words
from qpr_jax.pair_model.plain import neighbor_distances
from qpr_jax.training.teacher import cached_vectors

NEAREST = 30  # of a text: pairs whose words are compared
CANDIDATES = 10  # of a text: pairs that a model is fitted to
HITS = 20  # of a query


class Evidence:
    """A table with its vectors by an encoder, which have length 1.

    Attributes:
      first, second: int64 [P], the texts of each pair.
      cosines: float32 [P].
      same: bool [P], whether the texts of a pair mean the same.
      candidates: bool [P], the pairs that a model is fitted to.
      near: int64 [c], the places of the pairs whose words are compared.
      neighbors: float64 [n], the mean squared distances of texts and their neighbors.
      to_queries: float32 [q, k], cosines of the queries and the texts that are indexed.
      answers: bool [q, k], which indexed texts answer a query.
      hits: int64 [q, HITS], places in `Table.indexed`, nearest first.
    """

    def __init__(self, table: Table, encoder: Encoder) -> None:
        self.table, self.encoder = table, encoder
        self.vectors = unit_rows(np.asarray(cached_vectors(encoder, table.texts), np.float32))
        matrix = self.vectors @ self.vectors.T
        np.fill_diagonal(matrix, -2)
        self.first, self.second = np.triu_indices(len(matrix), 1)
        self.cosines = matrix[self.first, self.second]
        self.same = table.groups[self.first] == table.groups[self.second]
        matrix.sort(axis=1)
        self.candidates = self._among_nearest(matrix, CANDIDATES)
        self.near = np.flatnonzero(self._among_nearest(matrix, NEAREST))
        self.neighbors = neighbor_distances(self.vectors)
        queries = unit_rows(np.asarray(cached_vectors(encoder, table.queries), np.float32))
        self.to_queries = queries @ self.vectors[table.indexed].T
        self.answers = table.answers[:, None] == table.groups[table.indexed]
        self.hits = np.argsort(-self.to_queries, axis=1, kind="stable")[:, :HITS]

    def _among_nearest(self, ascending: np.ndarray, count: int) -> np.ndarray:
        """Whether one text of each pair is among the `count` nearest of the other: bool [P]."""
        least = ascending[:, -min(count, len(ascending) - 1)]
        return np.asarray(self.cosines >= np.minimum(least[self.first], least[self.second]))

    def places(self, pairs: np.ndarray) -> np.ndarray:
        """Return the places of pairs of rows, int64 [m, 2], the lower row first."""
        low, high = pairs.T
        return np.asarray(low * (2 * len(self.vectors) - low - 1) // 2 + high - low - 1)

    @cached_property
    def near_words(self) -> np.ndarray:
        """`compare_words` of the pairs `near`: float64 [c, w]."""
        ends = (self.first[self.near], self.second[self.near])
        return compare_words(*([self.table.texts[i] for i in rows.tolist()] for rows in ends))

    @cached_property
    def hit_words(self) -> np.ndarray:
        """`compare_words` of queries and `hits`: float64 [q, HITS, w]."""
        texts = [self.table.texts[row] for row in self.table.indexed[self.hits.ravel()].tolist()]
        queries = [query for query in self.table.queries for _ in range(self.hits.shape[1])]
        return compare_words(queries, texts).reshape(*self.hits.shape, -1)
