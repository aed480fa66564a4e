"""The pairs of a search, the score of each, and which of them count."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax import progress
from qpr_jax.duplicates.rows import Rows
from qpr_jax.errors import UserError
from qpr_jax.index.close_pairs import ClosePairs, Keep, Pairs, close_pairs
from qpr_jax.index.density import neighbor_distances
from qpr_jax.reranking.model import FittedModel, require_model
from qpr_jax.reranking.plain import logit_of, probability

THRESHOLD = 0.5  # where neither bound is given
LOWEST = 0.3  # pairs are looked for from this score on, so that a threshold can be lowered to it
_FARTHEST = 1e300  # a larger value is a mistake
_BLOCK = 1 << 17  # pairs whose texts are compared at once
_NEAR = 1e-9  # how much of a strength the distance is: it orders pairs of equal score


class Choice(NamedTuple):
    """Which pairs count: those with a least score and a largest squared distance; None: any."""

    threshold: float | None = THRESHOLD
    max_distance: float | None = None


def choose(threshold: float | None = None, max_distance: float | None = None) -> Choice:
    """Check the two bounds; THRESHOLD where neither is given."""
    expected = {
        "threshold": (threshold, "a score, 0 to 1", 1.0),
        "max_distance": (max_distance, "a squared distance of 0 or more", _FARTHEST),
    }
    for name, (value, what, most) in expected.items():
        if value is None:
            continue
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) <= most:
            raise UserError(f"expected {what}, got {value!r:.80}", setting=name)
    if threshold is None and max_distance is None:
        return Choice()
    return Choice(*(None if value is None else float(value) for value in (threshold, max_distance)))


class Scored(NamedTuple):
    """Pairs of entries, or of rows."""

    first: np.ndarray  # int64 [P]
    second: np.ndarray  # int64 [P]
    scores: np.ndarray  # float64 [P], NaN without a model of pairs
    distances: np.ndarray  # float32 [P], squared

    def where(self, which: np.ndarray | slice) -> Scored:
        """Those of a mask, of positions or of a slice."""
        return Scored(*(values[which] for values in self))


def at_no_distance(first: np.ndarray, second: np.ndarray, score: float) -> Scored:
    """Pairs of one score at distance 0."""
    return Scored(first, second, np.full(len(first), score), np.zeros(len(first), np.float32))


@dataclass(frozen=True)
class Scores:
    """What a search has found; see also `Duplicates`."""

    found: Scored  # of entries, from LOWEST on, most alike first
    pairs: Scored  # those that count
    choice: Choice
    max_distance: float  # the largest squared distance of a pair that was looked at
    model: FittedModel | None
    exact: bool
    missed: float

    def at_least(self, threshold: float | None, max_distance: float | None = None) -> Scores:
        """Count other pairs of those that were found."""
        choice = choose(threshold, max_distance)
        counts = np.ones(len(self.found.first), bool)
        if choice.threshold is not None:
            counts &= self.found.scores >= choice.threshold
        if choice.max_distance is not None:
            counts &= self.found.distances <= choice.max_distance
        facts = vars(self) | {"pairs": self.found.where(counts), "choice": choice}
        return Scores(**facts)


def find_pairs(
    rows: Rows,
    vectors: np.ndarray,
    model: FittedModel | None,
    choice: Choice,
    *,
    memory: int | None = None,
) -> Scores:
    """Find the pairs of entries that count as duplicates.

    vectors: float32 [E, d], of the entries. Other arguments are those of `find_duplicates`.
    """
    limit = np.inf if choice.max_distance is None else choice.max_distance
    lowest = None if choice.threshold is None else min(choice.threshold, LOWEST)
    spreads = model.spreads(neighbor_distances(vectors)) if model else np.zeros(len(vectors))

    def means(pairs: Pairs) -> np.ndarray:
        return np.asarray((spreads[pairs.first] + spreads[pairs.second]) / 2)

    keep: Keep | None = None
    if lowest is not None:
        scorer, least = require_model(model), logit_of(lowest)
        limit = min(limit, scorer.reach(lowest, spreads))
        keep = lambda pairs: scorer.without_guards(pairs.distances, means(pairs)) >= least  # noqa: E731
    close = _search(rows, vectors, limit, keep, memory)
    differs = rows.folded[close.pairs.first] != rows.folded[close.pairs.second]
    close = close._replace(pairs=close.pairs.where(differs))  # equal ones are copies
    first, second, distances = close.pairs
    scores = np.full(len(first), np.nan)
    if model:
        with progress.bar("scoring"):
            for start in range(0, len(first), _BLOCK):
                part = close.pairs.where(slice(start, start + _BLOCK))
                order = np.argsort(part.first, kind="stable")  # so that a text is read once
                part = part.where(order)
                one, other = ([rows.entry_texts[i] for i in ends.tolist()] for ends in part[:2])
                logits = model.logits(one, other, part.distances, means(part))
                scores[start + order] = probability(logits)
    if lowest is not None:
        kept = scores >= lowest
        first, second, distances, scores = (v[kept] for v in (first, second, distances, scores))
    copies = copies_across(rows, certain=model is not None)
    both = zip(copies, Scored(first, second, scores, distances), strict=True)
    found = _strongest_first(Scored(*map(np.concatenate, both)))
    farthest = float(limit) if np.isfinite(limit) else float(distances.max(initial=0))
    whole = Scores(found, found, choice, farthest, model, close.exact, close.missed)
    return whole.at_least(*choice)


def _search(
    rows: Rows, vectors: np.ndarray, limit: float, keep: Keep | None, memory: int | None
) -> ClosePairs:
    """Find close pairs of entries that may be duplicates.

    Two texts with numbers are compared if these are the same. Where all are compared, texts of each
    key of numbers are a block, and texts without numbers are compared with the others.
    """
    options: dict[str, Any] = {"keep": keep, "memory": memory}
    if rows.compare != "all":
        found = close_pairs(
            vectors, limit, blocks=rows.names, is_new=rows.is_new, compare=rows.compare, **options
        )
        first, second, _ = found.pairs
        keys, bare = rows.numbers, rows.numbers == 0
        same = (keys[first] == keys[second]) | bare[first] | bare[second]
        return found._replace(pairs=found.pairs.where(same))
    alike = close_pairs(vectors, limit, blocks=rows.blocks, **options)
    if not rows.numbers.any():
        return alike
    mixed = close_pairs(
        vectors, limit, blocks=rows.names, is_new=rows.numbers > 0, compare="across", **options
    )
    pairs = Pairs(*map(np.concatenate, zip(alike.pairs, mixed.pairs, strict=True)))
    exact, missed = alike.exact and mixed.exact, max(alike.missed, mixed.missed)
    return ClosePairs(pairs, exact, missed)


def copies_across(rows: Rows, *, certain: bool) -> Scored:
    """The pairs of a new entry and an old one of the same text."""
    new, old = np.flatnonzero(rows.is_new), np.flatnonzero(~rows.is_new)
    _, one, other = np.intersect1d(rows.folded[new], rows.folded[old], return_indices=True)
    if not rows.apart:
        one = other = one[:0]
    return at_no_distance(new[one], old[other], 1.0 if certain else np.nan)


def _strongest_first(pairs: Scored) -> Scored:
    """By score, then by distance; of equal ones, the first entries first."""
    distances = pairs.distances.astype(np.float64)
    near = _NEAR * distances / (1 + distances)
    strength = np.where(np.isnan(pairs.scores), -distances, pairs.scores - near)
    return pairs.where(np.lexsort((pairs.second, pairs.first, -strength)))
