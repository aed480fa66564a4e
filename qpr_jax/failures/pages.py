"""What a page of failing queries says, from top to bottom, whatever it is written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qpr_jax.evaluation.retrieval import DEPTH
from qpr_jax.failures.analysis import (
    ALL,
    NONE,
    Analysis,
    Answer,
    Case,
    compared,
    drawn,
    examples_by_mistake,
    examples_by_query,
    table_of_mistakes,
    table_of_queries,
)


@dataclass(frozen=True)
class Heading:
    """Of the level 1, 2 or 3."""

    level: int
    text: str


@dataclass(frozen=True)
class Table:
    """Cells of text; the first of each row names it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Examples:
    """Some of the cases under a title, which are `total`."""

    title: str
    total: int
    cases: Sequence[Case]


Block = Heading | Table | Examples | str  # a string is a paragraph


def summary(analysis: Analysis) -> str:
    """How many queries there are, and at how many each run fails, in a line."""
    every, *_ = table_of_queries(analysis)
    parts = [
        f"{run} fails at {failing:,} ({_share(failing, every.queries)})"
        for run, failing in zip(analysis.runs, every.failing, strict=True)
    ]
    if len(analysis.runs) == 2:
        parts.append(f"both at {len([*compared(analysis).values()][-1]):,}")
    return f"{every.queries:,} {analysis.split} queries; " + ", ".join(parts)


def blocks(analysis: Analysis, examples: int) -> list[Block]:
    """The page from top to bottom."""
    titles = {group.name: group.title for group in analysis.groups}
    titles |= {ALL: "All", NONE: "None of these"}
    several = len(analysis.runs) == 2
    runs = [f"{run} fails" for run in analysis.runs]
    page: list[Block] = [
        Heading(1, "Queries that fail"),
        summary(analysis) + ".",
        "A query is a held-out question that has a known paraphrase: one that the pairs of the "
        "split link to it. It fails where the first hit, the query itself left out, is none of "
        "its known paraphrases; that may be a paraphrase nobody labelled. Groups overlap.",
        Heading(2, "Which queries fail"),
        "A query is in the groups of what differs between it and the known paraphrase that shares "
        "most words with it, whatever was found. The share of each group that fails, and how many.",
        Table(
            ["group", "queries", *runs, *(["difference"] if several else [])],
            [
                [titles[row.group], f"{row.queries:,}"]
                + [_share_and_count(failing, row.queries) for failing in row.failing]
                + ([_difference(row.failing, row.queries)] if several else [])
                for row in table_of_queries(analysis)
            ],
        ),
        Heading(2, "What a failing query is mistaken for"),
        "What differs between a failing query and the wrong question that came first. The share of "
        "all that fail, and how many.",
    ]
    mistakes = table_of_mistakes(analysis)
    page += [
        Table(
            ["group", *analysis.runs],
            [
                [titles[name], *map(_share_and_count, row, mistakes[ALL])]
                for name, row in mistakes.items()
            ],
        ),
        Heading(2, "The groups"),
        Table(
            ["group", "of a query and another question"],
            [(group.title, group.meaning) for group in analysis.groups],
        ),
    ]
    page += [
        Heading(2, "Examples"),
        "Each query, the known paraphrase that shares most words with it, and what came first with "
        "its distance; in brackets, the groups. Marked are words that the query has not; those "
        "that it alone has follow.",
    ]
    sections: list[tuple[str, dict[str, list[Case]]]] = [
        (f"{analysis.runs[0]} fails, by the paraphrase", examples_by_query(analysis)),
        (f"{analysis.runs[0]} fails, by the first hit", examples_by_mistake(analysis)),
    ]
    if several:
        sections.insert(0, ("Side by side", compared(analysis)))
    for heading, found in sections:
        page.append(Heading(3, heading))
        for name, cases in found.items():
            shown = drawn(cases, examples)
            page.append(Examples(titles.get(name, name), len(cases), shown))
    return page


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def _share_and_count(part: int, whole: int) -> str:
    return f"{_share(part, whole)} ({part:,})"


def _difference(failing: Sequence[int], queries: int) -> str:
    first, second = failing
    return f"{(second - first) / queries:+.3f}" if queries else "-"


def labeled(name: str, groups: Sequence[str] | None) -> str:
    """The name of a question in an example, with the groups of what differs from the query."""
    return f"{name} ({', '.join(groups)})" if groups else name


def place_of(answer: Answer, case: Case) -> str:
    """Where a paraphrase was found, after a wrong hit; what follows is its text, if any."""
    if answer.paraphrase is None:
        return f"no known paraphrase among {DEPTH}"
    other = answer.paraphrase.id != case.paraphrase_id
    return f"{'another paraphrase' if other else 'the paraphrase'} at place {answer.place}"
