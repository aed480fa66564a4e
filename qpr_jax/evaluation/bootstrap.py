"""Scores of ranks, and how sure they are: a bootstrap over clusters."""

from __future__ import annotations

import zipfile
import zlib

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath

SCORE_NAMES = ("H@1", "H@10", "MRR")
RESAMPLES = 2000


class Scores:
    """Scores of all rows on a split with their bootstrap over clusters, the same draws for all.

    A row of several seeds counts with the mean of its seeds.
    """

    def __init__(
        self,
        rows: dict[str, list[dict[str, np.ndarray]]],
        split: str,
        over: str,
        *,
        search: str = "index",
    ) -> None:
        """Of `rows`, name -> the ranks of each seed; `over` is "pair" or "query".

        search: "exact", or "index", of rows that have one.
        """
        self.by_seed: dict[str, np.ndarray] = {}  # name -> [seeds, metrics]
        self.samples: dict[str, np.ndarray] = {}  # name -> [resamples, metrics]
        counts = None
        for name, seeds in rows.items():
            ranks = seeds[0]
            weights = (
                ranks[f"{split}_pairs"] if over == "pair" else np.ones(len(ranks[f"{split}_ids"]))
            )
            _, cluster = np.unique(ranks[f"{split}_clusters"], return_inverse=True)
            size = int(cluster.max()) + 1
            if counts is None:
                draws = np.random.default_rng(0).multinomial(
                    size, np.full(size, 1 / size), RESAMPLES
                )
                counts = draws.astype(np.float64)
            # [seeds, queries, metrics]
            values = np.stack([_values(one, split, search) for one in seeds])
            self.by_seed[name] = (values * weights[:, None]).sum(axis=1) / weights.sum()
            sums = np.zeros((size, len(SCORE_NAMES) + 1))
            weighted = np.column_stack([values.mean(axis=0), np.ones(len(weights))])
            np.add.at(sums, cluster, weighted * weights[:, None])
            drawn = counts @ sums
            self.samples[name] = drawn[:, :-1] / drawn[:, -1:]

    def mean(self, name: str) -> np.ndarray:
        """The row's scores, [metrics]."""
        return self.by_seed[name].mean(axis=0)

    def interval(self, name: str, minus: str | None = None) -> np.ndarray:
        """95 % interval of the row's scores, or of their difference to another's: [2, metrics]."""
        samples = self.samples[name] - (self.samples[minus] if minus else 0)
        return np.percentile(samples, [2.5, 97.5], axis=0)


def _values(ranks: dict[str, np.ndarray], split: str, search: str) -> np.ndarray:
    """H@1, H@10 and the reciprocal rank of each query, by exact search where there is no other."""
    rank = ranks.get(f"{split}_{search}", ranks[f"{split}_exact"]).astype(np.float64)
    found = rank > 0
    return np.stack(
        [rank == 1, found & (rank <= 10), np.where(found, 1 / np.maximum(rank, 1), 0)], axis=1
    )


def read_ranks(path: StrPath) -> dict[str, np.ndarray]:
    """The `ranks.npz` of a run; UserError where it is not one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path}: expected the ranks of a run, got {error}; remove the folder and make it anew"
        ) from error
