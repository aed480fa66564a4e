"""Which pairs a person should judge, and what the labels say about every threshold.

Pairs are cut into strata by their probability. First each band of SWEPT gets EACH labels. Then a
label is asked where it lowers the variance of the precision most (Neyman's allocation, for
thresholds that are plausible after the labels so far). In a stratum the order is random. The
precision at a threshold is the difference estimator: the mean of the probabilities, plus, stratum
by stratum, the mean of label minus probability. So it needs no calibrated probabilities; poor ones
only cost labels. They are fitted to the labels first (shift and scale of their logits, averaged
over a grid), which fills strata without a label; the mean of label minus fitted probability is
drawn towards 0 where a band has few.

Of queries that nobody labeled, a random sample is judged by its first hits.

Where duplicates are found again, `apply_labels` lets the labels decide, whatever the score.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.data.tables import Table
from qpr_jax.duplicates.output import INFO, Pair, write_tables
from qpr_jax.duplicates.pairs import SWEPT
from qpr_jax.duplicates.rows import Rows
from qpr_jax.errors import UserError, counted
from qpr_jax.evaluation.scores import wilson
from qpr_jax.files import StrPath, write_json
from qpr_jax.index.close_pairs import Pairs, pair_distances
from qpr_jax.pair_model.hits import text_of
from qpr_jax.results import TableColumns
from qpr_jax.retriever import Retriever
from qpr_jax.text.cleaning import folded

log = logging.getLogger("qpr_jax")

QUANTILE = 1.6448536269514722  # of the normal distribution, for intervals of 90 %
BEST_F1 = math.inf  # a precision that no threshold has
EACH = 10  # labels of each band that are asked first
_RATIO = 0.85  # of what is left below the top of a stratum
_STRATA = 50  # at most
_LEAST = 1e-4  # probabilities are cut off here and at 1 - _LEAST
_FLOOR = 0.02  # added to a variance where strata are cut: no probability is trusted more
_TRUST = 25  # labels of a band that count as much as the fit to all
# Shifts and scales of the logits, float64 [G, 1], and the logarithms of their prior, [G].
_GRID = np.meshgrid(np.linspace(-4, 4, 33), np.linspace(-1.4, 1.4, 15), indexing="ij")
_SHIFTS, _SCALES = _GRID[0].reshape(-1, 1), np.exp(_GRID[1].reshape(-1, 1))
_PRIOR = (-0.5 * (_GRID[0] / 1.5) ** 2 - 0.5 * (_GRID[1] / 0.7) ** 2).ravel()


@dataclass(frozen=True)
class Strata:
    """Found pairs by probability in H strata, the most probable first."""

    lowest: np.ndarray  # float64 [H], the least probability; equal ones share a stratum
    sizes: np.ndarray  # float64 [H], pairs of a stratum
    table: np.ndarray  # float64 [G, H], probability for each shift and scale of the logits

    def of(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the stratum of each pair, int64 [P]."""
        return np.searchsorted(-self.lowest, -np.asarray(probabilities, np.float64))


@dataclass(frozen=True)
class Estimate:
    """What labels say of the pairs from a threshold on."""

    threshold: float  # the least probability of an accepted pair
    precision: float  # estimated share of duplicates among accepted pairs
    low: float  # low and high: its interval of 90 %
    high: float
    pairs: int  # accepted ones
    labels: int  # what this rests on, those of pairs below the threshold included
    share: float = 1.0  # of the duplicates among all found pairs, those that are accepted


def make_strata(probabilities: np.ndarray) -> Strata:
    """Cut pairs into strata by probability, float64 [P], P > 0, in any order; also at SWEPT."""
    values, counts = np.unique(-np.asarray(probabilities, np.float64), return_counts=True)
    means = np.clip(-values, _LEAST, 1 - _LEAST)
    spread = counts * np.sqrt(means * (1 - means) + _FLOOR)
    above = np.cumsum(spread) - spread / 2  # of the middle of equal probabilities
    level = np.floor(np.log(above / spread.sum()) / math.log(_RATIO))
    cuts = -np.minimum(level, _STRATA - 1) - np.searchsorted(SWEPT, -values, side="right")
    _, stratum = np.unique(cuts, return_inverse=True)
    sizes = np.bincount(stratum, counts)
    logits = np.bincount(stratum, counts * np.log(means / (1 - means))) / sizes
    lowest = -values[np.flatnonzero(np.diff(stratum, append=-1))]
    return Strata(lowest, sizes, 0.5 + 0.5 * np.tanh((_SHIFTS + _SCALES * logits) / 2))


def rank_strata(strata: Strata, yes: np.ndarray, no: np.ndarray, precision: float) -> np.ndarray:
    """Return all strata, int64 [H], in the order in which a label in them helps.

    Args:
      yes: int [H], labels so far that pairs are duplicates.
      no: int [H], labels that they are none.
      precision: the precision that a threshold is sought for.
    """
    counts, sizes, table = yes + no, strata.sizes, strata.table
    weights = _posterior(strata, yes, no)
    precisions = np.cumsum(sizes * table, axis=1) / np.cumsum(sizes)
    last = _last_accepted(precisions, sizes, precision)  # [G]
    inside = np.arange(len(sizes)) <= last[:, None]
    share = weights @ (inside * (sizes / np.cumsum(sizes)[last][:, None]) ** 2)
    variance = _variance(weights @ table, yes, counts)
    band = np.searchsorted(SWEPT, strata.lowest, side="right")
    waits = counts < sizes
    first = waits & (np.bincount(band, counts)[band] < EACH)
    gain = np.where(first, sizes**2, share) * variance / ((counts + 0.3) * (counts + 1.3))
    return np.lexsort((-gain, ~waits, ~first))


def _last_accepted(precisions: np.ndarray, sizes: np.ndarray, least: float) -> np.ndarray:
    """Return the last stratum of the lowest threshold with a precision, int64 [...].

    That of the best F1 where no threshold has it.

    precisions: float64 [..., H], of the pairs of each stratum and those above it.
    """
    accepted, precise = np.cumsum(sizes), precisions >= least
    right = precisions * accepted
    lowest = len(sizes) - 1 - np.argmax(precise[..., ::-1], axis=-1)
    best = np.argmax(right / (accepted + right[..., -1:]), axis=-1)
    return np.where(precise.any(axis=-1), lowest, best)


def precision_at(strata: Strata, yes: np.ndarray, no: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the precision of the pairs of each stratum and those above it, and its standard error.

    Returns:
      float64 [H] each; arguments are those of `rank_strata`.
    """
    counts, sizes, table = yes + no, strata.sizes, strata.table
    weights = _posterior(strata, yes, no)
    fitted, left = weights @ table, 1 - np.minimum(counts / sizes, 1)
    # A band whose few labels are favorable would be let in by them, so they count less.
    band = np.searchsorted(SWEPT, strata.lowest, side="right")
    over, judged, there = (np.bincount(band, x) for x in (yes - counts * fitted, counts, sizes))
    residual = (over / np.maximum(judged + _TRUST * (1 - judged / np.maximum(there, 1)), 1))[band]
    unjudged = np.maximum(sizes - counts, 0)
    right = np.cumsum(yes + unjudged * np.clip(fitted + residual, 0, 1))
    errors = sizes**2 * left * _variance(fitted, yes, counts) / np.maximum(counts, 1)
    # Strata without a label are as uncertain as the fit is.
    unseen = np.cumsum(np.where(counts > 0, 0, sizes) * table, axis=1)
    spread = np.maximum(weights @ unseen**2 - (weights @ unseen) ** 2, 0)
    accepted = np.cumsum(sizes)
    variance = np.cumsum(np.where(counts > 0, errors, 0)) + spread
    return right / accepted, np.sqrt(variance) / accepted


def choose_threshold(strata: Strata, yes: np.ndarray, no: np.ndarray, precision: float) -> Estimate:
    """Estimate at the lowest threshold, of a stratum, with a precision; else at the best F1.

    At least EACH of the pairs from it on have labels, or all: the fit alone recommends none.
    """
    precisions, _ = precision_at(strata, yes, no)
    few = np.cumsum(yes + no) < np.minimum(EACH, np.cumsum(strata.sizes))
    few[-1] = False  # all pairs
    last = _last_accepted(np.where(few, 0, precisions), strata.sizes, precision)
    return estimate_at(strata, yes, no, int(last))


def threshold_of(values: np.ndarray, estimate: Estimate) -> float:
    """Return the shortest decimal that accepts just the pairs of an estimate.

    values: float64 [P], scores, or minus distances, the best first. The decimal has no sign.
    """
    last = float(values[estimate.pairs - 1])
    beyond = float(np.append(values, -math.inf)[estimate.pairs])
    rounded = (round(last, digits) for digits in range(1, 17))
    return abs(next((value for value in rounded if beyond < value <= last), last))


def estimate_at(strata: Strata, yes: np.ndarray, no: np.ndarray, last: int) -> Estimate:
    """Estimate the precision of the pairs of all strata up to `last`; arguments as before."""
    estimates, errors = precision_at(strata, yes, no)
    right = estimates * np.cumsum(strata.sizes)
    value, error = float(estimates[last]), QUANTILE * float(errors[last])
    return Estimate(
        threshold=float(strata.lowest[last]),
        precision=value,
        low=max(0.0, value - error),
        high=min(1.0, value + error),
        pairs=int(strata.sizes[: last + 1].sum()),
        labels=int((yes + no).sum()),
        share=float(right[last] / max(right[-1], 1e-9)),
    )


def share_of_right(yes: int, no: int, copies: int, pairs: int) -> Estimate:
    """Estimate the share of right pairs by labels on a random part of them.

    The interval is Wilson's, of the share among all pairs that could be drawn.

    Args:
      yes, no: labels on `pairs` pairs.
      copies: further pairs, which are right without a label.
      pairs: pairs that need a label.
    """
    judged = yes + no
    share = (copies + pairs * yes / judged) / (copies + pairs)
    count = judged * (copies + pairs) / pairs  # a label stands for its part of the copies, too
    low, high = wilson(share, count, QUANTILE)
    return Estimate(0.0, share, low, high, copies + pairs, judged)


def _posterior(strata: Strata, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    """Return the weight of each shift and scale of the logits after the labels, float64 [G]."""
    table = np.clip(strata.table, 1e-9, 1 - 1e-9)
    likelihood = np.log(table) @ yes + np.log1p(-table) @ no + _PRIOR
    weights = np.exp(likelihood - likelihood.max())
    return weights / weights.sum()


def _variance(fitted: np.ndarray, yes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Variance of a label in each stratum, float64 [H]; nowhere 0, however sure the fit is."""
    mean = (yes + 2 * fitted + 0.3) / (counts + 2.6)
    return mean * (1 - mean)


def write_first_hits(
    folder: StrPath, retriever: Retriever, queries: Table, count: int, *, index: str = ""
) -> None:
    """Search for a random sample of queries, and write each with its first hit, as `pairs.csv`.

    `id1` is the line of the query, `id2` the id of the hit; the payload of the hit has columns of
    its own. UserError if there are no queries. index: its place, noted in info.json.
    """
    line_of = {entry.question: entry.line for entry in reversed(queries.entries)}
    texts = [*line_of]
    if not texts:
        raise UserError(f"{queries.where.removesuffix(', line')}: expected queries, got none")
    chosen = np.random.default_rng(0).permutation(len(texts))[:count]
    texts = sorted((texts[i] for i in chosen.tolist()), key=line_of.__getitem__)
    hits = [found[0] for found in retriever.search(texts, k=1)]
    names = dict.fromkeys(name for hit in hits for name in hit.payload or ())
    payload = [name for name in names if name not in Pair._fields]
    columns: dict[str, list[Any]] = {
        "id1": [line_of[text] for text in texts],
        "id2": [hit.id for hit in hits],
        "score": [hit.score for hit in hits],
        "distance": [max(0.0, hit.distance) for hit in hits],
        "question1": texts,
        "question2": [*map(text_of, hits)],
    }
    columns |= {name: [(hit.payload or {}).get(name) for hit in hits] for name in payload}
    write_tables(pathlib.Path(folder), {"pairs": TableColumns(columns, columns)}, "csv")
    info: dict[str, Any] = {"first_hits": True, "index": index, "encoder": retriever.encoder_name}
    info |= {"queries": len(line_of), "sample": len(texts), "id_column": "id2"}
    info |= {"payload": payload, "files": ["pairs.csv"]}
    write_json(pathlib.Path(folder, INFO), info)


def apply_labels(
    path: StrPath, rows: Rows, vectors: np.ndarray, pairs: Pairs, scores: np.ndarray
) -> tuple[Pairs, np.ndarray]:
    """Remove pairs labeled 0; set the score of pairs labeled 1 to 1.

    A pair labeled 1 that was not found is added, if its rows may be compared. A warning counts the
    labels on texts that no row has. path: a file of labels, as of `read_question_pairs`, which
    raises UserError.
    """
    count, labels = len(vectors), dict(_read_labels(path, rows))
    same = np.array([key for key, label in labels.items() if label], np.int64)
    other = np.array([key for key, label in labels.items() if not label], np.int64)
    keys = pairs.first * count + pairs.second
    kept = ~np.isin(keys, other)
    first, second = np.divmod(np.setdiff1d(same, keys), count)
    added = Pairs(first, second, pair_distances(vectors, first, second))
    joined = Pairs(*map(np.concatenate, zip(added, pairs.where(kept), strict=True)))
    scores = np.where(np.isin(keys, same), 1.0, scores)[kept]
    return joined, np.concatenate([np.ones(len(first)), scores])


def _read_labels(path: StrPath, rows: Rows) -> Iterator[tuple[int, bool]]:
    """Yield the labeled pairs of entries, as `smaller * E + greater`, and their labels."""
    data, entries = read_question_pairs(path, weighted=True), collections.defaultdict(set)
    for question, entry in zip(rows.questions, rows.entries.tolist(), strict=True):
        entries[folded(question.text)].add(entry)
    ends, unknown = [entries[folded(text)] for text in data.questions], 0
    for (one, other), label in zip(data.pairs.tolist(), data.is_duplicate.tolist(), strict=True):
        unknown += not (ends[one] and ends[other])
        for first, second in map(sorted, itertools.product(ends[one], ends[other])):
            if first != second and _compared(rows, first, second):
                yield first * len(rows.entry_texts) + second, label
    if unknown:
        log.warning("%s: %s on texts that no row has", path, counted(unknown, "label"))


def _compared(rows: Rows, first: int, second: int) -> bool:
    """Return whether a search compares two entries: not rows of other blocks, or two old ones."""
    new = int(rows.is_new[first]) + int(rows.is_new[second])
    least, most = {"all": (0, 2), "new": (1, 2), "across": (1, 1)}[rows.compare]
    return rows.names[first] == rows.names[second] and least <= new <= most
