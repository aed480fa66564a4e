"""Held-out queries whose first hit is no known paraphrase, in groups of what differs.

Groups are taken twice. Of a query and the known paraphrase that shares most words with it: that
does not depend on what an index finds, so the share that fails can be compared from group to group
and from index to index. And of a query that fails and its first hit: what was mistaken for what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.data.clusters import connect
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import DEPTH
from qpr_jax.failures.differences import Group, groups, overlap
from qpr_jax.index.question_index import Found, QuestionIndex

RankFn = Callable[[Sequence[str], int], Sequence[Sequence[Found]]]  # as of a `Retriever`

ALL, NONE = "all", "none"  # rows of a table that are no groups
_BLOCK = 1024
_SEED = 0


@dataclass(frozen=True)
class Answer:
    """The first hit of an index for a query, the query itself left out, and how far off it is.

    paraphrase: the first known one that was found, at `place`, from 1; None and 0 where there is
    none among `DEPTH`.
    """

    first: Found
    paraphrase: Found | None
    place: int

    @property
    def failed(self) -> bool:
        """Whether the first hit is no known paraphrase."""
        return self.place != 1


@dataclass(frozen=True)
class Case:
    """A query with its known paraphrase of the most words in common, and an answer an index.

    groups: names of the groups of query and paraphrase. mistakes: for each answer that failed,
    those of query and first hit, else None.
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
    """All queries of a split, by id, and their answers from one index or several."""

    runs: tuple[str, ...]
    split: str
    groups: tuple[Group, ...]
    cases: tuple[Case, ...]


class Count(NamedTuple):
    """A row of a table: a group, its queries, and how many of them each run fails at."""

    group: str
    queries: int
    failing: tuple[int, ...]


def analyse(
    searches: Mapping[str, RankFn],
    questions: Mapping[int, str],
    pairs: np.ndarray,
    *,
    split: str = "test",
    vocabulary: Set[str] | None = None,
) -> Analysis:
    """Ask each search for the queries of a split, and group queries and mistakes.

    Args:
      searches: what finds the nearest questions, by the name of the run; all of the same questions.
      questions: the text of each id of the pairs.
      pairs: int64 [P, 2] of ids, the query first. Known paraphrases of a query are all questions
        that pairs link to it, directly or through others.
      vocabulary: words that the run knows; without them, the group of unseen words is left out.
    """
    known = known_paraphrases(pairs)
    of_texts = groups(vocabulary)

    def names(query: str, other: str) -> tuple[str, ...]:
        return tuple(group.name for group in of_texts if group.holds(query, other))

    asked = {query: questions[query] for query in known}
    by_run = [answers_of(search, asked, known) for search in searches.values()]
    cases = []
    for (query, text), *answers in zip(asked.items(), *by_run, strict=True):
        paraphrase = closest(text, {other: questions[other] for other in known[query]})
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
    return Analysis(tuple(searches), split, of_texts, tuple(cases))


def known_paraphrases(pairs: np.ndarray) -> dict[int, list[int]]:
    """The queries of pairs int64 [P, 2], by id, each with the other questions linked to it."""
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


def closest(query: str, others: Mapping[int, str]) -> int:
    """The id of the text that shares most words with the query; of equals the smallest."""
    return min(others, key=lambda other: (-overlap(query, others[other]), other))


def answers_of(
    search: RankFn, queries: Mapping[int, str], known: Mapping[int, Sequence[int]]
) -> list[Answer]:
    """The answer to each query, many at a time, itself left out."""
    ids, answers = [*queries], []
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        found = search([queries[query] for query in block], DEPTH + 1)
        for query, hits in zip(block, found, strict=True):
            others = [hit for hit in hits if hit.id != query][:DEPTH]
            if not others:
                raise UserError(f"question {query}: the index finds no other; build it again")
            right = {*known[query]}
            place = next((i for i, hit in enumerate(others, 1) if hit.id in right), 0)
            answers.append(Answer(others[0], others[place - 1] if place else None, place))
    return answers


def questions_of_pairs(index: QuestionIndex, pairs: np.ndarray, source: str) -> dict[int, str]:
    """The text of each id of pairs int64 [P, 2] of a file; UserError where the index lacks one."""
    ids = np.unique(pairs)
    found: dict[int, str] = {}
    for value, text in zip(ids.tolist(), index.questions(ids), strict=True):
        if text is None:
            raise UserError(
                f"{source}: question {value} is not in the index; give a run whose questions were "
                "not removed"
            )
        found[value] = text
    return found


def require_same_questions(index: QuestionIndex, other: QuestionIndex, folder: str) -> None:
    """UserError, which names the `folder` of `other`, unless both hold the same ids and texts."""
    remedy = f"index the same questions there: qpr index {folder} QUESTIONS --run RUN"
    if len(index) != len(other):
        raise UserError(
            f"{folder}: expected the same questions, got {len(other):,} and not {len(index):,}; "
            f"{remedy}"
        )
    ids = index.rows.ids[index.living()]
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        texts = zip(block.tolist(), index.questions(block), other.questions(block), strict=True)
        for value, text, there in texts:
            if text != there:
                got = "none" if there is None else f"{there!r:.80}"
                raise UserError(
                    f"{folder}: expected the same questions, got {got} for id {value}; {remedy}"
                )


def table_of_queries(analysis: Analysis) -> list[Count]:
    """All queries, those of each group, and those of none, with how many of them fail."""
    chosen = {ALL: analysis.cases}
    for group in analysis.groups:
        chosen[group.name] = tuple(case for case in analysis.cases if group.name in case.groups)
    chosen[NONE] = tuple(case for case in analysis.cases if not case.groups)
    return [
        Count(
            name,
            len(cases),
            tuple(
                sum(case.answers[run].failed for case in cases) for run in range(len(analysis.runs))
            ),
        )
        for name, cases in chosen.items()
    ]


def table_of_mistakes(analysis: Analysis) -> dict[str, tuple[int, ...]]:
    """How many of a run's failing queries there are in all, of each group, and of none.

    Groups of query and first hit; a number a run.
    """
    counts = {name: [0] * len(analysis.runs) for name in (ALL, *_names(analysis), NONE)}
    for case in analysis.cases:
        for run, mistake in enumerate(case.mistakes):
            if mistake is not None:
                for name in (ALL, *(mistake or (NONE,))):
                    counts[name][run] += 1
    return {name: tuple(row) for name, row in counts.items()}


def examples_by_query(analysis: Analysis) -> dict[str, list[Case]]:
    """The queries at which the first run fails, by group of query and paraphrase."""
    return _by_group(analysis, lambda case: case.groups)


def examples_by_mistake(analysis: Analysis) -> dict[str, list[Case]]:
    """The queries at which the first run fails, by group of query and first hit."""
    return _by_group(analysis, lambda case: case.mistakes[0] or ())


def compared(analysis: Analysis) -> dict[str, list[Case]]:
    """Of two runs, the queries at which only the first, only the second, and both fail."""
    first, second = analysis.runs
    titles: dict[tuple[bool, ...], str] = {
        (True, False): f"Only {first} fails",
        (False, True): f"Only {second} fails",
        (True, True): "Both fail",
    }
    found: dict[str, list[Case]] = {title: [] for title in titles.values()}
    for case in analysis.cases:
        failed = tuple(answer.failed for answer in case.answers)
        if any(failed):
            found[titles[failed]].append(case)
    return found


def drawn(cases: Sequence[Case], count: int) -> list[Case]:
    """So many of the cases, or all where there are fewer, the same at each call, in order."""
    rng = np.random.default_rng(_SEED)
    chosen = rng.choice(len(cases), min(count, len(cases)), replace=False)
    return [cases[at] for at in np.sort(chosen)]


def _by_group(
    analysis: Analysis, groups_of: Callable[[Case], tuple[str, ...]]
) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {name: [] for name in (*_names(analysis), NONE)}
    for case in analysis.cases:
        if case.answers[0].failed:
            for name in groups_of(case) or (NONE,):
                found[name].append(case)
    return found


def _names(analysis: Analysis) -> tuple[str, ...]:
    return tuple(group.name for group in analysis.groups)
