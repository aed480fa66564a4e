"""Held-out queries whose first hit is not a known paraphrase, grouped by how the texts differ.

Pairs of texts are grouped in two ways. A query with the known paraphrase that shares most words
with it: this does not depend on the index, so shares can be compared between groups and indexes. A
failing query with its first hit: this shows what it was mistaken for.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import DEPTH, SearchFn, search_in_blocks
from qpr_jax.ids import id_key, order_key
from qpr_jax.index.base import Hit, Store
from qpr_jax.text.differences import names_differ, negates, numbers_differ
from qpr_jax.text.tokenizer import tokenize

ALL, NONE = "all", "none"  # rows of a table besides the groups
_SHORT, _LONG = 4, 20  # words
_TIMES = 1.5  # as many words


class Group(NamedTuple):
    """Pairs (query, other question) that differ in one way."""

    name: str
    title: str
    meaning: str


_LONGER = f"has at least {_TIMES:g} times the words of the"
# In the order of the tables.
GROUPS = (
    Group("numbers", "Numbers", "their sets of numbers differ"),
    Group("negation", "Negation", "only one of them negates"),
    Group("names", "Names", "only one of them has a certain name"),
    Group("order", "Word order", "the same words in another order"),
    Group("same", "Same words", "only case or marks differ"),
    Group("longer", "Query longer", f"the query {_LONGER} other question"),
    Group("shorter", "Query shorter", f"the other question {_LONGER} query"),
    Group("short", "Short query", f"the query has at most {_SHORT} words"),
    Group("long", "Long query", f"the query has more than {_LONG} words"),
)
_LACKS = "the query has a word that the vocabulary of the run lacks"
_UNSEEN = Group("unseen", "Unseen words", _LACKS)


def groups_of(query: str, other: str, vocabulary: frozenset[str] | None) -> tuple[str, ...]:
    """The names of the groups of a query and another question."""
    words, others = tokenize(query), tokenize(other)
    count, size = len(words), len(others)
    contains = {
        "numbers": numbers_differ(query, other),
        "negation": negates(query) != negates(other),
        "names": names_differ(query, other),
        "order": words != others and sorted(words) == sorted(others),
        "same": words == others,
        "longer": count >= _TIMES * max(1, size),
        "shorter": size >= _TIMES * max(1, count),
        "short": count <= _SHORT,
        "long": count > _LONG,
        "unseen": vocabulary is not None and not vocabulary.issuperset(words),
    }
    return tuple(name for name, inside in contains.items() if inside)


class Answer(NamedTuple):
    """What an index found for a query, without the query itself.

    paraphrase: the first of `DEPTH` hits that is known, and its place from 1; None and 0 for none.
    mistake: the groups of query and first hit if the query failed, otherwise None.
    """

    first: Hit
    paraphrase: Hit | None
    place: int
    mistake: tuple[str, ...] | None

    @property
    def failed(self) -> bool:
        """Whether the first hit is not a known paraphrase."""
        return self.place != 1


class Case(NamedTuple):
    """A query, the known paraphrase nearest in words, their groups, and each run's answer."""

    id: int
    question: str
    paraphrase_id: int
    paraphrase: str
    groups: tuple[str, ...]
    answers: tuple[Answer, ...]


class Analysis(NamedTuple):
    """All queries of a split, in the order of ids, with the answers of one run or several."""

    runs: tuple[str, ...]
    split: str
    groups: tuple[Group, ...]
    cases: tuple[Case, ...]

    def by_group(self, run: int | None = None) -> dict[str, list[Case]]:
        """Return all cases, those of each group, and those of none, by name.

        run: only its failing queries, by the groups of query and first hit, not of paraphrase.
        """
        found: dict[str, list[Case]] = {ALL: []}
        found |= {group.name: [] for group in self.groups} | {NONE: []}
        for case in self.cases:
            names = case.groups if run is None else case.answers[run].mistake
            if names is not None:
                for name in (ALL, *(names or (NONE,))):
                    found[name].append(case)
        return found

    def failing(self, cases: Sequence[Case]) -> list[int]:
        """Count at how many of these queries each run fails."""
        return [sum(case.answers[run].failed for case in cases) for run in range(len(self.runs))]


def analyze(
    searches: Mapping[str, SearchFn],
    questions: Mapping[int, str],
    pairs: np.ndarray,
    *,
    split: str = "test",
    vocabulary: frozenset[str] | None = None,
) -> Analysis:
    """Search for the queries of a split with each run, and group the queries and the mistakes.

    Args:
      searches: the search function of each run by its name; all search the same questions.
      questions: the text of each id in `pairs`.
      pairs: int64 [P, 2], ids, the query first. Known paraphrases of a query are all questions
        that pairs link to it, directly or through others.
      vocabulary: words that the run knows; None leaves out the group of unseen words.
    """
    known = known_paraphrases(pairs)
    groups = GROUPS if vocabulary is None else (*GROUPS, _UNSEEN)
    queries = [questions[query] for query in known]
    found = [search_in_blocks(search, queries, DEPTH + 1) for search in searches.values()]
    cases = []
    for query, text, *hits in zip(known, queries, *found, strict=True):
        answers = []
        for own in hits:
            answer = _answer(query, own, known[query])
            if answer.failed:
                mistake = groups_of(text, answer.first.question, vocabulary)
                answer = answer._replace(mistake=mistake)
            answers.append(answer)
        # Of equally close paraphrases the one with the smallest id.
        other = max(known[query], key=lambda i: (_overlap(text, questions[i]), -i))
        shared = groups_of(text, questions[other], vocabulary)
        cases.append(Case(query, text, other, questions[other], shared, tuple(answers)))
    return Analysis(tuple(searches), split, groups, tuple(cases))


def _overlap(first: str, second: str) -> float:
    """The Jaccard index of the sets of words; 1 if both are empty."""
    words, others = {*tokenize(first)}, {*tokenize(second)}
    return len(words & others) / len(words | others) if words | others else 1.0


def known_paraphrases(pairs: np.ndarray) -> dict[int, list[int]]:
    """Return the queries of pairs int64 [P, 2], by id, each with all questions linked to it."""
    ids, places = np.unique(pairs, return_inverse=True)
    clusters = connect(len(ids), places.reshape(-1, 2)).tolist()
    members = collections.defaultdict(list)
    for value, cluster in zip(ids.tolist(), clusters, strict=True):
        members[cluster].append(value)
    linked = {value: group for group in members.values() for value in group}
    queries = np.unique(pairs[:, 0]).tolist()
    return {query: [other for other in linked[query] if other != query] for query in queries}


def _answer(query: int, hits: Sequence[Hit], known: Sequence[int]) -> Answer:
    others = [hit for hit in hits if id_key(hit.id) != query][:DEPTH]
    if not others:
        what = f"question {query}: expected another question among its hits, got none"
        raise UserError(what, remedy="build the index again")
    for place, hit in enumerate(others, start=1):
        if id_key(hit.id) in known:
            return Answer(others[0], hit, place, None)
    return Answer(others[0], None, 0, None)


def questions_of_pairs(store: Store, pairs: np.ndarray, source: str) -> dict[int, str]:
    """Return the text of each id in pairs int64 [P, 2] of the file `source`."""
    ids: list[int] = np.unique(pairs).tolist()
    texts: dict[int, str] = {}
    for value, question in zip(ids, store.get(ids), strict=True):
        if question is None:
            what = f"{source}: question {value} is not in the index"
            raise UserError(what, remedy="give a run from whose index no question was removed")
        texts[value] = question.text
    return texts


def require_same_questions(store: Store, other: Store, folder: str) -> None:
    """Raise UserError, with the `folder` of `other`, unless both have the same ids and texts."""
    texts, others = ({id_key(q.id): q.text for q in s.questions()} for s in (store, other))
    if differing := texts.items() ^ others.items():
        first = min((key for key, _ in differing), key=order_key)
        what = f"{folder}: expected the same questions, got another one for id {first}"
        raise UserError(what, remedy="index the same questions there with `qpr index`")
