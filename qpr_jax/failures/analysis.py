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
from qpr_jax.failures.differences import Group, make_groups, overlap
from qpr_jax.index.base import Hit
from qpr_jax.index.question_index import QuestionIndex

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
        paraphrase = closest_paraphrase(text, {other: questions[other] for other in known[query]})
        cases.append(
            Case(
                id=query,
                question=text,
                paraphrase_id=paraphrase,
                paraphrase=questions[paraphrase],
                groups=names(text, questions[paraphrase]),
                answers=tuple(answers),
                mistakes=tuple(
                    names(text, answer.first.question) if answer.failed else None
                    for answer in answers
                ),
            )
        )
    return Analysis(tuple(searches), split, groups, tuple(cases))


def known_paraphrases(pairs: np.ndarray) -> dict[int, list[int]]:
    """Return the queries of pairs int64 [P, 2], by id, each with all questions linked to it."""
    ids, places = np.unique(pairs, return_inverse=True)
    clusters = connect(len(ids), places.reshape(-1, 2)).tolist()
    members: dict[int, list[int]] = {}
    for value, cluster in zip(ids.tolist(), clusters, strict=True):
        members.setdefault(cluster, []).append(value)
    cluster_of = dict(zip(ids.tolist(), clusters, strict=True))
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
            others = [hit for hit in hits if hit.id != query][:DEPTH]
            if not others:
                raise UserError(
                    f"question {query}: expected another question among its hits, got none",
                    remedy="build the index again",
                )
            paraphrases = {*known[query]}
            place = next((i for i, hit in enumerate(others, 1) if hit.id in paraphrases), 0)
            answers.append(Answer(others[0], others[place - 1] if place else None, place))
    return answers


def questions_of_pairs(index: QuestionIndex, pairs: np.ndarray, source: str) -> dict[int, str]:
    """Return the text of each id in pairs int64 [P, 2] of the file `source`.

    Raises UserError if the index lacks one.
    """
    ids = np.unique(pairs)
    texts: dict[int, str] = {}
    for value, text in zip(ids.tolist(), index.questions(ids), strict=True):
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
        raise UserError(
            f"{folder}: expected the same {len(index):,} questions, got {len(other):,}",
            remedy=remedy,
        )
    ids = index.live_ids()
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        texts = zip(block.tolist(), index.questions(block), other.questions(block), strict=True)
        for value, text, other_text in texts:
            if text != other_text:
                got = "none" if other_text is None else f"{other_text!r:.80}"
                raise UserError(
                    f"{folder}: expected the same questions, got {got} for id {value}",
                    remedy=remedy,
                )


def query_counts(analysis: Analysis) -> list[Count]:
    """Count the queries and the failing ones: of all, of each group, and of none.

    The groups are those of query and paraphrase.
    """
    cases_of = {ALL: analysis.cases}
    for group in analysis.groups:
        cases_of[group.name] = tuple(case for case in analysis.cases if group.name in case.groups)
    cases_of[NONE] = tuple(case for case in analysis.cases if not case.groups)
    return [
        Count(
            name,
            len(cases),
            tuple(
                sum(case.answers[run].failed for case in cases) for run in range(len(analysis.runs))
            ),
        )
        for name, cases in cases_of.items()
    ]


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
    return _by_group(analysis, lambda case: case.groups)


def examples_by_mistake(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which the first run fails, by group of query and first hit."""
    return _by_group(analysis, lambda case: case.mistakes[0] or ())


def compare_runs(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which only the first of two runs, only the second, and both fail."""
    first, second = analysis.runs
    titles: dict[tuple[bool, ...], str] = {
        (True, False): f"Only {first} fails",
        (False, True): f"Only {second} fails",
        (True, True): "Both fail",
    }
    cases_of: dict[str, list[Case]] = {title: [] for title in titles.values()}
    for case in analysis.cases:
        failed = tuple(answer.failed for answer in case.answers)
        if any(failed):
            cases_of[titles[failed]].append(case)
    return cases_of


def sample_cases(cases: Sequence[Case], count: int) -> list[Case]:
    """Sample at most `count` cases, the same ones at each call, in their order."""
    rng = np.random.default_rng(_SEED)
    chosen = rng.choice(len(cases), min(count, len(cases)), replace=False)
    return [cases[i] for i in np.sort(chosen)]


def _by_group(
    analysis: Analysis, groups_of: Callable[[Case], tuple[str, ...]]
) -> dict[str, list[Case]]:
    cases_of: dict[str, list[Case]] = {name: [] for name in (*_names(analysis), NONE)}
    for case in analysis.cases:
        if case.answers[0].failed:
            for name in groups_of(case) or (NONE,):
                cases_of[name].append(case)
    return cases_of


def _names(analysis: Analysis) -> tuple[str, ...]:
    return tuple(group.name for group in analysis.groups)
