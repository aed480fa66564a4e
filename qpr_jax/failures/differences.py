"""How two questions differ, as groups of pairs."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from qpr_jax.text.differences import (
    MUCH_LONGER,
    has_unseen_words,
    much_longer,
    names_differ,
    negation_differs,
    numbers_differ,
    order_differs,
    same_words,
)
from qpr_jax.text.tokenizer import tokenize

SHORT, LONG = 4, 20  # words


@dataclass(frozen=True)
class Group:
    """Pairs of a query and another question that differ in one way.

    Attributes:
      meaning: the difference, in words for a page.
      contains: whether a pair (query, other question) belongs to the group.
    """

    name: str
    title: str
    meaning: str
    contains: Callable[[str, str], bool]


def make_groups(vocabulary: Set[str] | None = None) -> tuple[Group, ...]:
    """Return all groups; a pair may be in several. The group "unseen" needs a vocabulary."""
    if vocabulary is None:
        return _GROUPS
    known = vocabulary
    unseen = Group(
        "unseen",
        "Unseen words",
        "the query has a word outside the vocabulary of the run whose splits these are",
        lambda query, _: has_unseen_words(query, known),
    )
    return (*_GROUPS, unseen)


_GROUPS = (
    Group("numbers", "Numbers", "their sets of numbers differ", numbers_differ),
    Group("negation", "Negation", "one negates and the other does not", negation_differs),
    Group("names", "Names", "one has a name or acronym that the other has not", names_differ),
    Group("order", "Word order", "the same words in another order", order_differs),
    Group("same", "Same words", "the same words; case or marks differ at most", same_words),
    Group(
        "longer",
        "Query longer",
        f"the query has {MUCH_LONGER:g} times the words of the other question, or more",
        much_longer,
    ),
    Group(
        "shorter",
        "Query shorter",
        f"the other question has {MUCH_LONGER:g} times the words of the query, or more",
        lambda query, other: much_longer(other, query),
    ),
    Group(
        "short",
        "Short query",
        f"the query has {SHORT} words or fewer",
        lambda query, _: len(tokenize(query)) <= SHORT,
    ),
    Group(
        "long",
        "Long query",
        f"the query has more than {LONG} words",
        lambda query, _: len(tokenize(query)) > LONG,
    ),
)
