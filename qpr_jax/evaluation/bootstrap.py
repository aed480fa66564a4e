"""Scores from the ranks of runs, with confidence intervals by a bootstrap over clusters."""

from __future__ import annotations

import functools
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, write_atomically

SCORE_NAMES = ("H@1", "H@10", "MRR")
RESAMPLES = 2000


class Scores:
    """Scores of several trials on a split, with bootstrap samples of them over clusters.

    All trials use the same resamples, so differences between trials have intervals too. A trial
    with several seeds counts with the mean of its seeds.
    """

    def __init__(
        self, rows: dict[str, list[dict[str, np.ndarray]]], split: str, over: str, *, search: str
    ) -> None:
        """Compute the scores and their samples.

        Args:
          rows: trial name -> the ranks (`read_ranks`) of each seed.
          over: "pair" or "query", what a mean is taken over.
          search: "exact", or "index" where the trial has an index.
        """
        self.by_seed: dict[str, np.ndarray] = {}  # name -> [seeds, SCORE_NAMES]
        self.samples: dict[str, np.ndarray] = {}  # name -> [RESAMPLES, SCORE_NAMES]
        for name, seeds in rows.items():
            ranks = seeds[0]
            clusters = ranks[f"{split}_clusters"]
            weights = ranks[f"{split}_pairs"] if over == "pair" else np.ones(len(clusters))
            # [seeds, queries, SCORE_NAMES]
            values = np.stack([_query_scores(one, split, search) for one in seeds])
            self.by_seed[name] = (values * weights[:, None]).sum(axis=1) / weights.sum()
            self.samples[name] = _resampled_means(values.mean(axis=0), weights, clusters)

    def mean(self, name: str) -> np.ndarray:
        """Return the scores of a trial, in the order of `SCORE_NAMES`."""
        return self.by_seed[name].mean(axis=0)

    def interval(self, name: str, minus: str | None = None) -> np.ndarray:
        """95 % intervals [2, SCORE_NAMES] of a trial's scores, or of those less another trial's."""
        samples = self.samples[name] - (self.samples[minus] if minus else 0)
        return np.percentile(samples, [2.5, 97.5], axis=0)


def mean_interval(
    values: np.ndarray, clusters: np.ndarray, repeats: np.ndarray | None = None
) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values, by resamples of clusters.

    Args:
      values: [n], of queries; or differences of two systems.
      clusters: int [n], equal where queries depend on each other.
      repeats: [n], how often each value counts; None: once.
    """
    weights = np.ones(len(values)) if repeats is None else repeats
    means = _resampled_means(values[:, None], weights, clusters)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@functools.lru_cache(maxsize=2)
def _draws(clusters: int) -> np.ndarray:
    """How often each of the clusters is in each resample, float64 [RESAMPLES, clusters]."""
    shares = np.full(clusters, 1 / clusters)
    drawn = np.random.default_rng(0).multinomial(clusters, shares, RESAMPLES)
    return drawn.astype(np.float64)


def _resampled_means(values: np.ndarray, weights: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Means of values [n, S] with weights [n] in each resample of clusters [n]: [RESAMPLES, S]."""
    _, cluster = np.unique(clusters, return_inverse=True)
    sums = np.zeros((int(cluster.max()) + 1, values.shape[1] + 1))
    np.add.at(sums, cluster, np.column_stack([values, np.ones(len(values))]) * weights[:, None])
    totals = _draws(len(sums)) @ sums
    return np.asarray(totals[:, :-1] / totals[:, -1:])


def _query_scores(ranks: dict[str, np.ndarray], split: str, search: str) -> np.ndarray:
    """H@1, H@10 and the reciprocal rank of each query, by exact search if `search` has no ranks."""
    rank = ranks.get(f"{split}_{search}", ranks[f"{split}_exact"]).astype(np.float64)
    found = rank > 0
    return np.stack(
        [rank == 1, found & (rank <= 10), np.where(found, 1 / np.maximum(rank, 1), 0)], axis=1
    )


def write_ranks(path: StrPath, ranks: Mapping[str, np.ndarray]) -> None:
    """Write the `ranks.npz` of a run, atomically."""
    with write_atomically(path) as file:
        np.savez_compressed(file, allow_pickle=False, **ranks)


def read_ranks(path: StrPath) -> dict[str, np.ndarray]:
    """Read the `ranks.npz` of a run."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error) as error:
        got = error.strerror if isinstance(error, OSError) else "no whole .npz file"
        raise UserError(
            f"{path}: expected the ranks of a run, got {got}",
            remedy="remove the folder and run it again",
        ) from error
