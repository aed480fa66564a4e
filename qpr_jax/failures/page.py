"""The file of failing queries: an HTML page, Markdown, or JSON, which has all of them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

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
_ABOUT = {
    "about": "A query is a held-out question with a known paraphrase: a question that the pairs of "
    "the split link to it. It fails if the first hit, without the query itself, is not a known "
    "paraphrase; the hit may be a paraphrase that the labels lack. Groups overlap.",
    "about_examples": "Each query with the known paraphrase that shares most words with it, and "
    "the first hit with its distance; the groups are in brackets. Words that the query lacks are "
    "marked; words that only the query has follow.",
}


def write_failures(path: StrPath, analysis: Analysis, *, examples: int = 10) -> None:
    """Write an analysis, whole or not at all, in the format that `path` ends in: .html, .md, .json.

    A page shows at most `examples` queries of each group; JSON always has all failing queries. A
    lone surrogate in a question becomes "?".
    """
    ending = check_ending(path)
    if ending in _TEMPLATES:
        text = render(_TEMPLATES[ending], **_page(analysis, examples))
    else:
        text = _as_json(analysis)
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
    """Return one line: the number of queries, and at how many of them each run fails."""
    every, *_ = query_counts(analysis)
    parts = [f"{every.queries:,} {analysis.split} queries; "]
    for run, failing in zip(analysis.runs, every.failing, strict=True):
        parts.append(f"{run} fails at {failing:,} ({_share(failing, every.queries)}), ")
    if len(analysis.runs) == 2:
        parts.append(f"both at {len(compare_runs(analysis)['Both fail']):,}")
    return "".join(parts).removesuffix(", ")


def _as_json(analysis: Analysis) -> str:
    failing = [case for case in analysis.cases if any(a.failed for a in case.answers)]
    mistakes = mistake_counts(analysis).items()
    value = {
        "runs": analysis.runs,
        "split": analysis.split,
        "queries": len(analysis.cases),
        "groups": {group.name: group.meaning for group in analysis.groups},
        "by_query": [row._asdict() for row in query_counts(analysis)],
        "by_mistake": [{"group": name, "failing": row} for name, row in mistakes],
        "failing": [
            {**case._asdict(), "answers": [_json_answer(answer) for answer in case.answers]}
            for case in failing
        ],
    }
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _json_answer(answer: Answer) -> dict[str, Any]:
    def hit(found: Hit | None) -> dict[str, Any] | None:
        if found is None:
            return None
        return {"id": found.id, "question": found.question, "distance": found.distance}

    hits = {"first": hit(answer.first), "paraphrase": hit(answer.paraphrase)}
    return {"failed": answer.failed, "place": answer.place, **hits, "mistake": answer.mistake}


def _page(analysis: Analysis, examples: int) -> dict[str, Any]:
    """Return the variables of the templates failures.html and failures.md."""
    titles = {group.name: group.title for group in analysis.groups}
    titles |= {ALL: "All", NONE: "None of these"}
    first = analysis.runs[0]
    sections = {
        f"{first} fails, by the paraphrase": examples_by_query(analysis),
        f"{first} fails, by the first hit": examples_by_mistake(analysis),
    }
    if len(analysis.runs) == 2:
        sections = {"Side by side": compare_runs(analysis), **sections}
    shown = []
    for title, groups in sections.items():
        shown_groups = []
        for name, cases in groups.items():
            some = [_example(case, analysis.runs) for case in sample_cases(cases, examples)]
            group = {"title": titles.get(name, name), "total": len(cases), "examples": some}
            shown_groups.append(group)
        shown.append((title, shown_groups))
    groups_table = {
        "title": "The groups",
        "about": "",
        "head": ["group", "of a query and another question"],
        "rows": [(group.title, group.meaning) for group in analysis.groups],
    }
    tables = [_query_table(analysis, titles), _mistake_table(analysis, titles), groups_table]
    return {**_ABOUT, "summary": summarize(analysis), "tables": tables, "sections": shown}


def _query_table(analysis: Analysis, titles: Mapping[str, str]) -> dict[str, Any]:
    head = ["group", "queries", *(f"{run} fails" for run in analysis.runs)]
    rows = []
    for name, queries, failing in query_counts(analysis):
        row = [titles[name], f"{queries:,}", *(_share_and_count(n, queries) for n in failing)]
        if len(failing) == 2:
            row.append(f"{(failing[1] - failing[0]) / queries:+.3f}" if queries else "-")
        rows.append(row)
    return {
        "title": "Which queries fail",
        "about": "The groups say how a query differs from the known paraphrase that shares most "
        "words with it, whatever the index finds. The share of each group that fails, and the "
        "number.",
        "head": [*head, *(["difference"] if len(analysis.runs) == 2 else [])],
        "rows": rows,
    }


def _mistake_table(analysis: Analysis, titles: Mapping[str, str]) -> dict[str, Any]:
    counts = mistake_counts(analysis)
    rows = []
    for name, failing in counts.items():
        shares = [_share_and_count(*pair) for pair in zip(failing, counts[ALL], strict=True)]
        rows.append([titles[name], *shares])
    return {
        "title": "What a failing query is mistaken for",
        "about": "The groups say how a failing query differs from its first hit. The share of all "
        "failing queries, and the number.",
        "head": ["group", *analysis.runs],
        "rows": rows,
    }


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def _share_and_count(part: int, whole: int) -> str:
    return f"{_share(part, whole)} ({part:,})"


def _example(case: Case, runs: Sequence[str]) -> dict[str, Any]:
    """Return a failing query as the templates show it."""
    answers = [_shown(run, answer, case) for run, answer in zip(runs, case.answers, strict=True)]
    return {
        "query": case.question,
        "label": _label("paraphrase", case.groups),
        "paraphrase": _marked(case.paraphrase, case.question),
        "answers": answers,
    }


def _shown(run: str, answer: Answer, case: Case) -> dict[str, Any]:
    found, place, other = answer.paraphrase, "", None
    if answer.failed and found is None:
        place = f"no known paraphrase among {DEPTH}"
    elif answer.failed and found is not None and found.id == case.paraphrase_id:
        place = f"the paraphrase at place {answer.place}"
    elif answer.failed and found is not None:  # another one than the example shows
        place = f"another paraphrase at place {answer.place}"
        other = _marked(found.question, case.question)
    return {
        "label": _label(run, answer.mistake),
        "verdict": "wrong" if answer.failed else "right",
        "distance": f"{answer.first.distance:.3f}",
        "first": _marked(answer.first.question, case.question),
        "place": place,
        "other": other,
    }


def _label(name: str, groups: Sequence[str] | None) -> str:
    return f"{name} ({', '.join(groups)})" if groups else name


def _marked(text: str, query: str) -> dict[str, Any]:
    """Return a question in pieces, marked if the query lacks them, and the words it lacks."""
    pieces = mark_words(" ".join(text.split()), query)
    return {"pieces": pieces, "lacks": " ".join(missing_words(text, query))}
