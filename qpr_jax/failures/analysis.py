"""Held-out queries whose first hit is not a known paraphrase, grouped by how the texts differ.

Pairs of texts are grouped in two ways. A query with the known paraphrase that shares most words
with it: this does not depend on the index, so the shares of failing queries can be compared between
groups and between indexes. A failing query with its first hit: this shows what it was mistaken for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import DEPTH
from qpr_jax.failures.differences import Group, make_groups
from qpr_jax.ids import id_key
from qpr_jax.index.base import Hit
from qpr_jax.index.question_index import QuestionIndex
from qpr_jax.text.differences import overlap

RankFn = Callable[[Sequence[str], int], Sequence[Sequence[Hit]]]  # `Retriever.search`

ALL, NONE = "all", "none"  # rows of a table besides the groups
_BLOCK = 1024  # queries of a search
_SEED = 0


@dataclass(frozen=True)
class Answer:
    """What an index found for a query, without the query itself.

    Attributes:
      first: the first hit.
      paraphrase: the first hit that is a known paraphrase; None if none is among `DEPTH` hits.
      place: the rank of `paraphrase`, from 1; 0 if there is none.
    """

    first: Hit
    paraphrase: Hit | None
    place: int

    @property
    def failed(self) -> bool:
        """Whether the first hit is not a known paraphrase."""
        return self.place != 1


@dataclass(frozen=True)
class Case:
    """A query, the known paraphrase that shares most words with it, and the answer of each run.

    Attributes:
      groups: names of the groups of query and paraphrase.
      mistakes: for each answer, the names of the groups of query and first hit if it failed.
    """

    id: int
    question: str
    paraphrase_id: int
    paraphrase: str
    groups: tuple[str, ...]
    answers: tuple[Answer, ...]
    mistakes: tuple[tuple[str, ...] | None, ...]


@dataclass(frozen=True)
class Analysis:
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


def analyze(
    searches: Mapping[str, RankFn],
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
    known = known_paraphrases(pairs)
    groups = make_groups(vocabulary)

    def names(query: str, other: str) -> tuple[str, ...]:
        return tuple(group.name for group in groups if group.contains(query, other))

    queries = {query: questions[query] for query in known}
    by_run = [find_answers(search, queries, known) for search in searches.values()]
    cases = []
    for (query, text), *answers in zip(queries.items(), *by_run, strict=True):
        other = closest_paraphrase(text, {other: questions[other] for other in known[query]})
        shared = names(text, questions[other])
        mistakes = (names(text, a.first.question) if a.failed else None for a in answers)
        cases.append(
            Case(query, text, other, questions[other], shared, tuple(answers), tuple(mistakes))
        )
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


def closest_paraphrase(query: str, others: Mapping[int, str]) -> int:
    """Return the id of the text that shares most words with the query; of equals the smallest."""
    return min(others, key=lambda other: (-overlap(query, others[other]), other))


def find_answers(
    search: RankFn, queries: Mapping[int, str], known: Mapping[int, Sequence[int]]
) -> list[Answer]:
    """Search for all queries, in blocks, and return the answer to each, in the order given."""
    ids, answers = [*queries], []
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        results = search([queries[query] for query in block], DEPTH + 1)
        for query, hits in zip(block, results, strict=True):
            others = [hit for hit in hits if id_key(hit.id) != query][:DEPTH]
            if not others:
                raise UserError(
                    f"question {query}: expected another question among its hits, got none",
                    remedy="build the index again",
                )
            paraphrases = {*known[query]}
            place = next((i for i, hit in enumerate(others, 1) if id_key(hit.id) in paraphrases), 0)
            answers.append(Answer(others[0], others[place - 1] if place else None, place))
    return answers


def questions_of_pairs(index: QuestionIndex, pairs: np.ndarray, source: str) -> dict[int, str]:
    """The text of each id in pairs int64 [P, 2] of the file `source`; UserError without one."""
    ids: list[int] = np.unique(pairs).tolist()
    texts: dict[int, str] = {}
    for value, text in zip(ids, index.questions(ids), strict=True):
        if text is None:
            raise UserError(
                f"{source}: question {value} is not in the index",
                remedy="give a run from whose index no question was removed",
            )
        texts[value] = text
    return texts


def require_same_questions(index: QuestionIndex, other: QuestionIndex, folder: str) -> None:
    """Raise UserError, with `folder`, that of `other`, unless both have the same ids and texts."""
    remedy = "index the same questions there with `qpr index`"
    if len(index) != len(other):
        what = f"expected the same {len(index):,} questions, got {len(other):,}"
        raise UserError(f"{folder}: {what}", remedy=remedy)
    ids = index.live_ids()
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        texts = zip(block, index.questions(block), other.questions(block), strict=True)
        for value, text, other_text in texts:
            if text != other_text:
                got = "none" if other_text is None else f"{other_text!r:.80}"
                what = f"expected the same questions, got {got} for id {value}"
                raise UserError(f"{folder}: {what}", remedy=remedy)


def query_counts(analysis: Analysis) -> list[Count]:
    """Count the queries and the failing ones: of all, of each group, and of none.

    The groups are those of query and paraphrase.
    """
    counts = []
    for name in (ALL, *_names(analysis), NONE):
        cases = [case for case in analysis.cases if name in (ALL, *(case.groups or (NONE,)))]
        failing = (sum(case.answers[i].failed for case in cases) for i in range(len(analysis.runs)))
        counts.append(Count(name, len(cases), tuple(failing)))
    return counts


def mistake_counts(analysis: Analysis) -> dict[str, tuple[int, ...]]:
    """Count the failing queries of each run: all, those of each group, and those of none.

    The groups are those of query and first hit.
    """
    counts = {name: [0] * len(analysis.runs) for name in (ALL, *_names(analysis), NONE)}
    for case in analysis.cases:
        for run, mistake in enumerate(case.mistakes):
            if mistake is not None:
                for name in (ALL, *(mistake or (NONE,))):
                    counts[name][run] += 1
    return {name: tuple(row) for name, row in counts.items()}


def examples_by_query(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which the first run fails, by group of query and paraphrase."""
    failed = [case for case in analysis.cases if case.answers[0].failed]
    return _by_group(analysis, [(case, case.groups) for case in failed])


def examples_by_mistake(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which the first run fails, by group of query and first hit."""
    mistakes = [(case, case.mistakes[0]) for case in analysis.cases]
    return _by_group(analysis, [(case, groups) for case, groups in mistakes if groups is not None])


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
    rng = np.random.default_rng(_SEED)
    chosen = rng.choice(len(cases), min(count, len(cases)), replace=False)
    return [cases[i] for i in np.sort(chosen)]


def _by_group(
    analysis: Analysis, cases: Sequence[tuple[Case, tuple[str, ...]]]
) -> dict[str, list[Case]]:
    return {
        name: [case for case, groups in cases if name in (groups or (NONE,))]
        for name in (*_names(analysis), NONE)
    }


def _names(analysis: Analysis) -> tuple[str, ...]:
    return tuple(group.name for group in analysis.groups)
