"""Held-out queries whose first hit is not a known paraphrase, grouped by how the texts differ.

Pairs of texts are grouped in two ways. A query with the known paraphrase that shares most words
with it: this does not depend on the index, so shares can be compared between groups and indexes. A
failing query with its first hit: this shows what it was mistaken for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import DEPTH, SearchFn, search_in_blocks
from qpr_jax.ids import id_key
from qpr_jax.index.base import Hit, Store
from qpr_jax.text import differences
from qpr_jax.text.tokenizer import tokenize

ALL, NONE = "all", "none"  # rows of a table besides the groups
_SHORT, _LONG = 4, 20  # words
_BLOCK = 1024  # questions that are compared at once


class Group(NamedTuple):
    """Pairs (query, other question) that differ in one way; `contains` says which."""

    name: str
    title: str
    meaning: str
    contains: Callable[[str, str], bool]


class Answer(NamedTuple):
    """What an index found for a query, without the query itself.

    first: the first hit. paraphrase: the first hit that is a known paraphrase; None if none is
    among `DEPTH` hits. place: its rank, from 1; 0 if there is none. mistake: the groups of query
    and first hit if the query failed, otherwise None.
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
    """A query, the known paraphrase that shares most words with it, and the answer of each run.

    groups: names of the groups of query and paraphrase.
    """

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


class Count(NamedTuple):
    """A row of a table: a group, its number of queries, and at how many of them each run fails."""

    group: str
    queries: int
    failing: tuple[int, ...]


def make_groups(vocabulary: Set[str] | None = None) -> tuple[Group, ...]:
    """Return all groups; a pair may be in several. The group "unseen" needs a vocabulary."""
    times = f"{differences.MUCH_LONGER:g}"
    groups = (
        ("numbers", "Numbers", "their sets of numbers differ", differences.numbers_differ),
        ("negation", "Negation", "only one of them negates", differences.negation_differs),
        ("names", "Names", "only one of them has a certain name", differences.names_differ),
        ("order", "Word order", "the same words in another order", differences.order_differs),
        ("same", "Same words", "only case or marks differ", differences.same_words),
        (
            "longer",
            "Query longer",
            f"the query has at least {times} times the words of the other question",
            differences.much_longer,
        ),
        (
            "shorter",
            "Query shorter",
            f"the other question has at least {times} times the words of the query",
            lambda query, other: differences.much_longer(other, query),
        ),
        (
            "short",
            "Short query",
            f"the query has at most {_SHORT} words",
            lambda query, other: len(tokenize(query)) <= _SHORT,
        ),
        (
            "long",
            "Long query",
            f"the query has more than {_LONG} words",
            lambda query, other: len(tokenize(query)) > _LONG,
        ),
    )
    found = tuple(Group(*group) for group in groups)
    if vocabulary is None:
        return found
    words, meaning = vocabulary, "the query has a word that the vocabulary of the run lacks"

    def is_unseen(query: str, other: str) -> bool:
        return differences.has_unseen_words(query, words)

    return (*found, Group("unseen", "Unseen words", meaning, is_unseen))


def analyze(
    searches: Mapping[str, SearchFn],
    questions: Mapping[int, str],
    pairs: np.ndarray,
    *,
    split: str = "test",
    vocabulary: Set[str] | None = None,
) -> Analysis:
    """Search for the queries of a split with each run, and group the queries and the mistakes.

    Args:
      searches: the search function of each run by its name; all search the same questions.
      questions: the text of each id in `pairs`.
      pairs: int64 [P, 2], ids, the query first. Known paraphrases of a query are all questions
        that pairs link to it, directly or through others.
      vocabulary: words that the run knows; None leaves out the group of unseen words.
    """
    known, groups = known_paraphrases(pairs), make_groups(vocabulary)

    def names(query: str, other: str) -> tuple[str, ...]:
        return tuple(group.name for group in groups if group.contains(query, other))

    queries = {query: questions[query] for query in known}
    hits_by_run = [
        search_in_blocks(search, [*queries.values()], DEPTH + 1) for search in searches.values()
    ]
    cases = []
    for (query, text), *hits in zip(queries.items(), *hits_by_run, strict=True):
        answers = []
        for found in hits:
            answer = _answer(query, found, known[query])
            mistake = names(text, answer.first.question) if answer.failed else None
            answers.append(answer._replace(mistake=mistake))
        # Of equally close paraphrases the one with the smallest id.
        other = min(known[query], key=lambda i: (-differences.overlap(text, questions[i]), i))
        shared = names(text, questions[other])
        cases.append(Case(query, text, other, questions[other], shared, tuple(answers)))
    return Analysis(tuple(searches), split, groups, tuple(cases))


def known_paraphrases(pairs: np.ndarray) -> dict[int, list[int]]:
    """Return the queries of pairs int64 [P, 2], by id, each with all questions linked to it."""
    ids, places = np.unique(pairs, return_inverse=True)
    clusters = connect(len(ids), places.reshape(-1, 2)).tolist()
    cluster_of = dict(zip(ids.tolist(), clusters, strict=True))
    members: dict[int, list[int]] = {}
    for value, cluster in cluster_of.items():
        members.setdefault(cluster, []).append(value)
    return {
        query: [other for other in members[cluster_of[query]] if other != query]
        for query in np.unique(pairs[:, 0]).tolist()
    }


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
    """Return the text of each id in pairs int64 [P, 2] of the file `source`.

    UserError if the store lacks one.
    """
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
    remedy = "index the same questions there with `qpr index`"
    if len(store) != len(other):
        what = f"{folder}: expected the same {len(store):,} questions, got {len(other):,}"
        raise UserError(what, remedy=remedy)
    questions = [*store.questions()]
    for start in range(0, len(questions), _BLOCK):
        block = questions[start : start + _BLOCK]
        for question, found in zip(block, other.get([q.id for q in block]), strict=True):
            if found is None or found.text != question.text:
                got = "none" if found is None else f"{found.text!r:.80}"
                what = f"{folder}: expected the same questions, got {got} for id {question.id}"
                raise UserError(what, remedy=remedy)


def query_counts(analysis: Analysis) -> list[Count]:
    """Count the queries and the failing ones: of all, of each group of query and paraphrase."""
    counts = []
    for name, cases in _by_group(analysis, [(case, case.groups) for case in analysis.cases]):
        answers = zip(*(case.answers for case in cases), strict=True)
        failing = [sum(answer.failed for answer in of_run) for of_run in answers]
        counts.append(Count(name, len(cases), tuple(failing or [0] * len(analysis.runs))))
    return counts


def mistake_counts(analysis: Analysis) -> dict[str, tuple[int, ...]]:
    """Count the failing queries of each run: all, and of each group of query and first hit."""
    by_run = [dict(_by_group(analysis, _mistakes(analysis, i))) for i in range(len(analysis.runs))]
    return {name: tuple(len(groups[name]) for groups in by_run) for name in by_run[0]}


def examples_by_query(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which the first run fails, by group of query and paraphrase."""
    failed = [(case, case.groups) for case in analysis.cases if case.answers[0].failed]
    return dict(_by_group(analysis, failed)[1:])


def examples_by_mistake(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which the first run fails, by group of query and first hit."""
    return dict(_by_group(analysis, _mistakes(analysis, 0))[1:])


def _mistakes(analysis: Analysis, run: int) -> list[tuple[Case, tuple[str, ...]]]:
    mistakes = [(case, case.answers[run].mistake) for case in analysis.cases]
    return [(case, groups) for case, groups in mistakes if groups is not None]


def _by_group(
    analysis: Analysis, cases: Sequence[tuple[Case, tuple[str, ...]]]
) -> list[tuple[str, list[Case]]]:
    """Return all cases, those of each group, and those of none, by name."""
    names = (ALL, *(group.name for group in analysis.groups), NONE)
    return [(n, [c for c, groups in cases if n in (ALL, *(groups or (NONE,)))]) for n in names]


def compare_runs(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which only the first of two runs, only the second, and both fail."""
    first, second = analysis.runs
    titles = {
        f"Only {first} fails": [True, False],
        f"Only {second} fails": [False, True],
        "Both fail": [True, True],
    }
    return {
        title: [case for case in analysis.cases if [a.failed for a in case.answers] == failed]
        for title, failed in titles.items()
    }


def sample_cases(cases: Sequence[Case], count: int) -> list[Case]:
    """Sample at most `count` cases, the same ones at each call, in their order."""
    chosen = np.random.default_rng(0).choice(len(cases), min(count, len(cases)), replace=False)
    return [cases[i] for i in np.sort(chosen)]
