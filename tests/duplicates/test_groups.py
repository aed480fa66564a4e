"""Linkages: by hand, against brute force, and the same whatever the order of pairs."""

import numpy as np
import pytest

from qpr_jax import UserError
from qpr_jax.duplicates import groups as grouping
from qpr_jax.duplicates.groups import SHARES, Links, group_pairs


def links(*pairs):
    first, second, strength = zip(*pairs, strict=True) if pairs else ((), (), ())
    return Links(np.array(first, np.int64), np.array(second, np.int64), np.array(strength, float))


def as_sets(labels):
    return {frozenset(np.flatnonzero(labels == g)) for g in range(labels.max(initial=-1) + 1)}


def by_brute_force(count, pairs, share):
    """Groups by the definition: each pair in its turn, and all pairs between two groups."""
    order = np.lexsort((pairs.second, pairs.first, -pairs.strength))
    group_of, seen = [frozenset({i}) for i in range(count)], set()
    for a, b in zip(pairs.first[order].tolist(), pairs.second[order].tolist(), strict=True):
        seen.add((a, b))
        one, two = group_of[a], group_of[b]
        if one is two:
            continue
        between = sum((min(i, j), max(i, j)) in seen for i in one for j in two)
        if between >= share * len(one) * len(two):
            for i in one | two:
                group_of[i] = one | two
    return {group for group in group_of if len(group) > 1}


# Two triangles that one pair links.
BRIDGE = links(
    *((0, 1, 0.9), (1, 2, 0.8), (0, 2, 0.7), (3, 4, 0.9), (4, 5, 0.85), (3, 5, 0.6)), (2, 3, 0.75)
)


def test_a_bridge_is_cut():
    found = {name: group_pairs(7, lambda: [BRIDGE], name) for name in SHARES}
    assert as_sets(found["closure"].labels) == {frozenset(range(6))}
    assert as_sets(found["bridges"].labels) == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
    assert as_sets(found["complete"].labels) == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
    assert found["closure"].labels[6] == -1
    assert found["closure"].weakest.tolist() == [[2, 3]]
    assert found["closure"].strength.tolist() == [0.75]
    assert found["complete"].weakest.tolist() == [[0, 2], [3, 5]]
    assert found["complete"].strength.tolist() == [0.7, 0.6]


@pytest.mark.parametrize("name", SHARES)
def test_linkages_are_what_their_definition_says(name):
    rng = np.random.default_rng(0)
    for count in range(2, 22):
        first, second = np.triu_indices(count, 1)
        chosen = rng.permutation(len(first))[: rng.integers(1, len(first) + 1)]
        strength = np.round(rng.random(len(chosen)), 1)  # many are equal
        pairs = Links(first[chosen], second[chosen], strength)
        half = len(chosen) // 2
        parts = [Links(*(v[:half] for v in pairs)), Links(*(v[half:] for v in pairs))]
        found = group_pairs(count, lambda parts=parts: parts, name)
        assert as_sets(found.labels) == by_brute_force(count, pairs, SHARES[name])


@pytest.mark.parametrize("name", SHARES)
def test_the_order_of_pairs_does_not_matter(name, monkeypatch):
    monkeypatch.setattr(grouping, "_LEAST", 64)
    rng = np.random.default_rng(1)
    first = rng.integers(0, 300, 2000)
    second = first + rng.integers(1, 9, 2000)
    pairs = np.unique(np.stack([first, second]), axis=1)
    strength = np.round(rng.random(pairs.shape[1]), 2)
    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(pairs.shape[1])
        parts = [Links(*pairs[:, p], strength[p]) for p in np.array_split(order, 7)]
        found.append(group_pairs(310, lambda parts=parts: parts, name))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_components_are_joined_in_turns_where_memory_is_small():
    rng = np.random.default_rng(2)
    blocks = [
        links(
            *((10 * b + i, 10 * b + j, rng.random()) for i, j in ((0, 1), (1, 2), (0, 2), (2, 3)))
        )
        for b in range(50)
    ]
    whole = group_pairs(500, lambda: blocks, "bridges")
    few = group_pairs(500, lambda: blocks, "bridges", memory=10 * grouping.PAIR_BYTES)
    for a, b in zip(whole, few, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["bridges", "complete"])
def test_the_weakest_pairs_of_a_large_component_are_left_out(name, caplog):
    rng = np.random.default_rng(4)
    first, second = np.triu_indices(30, 1)
    pairs = Links(first, second, np.round(rng.random(len(first)), 1))
    more = links((30, 31, 0.0), (32, 33, 0.1), (31, 32, 0.05))
    strongest = np.lexsort((second, first, -pairs.strength))[:90]
    kept = [Links(*(v[strongest] for v in pairs)), more]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(first))
        parts = [*(Links(*(v[p] for v in pairs)) for p in np.array_split(order, 9)), more]
        found = group_pairs(34, lambda parts=parts: parts, name, memory=90 * grouping.PAIR_BYTES)
        for a, b in zip(found, group_pairs(34, lambda: kept, name), strict=True):
            np.testing.assert_array_equal(a, b)
        assert caplog.messages[seed].startswith("the 345 weakest of 438 pairs join no groups")


def test_no_pairs_and_no_entries():
    for name in SHARES:
        assert group_pairs(0, lambda: [], name).labels.tolist() == []
        assert group_pairs(2, lambda: [links()], name).labels.tolist() == [-1, -1]
    with pytest.raises(UserError, match="`groups`: expected one of closure, bridges, complete"):
        group_pairs(2, lambda: [], "average")
