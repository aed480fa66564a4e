"""The file of failing queries: an HTML page, Markdown, or JSON, which has all of them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import DEPTH
from qpr_jax.failures.analysis import (
    ALL,
    NONE,
    Analysis,
    Answer,
    Case,
    compare_runs,
    examples_by_mistake,
    examples_by_query,
    mistake_counts,
    query_counts,
    sample_cases,
)
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.base import Hit
from qpr_jax.rendering import render
from qpr_jax.text.differences import mark_words, missing_words

_TEMPLATES = {".html": "failures.html", ".md": "failures.md"}
_ENDINGS = (*_TEMPLATES, ".json")


def write_failures(path: StrPath, analysis: Analysis, *, examples: int = 10) -> None:
    """Write an analysis, whole or not at all, in the format that `path` ends in: .html, .md, .json.

    A page shows at most `examples` queries of each group; JSON always has all failing queries. A
    lone surrogate in a question becomes "?".
    """
    ending = check_ending(path)
    text = as_json(analysis)
    if ending in _TEMPLATES:
        text = render(_TEMPLATES[ending], **page_context(analysis, examples))
    with write_atomically(path) as file:
        file.write(text.encode("utf-8", "replace"))


def check_ending(path: StrPath) -> str:
    """Return the suffix of a file's name; UserError unless `write_failures` can write it."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in _ENDINGS:
        names = ", ".join(_ENDINGS)
        raise UserError(f"expected a name that ends in {names}, got {str(path)!r}", setting="out")
    return ending


def summarize(analysis: Analysis) -> str:
    """One line: the number of queries, and at how many of them each run fails."""
    every, *_ = query_counts(analysis)
    parts = [
        f"{run} fails at {failing:,} ({_share(failing, every.queries)})"
        for run, failing in zip(analysis.runs, every.failing, strict=True)
    ]
    if len(analysis.runs) == 2:
        parts.append(f"both at {len([*compare_runs(analysis).values()][-1]):,}")
    return f"{every.queries:,} {analysis.split} queries; " + ", ".join(parts)


def as_json(analysis: Analysis) -> str:
    """The tables, and all queries at which a run fails, with their groups."""
    value = {
        "runs": analysis.runs,
        "split": analysis.split,
        "queries": len(analysis.cases),
        "groups": {group.name: group.meaning for group in analysis.groups},
        "by_query": [row._asdict() for row in query_counts(analysis)],
        "by_mistake": [{"group": k, "failing": row} for k, row in mistake_counts(analysis).items()],
        "failing": [_json_case(c) for c in analysis.cases if any(a.failed for a in c.answers)],
    }
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _json_case(case: Case) -> dict[str, Any]:
    answers = [
        {
            "failed": answer.failed,
            "place": answer.place,
            "first": _json_hit(answer.first),
            "paraphrase": _json_hit(answer.paraphrase) if answer.paraphrase else None,
            "mistake": mistake,
        }
        for answer, mistake in zip(case.answers, case.mistakes, strict=True)
    ]
    fields = {k: v for k, v in dataclasses.asdict(case).items() if k not in ("mistakes", "answers")}
    return fields | {"answers": answers}


def _json_hit(hit: Hit) -> dict[str, Any]:
    """A hit of the first stage, which has no score."""
    return {"id": hit.id, "question": hit.question, "distance": hit.distance}


class Table(NamedTuple):
    """A table of text cells under a title, and a paragraph about it; the first cell names a row."""

    title: str
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class ExampleGroup(NamedTuple):
    """Some of the `total` failing queries of a group, as `_example` describes each."""

    title: str
    total: int
    examples: Sequence[Mapping[str, Any]]


def page_context(analysis: Analysis, examples: int) -> dict[str, Any]:
    """The variables of the templates failures.html and failures.md."""
    titles = {group.name: group.title for group in analysis.groups}
    titles |= {ALL: "All", NONE: "None of these"}
    meanings = [(group.title, group.meaning) for group in analysis.groups]
    first = analysis.runs[0]
    sections = [
        (f"{first} fails, by the paraphrase", examples_by_query(analysis)),
        (f"{first} fails, by the first hit", examples_by_mistake(analysis)),
    ]
    if len(analysis.runs) == 2:
        sections.insert(0, ("Side by side", compare_runs(analysis)))

    def example_group(title: str, cases: Sequence[Case]) -> ExampleGroup:
        shown = [_example(case, analysis.runs) for case in sample_cases(cases, examples)]
        return ExampleGroup(title, len(cases), shown)

    return {
        "summary": summarize(analysis),
        "about": "A query is a held-out question with a known paraphrase: a question that the "
        "pairs of the split link to it. It fails if the first hit, without the query itself, is "
        "not a known paraphrase; the hit may be a paraphrase that the labels lack. Groups overlap.",
        "tables": [
            _query_table(analysis, titles),
            _mistake_table(analysis, titles),
            Table("The groups", "", ["group", "of a query and another question"], meanings),
        ],
        "about_examples": "Each query with the known paraphrase that shares most words with it, "
        "and the first hit with its distance; the groups are in brackets. Words that the query "
        "lacks are marked; words that only the query has follow.",
        "sections": [
            (title, [example_group(titles.get(name, name), groups[name]) for name in groups])
            for title, groups in sections
        ],
    }


def _query_table(analysis: Analysis, titles: Mapping[str, str]) -> Table:
    two = len(analysis.runs) == 2
    runs = [f"{run} fails" for run in analysis.runs]
    return Table(
        "Which queries fail",
        "The groups say how a query differs from the known paraphrase that shares most words with "
        "it, whatever the index finds. The share of each group that fails, and the number.",
        ["group", "queries", *runs, *(["difference"] if two else [])],
        [
            [titles[row.group], f"{row.queries:,}"]
            + [_share_and_count(failing, row.queries) for failing in row.failing]
            + ([_difference(row.failing, row.queries)] if two else [])
            for row in query_counts(analysis)
        ],
    )


def _mistake_table(analysis: Analysis, titles: Mapping[str, str]) -> Table:
    counts = mistake_counts(analysis)
    return Table(
        "What a failing query is mistaken for",
        "The groups say how a failing query differs from its first hit. The share of all failing "
        "queries, and the number.",
        ["group", *analysis.runs],
        [
            [titles[name], *map(_share_and_count, failing, counts[ALL])]
            for name, failing in counts.items()
        ],
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def _share_and_count(part: int, whole: int) -> str:
    return f"{_share(part, whole)} ({part:,})"


def _difference(failing: Sequence[int], queries: int) -> str:
    first, second = failing
    return f"{(second - first) / queries:+.3f}" if queries else "-"


def _example(case: Case, runs: Sequence[str]) -> dict[str, Any]:
    """A failing query as the templates show it: its paraphrase and the answer of each run."""
    return {
        "query": case.question,
        "label": _label("paraphrase", case.groups),
        "paraphrase": _marked(case.paraphrase, case.question),
        "answers": [
            {
                "label": _label(run, mistake),
                "verdict": "wrong" if answer.failed else "right",
                "distance": f"{answer.first.distance:.3f}",
                "first": _marked(answer.first.question, case.question),
                "place": _place(answer, case) if answer.failed else "",
                "other": _marked(answer.paraphrase.question, case.question)
                if answer.failed and answer.paraphrase and _is_other(answer, case)
                else None,
            }
            for run, answer, mistake in zip(runs, case.answers, case.mistakes, strict=True)
        ],
    }


def _label(name: str, groups: Sequence[str] | None) -> str:
    return f"{name} ({', '.join(groups)})" if groups else name


def _is_other(answer: Answer, case: Case) -> bool:
    """Whether another paraphrase was found before the one that the example shows."""
    return answer.paraphrase is not None and answer.paraphrase.id != case.paraphrase_id


def _place(answer: Answer, case: Case) -> str:
    if answer.paraphrase is None:
        return f"no known paraphrase among {DEPTH}"
    which = "another paraphrase" if _is_other(answer, case) else "the paraphrase"
    return f"{which} at place {answer.place}"


def _marked(text: str, query: str) -> dict[str, Any]:
    """A question in pieces, marked where the query lacks the words, and words only in the query."""
    return {
        "pieces": mark_words(" ".join(text.split()), query),
        "lacks": " ".join(missing_words(text, query)),
    }
