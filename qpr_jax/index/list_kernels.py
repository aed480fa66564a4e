"""Loops over the distances of vectors to all centroids, of `list_join`."""

from __future__ import annotations

import numpy as np

from qpr_jax.loops import compile_loop


@compile_loop()
def find_visits(
    distances: np.ndarray, gaps: np.ndarray, reach: np.float32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The home of each vector, and the further lists whose border is at most `reach` away.

    Args:
      distances: squared ones to the centroids, up to a constant of the vector, float32 [n, L].
      gaps: twice the distances of centroids float32 [L, L].

    Returns:
      (home int32 [n], number of visits int64 [n], lists int32 [V], ascending for each vector)
    """
    count, lists = distances.shape
    home, counts = np.empty(count, np.int32), np.zeros(count, np.int64)
    visits = np.empty(4 * count + lists, np.int32)
    total = 0
    for i in range(count):
        row = distances[i]
        own = np.argmin(row)
        home[i] = own
        if total + lists > len(visits):
            more = np.empty(2 * len(visits), np.int32)
            more[:total] = visits[:total]
            visits = more
        begin = total
        for k in range(lists):
            if k != own and row[k] - row[own] <= reach * gaps[own, k]:
                visits[total] = k
                total += 1
        counts[i] = total - begin
    return home, counts, visits[:total].copy()


@compile_loop()
def borders_of_pairs(one: np.ndarray, other: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """For each pair the smaller distance to the border of the two homes, 0 within one home [P].

    one, other: distances [P, L] of the first and the second vector of each pair, as `find_visits`.
    """
    least = np.zeros(len(one), np.float32)
    for i in range(len(one)):
        a, b = np.argmin(one[i]), np.argmin(other[i])
        if a != b:
            least[i] = min(one[i, b] - one[i, a], other[i, a] - other[i, b]) / gaps[a, b]
    return least


@compile_loop()
def visits_list(
    starts: np.ndarray, visits: np.ndarray, vectors: np.ndarray, lists: np.ndarray
) -> np.ndarray:
    """Whether each of `vectors` int64 [P] visits the list at its place in `lists` int32 [P]."""
    found = np.zeros(len(vectors), np.bool_)
    for i in range(len(vectors)):
        begin, end = starts[vectors[i]], starts[vectors[i] + 1]
        place = begin + np.searchsorted(visits[begin:end], lists[i])
        found[i] = place < end and visits[place] == lists[i]
    return found


@compile_loop()
def group_visits(
    starts: np.ndarray, visits: np.ndarray, guest_starts: np.ndarray, guests: np.ndarray
) -> None:
    """Write who visits each list.

    Args:
      starts, visits: of the vectors, int64 [n + 1], int32 [V].
      guest_starts: int64 [L + 1], zeros; gets where the guests of each list begin.
      guests: int32 [V]; gets the vectors, ascending for each list.
    """
    for i in visits:
        guest_starts[i + 1] += 1
    for i in range(1, len(guest_starts)):
        guest_starts[i] += guest_starts[i - 1]
    places = guest_starts[:-1].copy()
    for i in range(len(starts) - 1):
        for j in range(starts[i], starts[i + 1]):
            guests[places[visits[j]]] = i
            places[visits[j]] += 1
