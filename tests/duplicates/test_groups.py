"""Linkages against brute force, and the row of a group that stays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qpr_jax.duplicates.groups import choose_kept, group_entries, row_order
from qpr_jax.duplicates.rows import LINKAGES, make_rows
from qpr_jax.index.protocol import Question


def as_sets(roots, last):
    """The groups of two or more entries, and the place of the pair that joined each last."""
    groups = {frozenset(np.flatnonzero(roots == root)) for root in roots.tolist()}
    assert all(min(group) == roots[min(group)] for group in groups)
    return {group: last[min(group)] for group in groups if len(group) > 1}


def by_brute_force(count, pairs, linkage):
    """Groups by the definition: each pair in its turn, and all pairs between two groups."""
    group_of, seen, last = [frozenset({i}) for i in range(count)], set(), {}
    for place, (a, b) in enumerate(pairs):
        seen.add((a, b))
        one, two = group_of[a], group_of[b]
        if one == two:
            continue
        between = sum((min(i, j), max(i, j)) in seen for i in one for j in two)
        if linkage == "closure" or between == len(one) * len(two):
            for i in one | two:
                group_of[i] = one | two
            last[one | two] = place
    return {group: last[group] for group in group_of if len(group) > 1}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LINKAGES), st.integers(0, 24), st.integers(0, 10_000))
def test_linkages_are_what_their_definition_says(linkage, count, seed):
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(count, 1)
    chosen = rng.permutation(len(first))[: rng.integers(0, len(first) + 1)]
    pairs = np.stack([first[chosen], second[chosen]], axis=1)
    found = as_sets(*group_entries(np.zeros(count, int), *pairs.T, linkage))
    assert found == by_brute_force(count, pairs.tolist(), linkage)


def test_the_greatest_of_a_column():
    """A cell without a value is the least, and of equal cells the first is kept."""
    for values, kept in (
        (["9", "10", ""], 1),
        (["nan", "-5"], 1),
        ([float("nan"), 0], 1),
        ([2**63, float(2**62)], 0),
        (["n/a", "", "7", None, "7.0"], 2),
    ):
        rows = make_rows([Question(i, "a", {"n": value}) for i, value in enumerate(values)])
        order = row_order("max:n", rows)
        assert choose_kept("max:n", rows, [*range(len(values))], np.zeros((1, 2)), order) == kept
