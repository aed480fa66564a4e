"""Groups of duplicates from pairs of them: three linkages, the same whatever the order of pairs.

closure    joins what any chain of pairs links
bridges    joins two groups where half of the pairs between them were found, so that a few pairs
           between two large groups, a weak bridge, join nothing
complete   joins two groups where all pairs between them were found

All take pairs by falling strength, ties by the numbers of their entries, as single linkage does: a
pair joins the groups of its two entries unless the linkage refuses. Each group that was joined is a
tree of such pairs, the last of which is its weakest link.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.duplicates.linkage import join_all, join_by_share
from qpr_jax.errors import UserError

log = logging.getLogger("qpr_jax")

Linkage = Literal["closure", "bridges", "complete"]
# The least share of the pairs between two groups that joins them; any pair does where 0.
SHARES = {"closure": 0.0, "bridges": 0.5, "complete": 1.0}
DEFAULT: Linkage = "complete"
PAIR_BYTES = 200  # in memory, of a pair of a component that is not joined by closure
_LEAST = 1 << 16  # pairs that are sorted at once, at least


class Links(NamedTuple):
    """Pairs of entries, `first` and `second` int64 [P], and how strong they are, float64 [P]."""

    first: np.ndarray
    second: np.ndarray
    strength: np.ndarray


class Groups(NamedTuple):
    """The groups of some entries.

    Attributes:
      labels: int64 [N], the group of each entry, numbered by first appearance; -1 for none.
      weakest: int64 [G, 2], the pair of entries that joined a group last.
      strength: float64 [G], of these pairs.
    """

    labels: np.ndarray
    weakest: np.ndarray
    strength: np.ndarray


Parts = Callable[[], Iterable[Links]]  # the same pairs at each call, in any parts


def group_pairs(
    count: int, parts: Parts, linkage: Linkage = DEFAULT, *, memory: int = 1 << 30
) -> Groups:
    """Group `count` entries by the pairs of them that were found.

    Closure holds about 100 bytes an entry, for any number of pairs. The others add PAIR_BYTES for
    each pair of the largest component; components that fit in `memory` together are joined
    together, and the pairs are read once for each such set. Of a component that does not fit alone,
    only the strongest pairs that do are taken, as with a higher threshold, and a warning says so.
    """
    share = share_of(linkage)
    forest = _forest(count, parts())
    if share and len(forest.first):
        components = _components(count, forest)
        forest = _joined([*_linked_forests(count, parts, components, share, memory)])
    return _as_groups(count, forest)


def share_of(linkage: str) -> float:
    """The share of SHARES; UserError for any other word."""
    if linkage not in SHARES:
        raise UserError(f"expected one of {', '.join(SHARES)}, got {linkage!r}", setting="groups")
    return SHARES[linkage]


def _forest(count: int, parts: Iterable[Links]) -> Links:
    """The pairs that join groups by closure, strongest first: at most one less than entries."""
    forest, waiting, size = _none(), list[Links](), 0
    for part in parts:
        waiting.append(part)
        size += len(part.first)
        if size >= max(count, _LEAST):
            forest, waiting, size = _spanning(count, [forest, *waiting]), [], 0
    return _spanning(count, [forest, *waiting])


def _spanning(count: int, parts: list[Links]) -> Links:
    """Those of the pairs, strongest first, that join groups which no stronger ones join."""
    links = _strongest_first(parts)
    return _some(links, join_all(count, links.first, links.second))


def _linked_forests(
    count: int, parts: Parts, components: np.ndarray, share: float, memory: int
) -> Iterator[Links]:
    """The pairs that join groups of some components by a share, for sets that fit in memory."""
    sizes = np.zeros(int(components.max()) + 1, np.int64)
    for part in parts():
        sizes += np.bincount(components[part.first], minlength=len(sizes))
    most = max(1, memory // PAIR_BYTES)
    left_out = int(np.maximum(sizes - most, 0).sum())
    if left_out:
        text = "the %s weakest of %s pairs join no groups: more memory takes them, or fewer pairs"
        log.warning(text, f"{left_out:,}", f"{sizes.sum():,}")
    turns = _turns(np.minimum(sizes, most), most)
    for turn in range(int(turns.max()) + 1):
        chosen = (_some(part, turns[components[part.first]] == turn) for part in parts())
        links = _strongest(chosen, most)
        yield _some(links, join_by_share(count, links.first, links.second, share))


def _strongest(parts: Iterable[Links], most: int) -> Links:
    """The `most` strongest pairs, strongest first; holds twice as many."""
    waiting, size = list[Links](), 0
    for part in parts:
        waiting.append(part)
        size += len(part.first)
        if size > 2 * most:
            waiting, size = [_some(_strongest_first(waiting), slice(most))], most
    return _some(_strongest_first(waiting), slice(most))


def _turns(sizes: np.ndarray, most: int) -> np.ndarray:
    """Divide sizes int64 [n] in their order into runs, each of at most `most`: int64 [n]."""
    turns, turn, held = np.zeros(len(sizes), np.int64), 0, 0
    for i, size in enumerate(sizes.tolist()):
        if held + size > most:
            turn, held = turn + 1, 0
        held += size
        turns[i] = turn
    return turns


def _components(count: int, links: Links) -> np.ndarray:
    return connect(count, np.stack([links.first, links.second], axis=1))


def _as_groups(count: int, forest: Links) -> Groups:
    """The groups that a forest, strongest first, links."""
    components = _components(count, forest)
    grouped = np.bincount(components, minlength=1)[components] > 1
    labels = np.full(count, -1, np.int64)
    _, labels[grouped] = np.unique(components[grouped], return_inverse=True)
    weakest = np.zeros(int(labels.max(initial=-1)) + 1, np.int64)
    forest = _strongest_first([forest])
    np.maximum.at(weakest, labels[forest.first], np.arange(len(forest.first)))
    ends = np.stack([forest.first[weakest], forest.second[weakest]], axis=1)
    return Groups(labels, ends, forest.strength[weakest])


def _strongest_first(parts: list[Links]) -> Links:
    links = _joined(parts)
    return _some(links, np.lexsort((links.second, links.first, -links.strength)))


def _joined(parts: list[Links]) -> Links:
    return Links(*map(np.concatenate, zip(_none(), *parts, strict=True)))


def _some(links: Links, which: np.ndarray | slice) -> Links:
    return Links(*(values[which] for values in links))


def _none() -> Links:
    return Links(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
