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


def rank_scores(
    ranks: Mapping[str, np.ndarray], split: str, search: str, over: str, *, minus: str = ""
) -> np.ndarray:
    """Return the mean, and the ends of its 95 % interval, of SCORE_NAMES: float64 [3, scores].

    Args:
      ranks: those of a run, see `read_ranks`.
      search: whose ranks are scored, such as "exact" or "index".
      over: "pair" or "query", what a mean is taken over.
      minus: score the difference to this search.
    """
    clusters = ranks[f"{split}_clusters"]
    weights = ranks[f"{split}_pairs"] if over == "pair" else np.ones(len(clusters))
    values = _query_scores(ranks[f"{split}_{search}"])
    if minus:
        values -= _query_scores(ranks[f"{split}_{minus}"])
    ends = np.percentile(_resampled_means(values, weights, clusters), [2.5, 97.5], axis=0)
    return np.stack([np.average(values, axis=0, weights=weights), *ends])


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


def _query_scores(ranks: np.ndarray) -> np.ndarray:
    """SCORE_NAMES of each query from the rank of its first relevant question, 0 for none."""
    rank = ranks.astype(np.float64)
    rank[rank == 0] = np.inf
    return np.stack([rank == 1, rank <= 10, 1 / rank], axis=1).astype(np.float64)


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
