"""The plain model of pairs: distance, density and guards; no labels of the user are needed.

Its weights serve any encoder: they are those of ten labeled tables of unlike kinds, rounded
(`experiments.transfer`). Of two texts with the
squared distance d, u = d / (2 scale) is 1 - cosine where vectors have length 1. What is near
depends on the table: r = (log v + log v') / 2 - log u, where v is the mean u of each text and its
second to sixth nearest texts, less where the text is near the mean of all. It is CSLS (Conneau et
al. 2018) with the logarithms of distances. A hit of a search is scored by u and guards alone.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.resources
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np

from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_manifest, write_folder
from qpr_jax.index.close_pairs import EXACT, index_of_lists
from qpr_jax.pair_model.guards import GUARDS, compare_words
from qpr_jax.running import progress

FORMAT = "qpr_jax pair model 1"
DEPTH = 20  # hits of a search
SURE = 0.999  # the largest score of texts that are not copies
_ROWS = 25  # of a table, that weigh as much as AROUND
LEAST = 0.002  # the least u or v whose logarithm is taken
_FIRST, _LAST = 2, 6  # the nearest texts that count; the first may be a duplicate
_CHUNK = 4096  # texts whose nearest are searched at once
_PROBES = 8  # lists that are searched
GUARDED = 0.08  # the least u of texts with a guard
# Weights of GUARDS and of common words. Most turn down any pair. Of hits, more lowers the first
# hit, or "has an answer", of some table.
OF_PAIRS = (-0.3, -8.0, -8.0, -9.0, -8.0, -8.0, -1.0, -0.8)
OF_HITS = (0.0, -0.5, -1.2, -1.2, -0.5, -1.2, 0.0, 0.0)
PAIRS, HITS = (3.5, 3.5, *OF_PAIRS, -2.2), (6.0, *OF_HITS, -4.6)
AROUND = 0.5  # the v of a text of a table without others: about the median of tables
_SOME = 128  # texts that tell the scale of an encoder


@dataclass(frozen=True)
class PlainModel:
    """Logistic regression on distance, density and words.

    Attributes:
      encoder: the fingerprint of the encoder.
      pairs: weights of 1 - u, r and the columns of `compare_words`, then the bias, for pairs of a
        table.
      hits: the same without r, for hits of a search.
      scale: half of the squared distance of two unrelated texts.
      precisions: for thresholds, as "0.5", the least and the largest precision of the pairs of
        tables that were left out of the fit.
      settings: facts of the fit.
    """

    encoder: str
    pairs: tuple[float, ...]
    hits: tuple[float, ...]
    scale: float = 1.0
    precisions: dict[str, tuple[float, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """How many hits of a search it orders."""
        return DEPTH

    def spreads(self, neighbor_distances: np.ndarray) -> np.ndarray:
        """Compute log v of the n texts of a table, float64 [n], from `neighbor_distances`.

        Of few texts v is drawn to AROUND; NaN becomes it.
        """
        share = len(neighbor_distances) / (len(neighbor_distances) + _ROWS)
        means = np.where(np.isnan(neighbor_distances), AROUND, self._u(neighbor_distances))
        return np.log(np.maximum(share * means + (1 - share) * AROUND, LEAST))

    def logits(
        self,
        first: Sequence[str],
        second: Sequence[str],
        distances: np.ndarray,
        spreads: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the logits of pairs of texts, float64 [m].

        Args:
          first, second: the texts, m each.
          distances: of their vectors, squared, [m].
          spreads: of pairs of a table: the mean of the spreads of both; None: hits of a search.
        """
        return self.with_words(compare_words(first, second), distances, spreads)

    def with_words(
        self, found: np.ndarray, distances: np.ndarray, spreads: np.ndarray | None
    ) -> np.ndarray:
        """Compute `logits` from the `compare_words` of the pairs, which only lower them.

        Texts with a guard count as no nearer than GUARDED, so that the guard outweighs the rest.
        """
        weights = self.hits[1:-1] if spreads is None else self.pairs[2:-1]
        least = np.where(found[:, :-1].any(axis=1), 2 * self.scale * GUARDED, 0)
        return self.without_words(np.maximum(distances, least), spreads) + found @ weights

    def without_words(self, distances: np.ndarray, spreads: np.ndarray | None) -> np.ndarray:
        """Compute the logits of pairs of unlike words, float64 [m]; arguments as of `logits`."""
        u = self._u(distances)
        if spreads is None:
            return np.asarray(self.hits[0] * (1 - u) + self.hits[-1])
        s, r, *_, bias = self.pairs
        return np.asarray(s * (1 - u) + r * ratios(u, spreads) + bias)

    def reach(self, threshold: float, spreads: np.ndarray) -> float:
        """Return the largest squared distance at which two texts may have this score."""
        if not len(spreads):
            return 0.0
        distances = self.scale * np.linspace(0, 8, 80_001)
        largest = np.full(len(distances), spreads.max())
        logits = self.without_words(distances, largest)
        return float(distances[logits >= logit_of(threshold)].max(initial=0.0))

    def _u(self, distances: np.ndarray) -> np.ndarray:
        return np.asarray(distances, np.float64) / (2 * self.scale)


def general_model(encoder: Encoder) -> PlainModel:
    """Make the model of an encoder that has none of its own.

    Its scale is the variance of the vectors of some texts of the package.
    """
    table = importlib.resources.files("qpr_jax.data").joinpath("sample_files", "questions.csv")
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    vectors = encoder.encode([row["question"] for row in itertools.islice(rows, _SOME)])
    scale = max(float(((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1).mean()), LEAST)
    return PlainModel(encoder.fingerprint, PAIRS, HITS, scale=scale)


def neighbor_distances(vectors: np.ndarray) -> np.ndarray:
    """Return how far the neighbors of each text are, float64 [n].

    It is the mean squared distance to its second to sixth nearest texts, times its distance from
    the mean of the table, as a share of the root mean square of these: what is near the mean is
    near to many. NaN where there are fewer than three texts. Above 50,000 texts the nearest are
    those of a few lists.

    vectors: float32 [n, d], of distinct texts.
    """
    count, dimension = vectors.shape
    nearest = min(_LAST + 1, count)  # itself included
    means = np.full(count, np.nan)
    if nearest <= _FIRST:
        return means
    index = faiss.IndexFlatL2(dimension)
    if count > EXACT:
        index = index_of_lists(np.arange(count), vectors.__getitem__)
        index.nprobe = _PROBES
    index.add(vectors)
    center, apart = vectors.mean(axis=0, dtype=np.float64), np.empty(count)
    with progress("density", count) as show:
        for start in range(0, count, _CHUNK):
            part = vectors[start : start + _CHUNK]
            apart[start : start + len(part)] = ((part - center) ** 2).sum(axis=1)
            distances, rows = index.search(part, nearest)
            distances = np.where(rows >= 0, np.maximum(distances, 0), np.nan).astype(np.float64)
            texts = np.arange(start, start + len(distances))[:, None]
            itself = rows == texts
            itself[~itself.any(axis=1), -1] = True  # behind texts with an equal vector
            others = distances[~itself].reshape(len(distances), nearest - 1)
            with np.errstate(invalid="ignore"):
                means[texts[:, 0]] = np.nanmean(others[:, _FIRST - 1 :], axis=1)
            show(start + len(distances), "")
    return means * np.sqrt(apart / max(apart.mean(), LEAST))


def ratios(u: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Compute r of pairs, float64 [m], from their u and their mean spreads."""
    return np.asarray(spreads - np.log(np.maximum(u, LEAST)))


def logit_of(score: float) -> float:
    """Return the logit of a score, a finite number."""
    return float(np.log(max(score, 1e-9) / max(1 - score, 1e-9)))


def probability(logits: np.ndarray) -> np.ndarray:
    """Convert logits to scores, at most SURE, rounded to six digits."""
    return np.minimum(1 / (1 + np.exp(-np.clip(logits, -500, 500))), SURE).round(6)


def save_plain(folder: StrPath, model: PlainModel) -> None:
    """Write a model; replaces the folder as a whole."""
    write_folder(folder, {}, format=FORMAT, **dataclasses.asdict(model))


def read_plain(folder: StrPath) -> PlainModel:
    """Read and verify a model; UserError if it is damaged or of another version."""
    manifest = read_manifest(folder, format=FORMAT)
    names = [each.name for each in dataclasses.fields(PlainModel)]
    try:
        found = PlainModel(**{name: manifest[name] for name in names})
        found = dataclasses.replace(found, pairs=tuple(found.pairs), hits=tuple(found.hits))
        weights = np.array([*found.pairs, *found.hits, found.scale], float)
        fits = (len(found.pairs), len(found.hits)) == (4 + len(GUARDS), 3 + len(GUARDS))
        fits = fits and bool(np.isfinite(weights).all()) and min(found.pairs[:2]) >= 0
        fits = fits and max(found.pairs[2:-1]) <= 0 < min(sum(found.pairs[:2]), found.scale)
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        what = f"{folder}: expected the weights of a model of pairs"
        raise UserError(what, remedy="fit it again, or fetch the encoder again")
    return found
