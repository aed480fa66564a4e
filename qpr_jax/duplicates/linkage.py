"""Loops that join entries by pairs, which come strongest first; see `groups`."""

from __future__ import annotations

import numpy as np

from qpr_jax.loops import compile_loop

_HASH = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
_SHIFT = np.uint64(20)


@compile_loop()
def _root(parents: np.ndarray, entry: int) -> int:
    while parents[entry] != entry:
        parents[entry] = parents[parents[entry]]
        entry = parents[entry]
    return entry


@compile_loop()
def join_all(count: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Which pairs, int64 [P] each, join two groups of `count` entries: bool [P]."""
    parents, sizes = np.arange(count), np.ones(count, np.int64)
    joins = np.zeros(len(first), np.bool_)
    for i in range(len(first)):
        a, b = _root(parents, first[i]), _root(parents, second[i])
        if a != b:
            joins[i] = True
            if sizes[a] < sizes[b]:
                a, b = b, a
            parents[b] = a
            sizes[a] += sizes[b]
    return joins


@compile_loop()
def _place(keys: np.ndarray, key: int) -> np.int64:
    """Where a key is in a table of a power of two, or where it goes; -1 is free."""
    place = np.int64((np.uint64(key) * _HASH) >> _SHIFT) & (len(keys) - 1)
    while keys[place] != -1 and keys[place] != key:
        place = (place + 1) & (len(keys) - 1)
    return place


@compile_loop()
def _grow(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The table, at most a quarter full, without keys of value 0; and how many it has."""
    kept = 0
    for value in values:
        kept += value != 0
    size = len(keys)
    while size < 4 * kept:
        size *= 2
    new_keys, new_values = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    for i in range(len(keys)):
        if values[i]:
            place = _place(new_keys, keys[i])
            new_keys[place], new_values[place] = keys[i], values[i]
    return new_keys, new_values, kept


@compile_loop()
def _key(count: int, a: int, b: int) -> int:
    return min(a, b) * count + max(a, b)


@compile_loop()
def _add(
    table: tuple[np.ndarray, np.ndarray, int],
    chains: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int],
    count: int,
    a: int,
    b: int,
    pairs: int,
) -> tuple[int, tuple, tuple]:
    """Add pairs between the groups a and b; how many there are then, the table, the chains."""
    keys, values, used = table
    heads, lengths, others, links, chained = chains
    if 2 * used >= len(keys):
        keys, values, used = _grow(keys, values)
    place = _place(keys, _key(count, a, b))
    if keys[place] == -1:
        keys[place] = _key(count, a, b)
        used += 1
    if not values[place]:
        if chained + 2 > len(others):
            others = np.append(others, np.empty_like(others))
            links = np.append(links, np.empty_like(links))
        for one, other in ((a, b), (b, a)):
            others[chained], links[chained] = other, heads[one]
            heads[one] = chained
            lengths[one] += 1
            chained += 1
    values[place] += pairs
    return values[place], (keys, values, used), (heads, lengths, others, links, chained)


@compile_loop()
def _take(table: tuple[np.ndarray, np.ndarray, int], count: int, a: int, b: int) -> int:
    """How many pairs there are between the groups a and b, which then has none."""
    keys, values, _ = table
    place = _place(keys, _key(count, a, b))
    pairs = values[place]
    values[place] = 0
    return pairs


@compile_loop()
def join_by_share(count: int, first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """Which pairs, int64 [P] each, join two groups of `count` entries: bool [P].

    A pair joins its groups, of m and n entries, if it is at least the `share` m n-th pair between
    them. The mean of two smaller shares is smaller, so only a pair between two groups, and no union
    with a third, can make them join.
    """
    joins = np.zeros(len(first), np.bool_)
    parents, sizes = np.arange(count), np.ones(count, np.int64)
    # How many pairs between two groups have come, by both; 0 where one is no group any more.
    table = (np.full(1024, -1, np.int64), np.zeros(1024, np.int64), 0)
    # For each group a chain of those with which it has pairs, and of some that are none any more.
    heads, lengths = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    chains = (heads, lengths, np.empty(1024, np.int64), np.empty(1024, np.int64), 0)
    for i in range(len(first)):
        a, b = _root(parents, first[i]), _root(parents, second[i])
        if a == b:
            continue
        pairs, table, chains = _add(table, chains, count, a, b, 1)
        if pairs < share * sizes[a] * sizes[b]:
            continue
        joins[i] = True
        _take(table, count, a, b)
        if lengths[a] < lengths[b]:
            a, b = b, a
        parents[b] = a
        sizes[a] += sizes[b]
        node = heads[b]
        while node != -1:  # what b has in common with another group, a has from now on
            other, node = chains[2][node], chains[3][node]
            moved = _take(table, count, b, other)
            if moved:
                _, table, chains = _add(table, chains, count, a, other, moved)
    return joins
