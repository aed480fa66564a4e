"""The file of failing queries: an HTML page, Markdown, or JSON, which has all of them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import DEPTH
from qpr_jax.failures.analysis import ALL, NONE, Analysis, Answer, Case
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.base import Hit
from qpr_jax.rendering import render
from qpr_jax.text.differences import mark_words, missing_words

_ENDINGS = (".html", ".md", ".json")
_ABOUT = {
    "about": "A query is a held-out question with a known paraphrase: a question that the pairs of "
    "the split link to it. It fails if the first hit, without the query itself, is not a known "
    "paraphrase; the hit may be a paraphrase that the labels lack. Groups overlap.",
    "about_examples": "Each query with the known paraphrase that shares most words with it, and "
    "the first hit with its distance; the groups are in brackets. Words that the query lacks are "
    "marked; words that only the query has follow.",
}
_QUERIES = (
    "The groups say how a query differs from the known paraphrase that shares most words with it, "
    "whatever the index finds. The share of each group that fails, and the number."
)
_MISTAKES = (
    "The groups say how a failing query differs from its first hit. The share of all failing "
    "queries, and the number."
)


def write_failures(path: StrPath, analysis: Analysis, *, examples: int = 10) -> None:
    """Write an analysis, whole or not at all, in the format that `path` ends in: .html, .md, .json.

    A page shows at most `examples` queries of each group; JSON has all failing queries.
    """
    ending = check_ending(path)
    if ending == ".json":
        text = json.dumps(_as_json(analysis), indent=1, allow_nan=False) + "\n"
    else:
        text = render(f"failures{ending}", **_page(analysis, examples))
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
    count, failing = len(analysis.cases), analysis.failing(analysis.cases)
    parts = [
        f"{run} fails at {number:,} ({_share(number, count)})"
        for run, number in zip(analysis.runs, failing, strict=True)
    ]
    if len(analysis.runs) == 2:
        parts.append(f"both at {len(_compared(analysis)['Both fail']):,}")
    return f"{count:,} {analysis.split} queries; {', '.join(parts)}"


def sample_cases(cases: Sequence[Case], count: int) -> list[Case]:
    """Sample at most `count` cases, the same ones at each call, in their order."""
    chosen = np.random.default_rng(0).choice(len(cases), min(count, len(cases)), replace=False)
    return [cases[i] for i in np.sort(chosen)]


def _as_json(analysis: Analysis) -> dict[str, Any]:
    def hit(found: Hit | None) -> dict[str, Any] | None:
        return found and {"id": found.id, "question": found.question, "distance": found.distance}

    def answered(answer: Answer) -> dict[str, Any]:
        hits = {"first": hit(answer.first), "paraphrase": hit(answer.paraphrase)}
        return {"failed": answer.failed, "place": answer.place, **hits, "mistake": answer.mistake}

    return {
        "runs": analysis.runs,
        "split": analysis.split,
        "queries": len(analysis.cases),
        "groups": {group.name: group.meaning for group in analysis.groups},
        "by_query": [
            {"group": name, "queries": len(cases), "failing": analysis.failing(cases)}
            for name, cases in analysis.by_group().items()
        ],
        "by_mistake": [
            {"group": name, "failing": counts} for name, counts in _mistakes(analysis).items()
        ],
        "failing": [
            {**case._asdict(), "answers": [answered(answer) for answer in case.answers]}
            for case in analysis.cases
            if any(answer.failed for answer in case.answers)
        ],
    }


def _mistakes(analysis: Analysis) -> dict[str, list[int]]:
    """Count the failing queries of each run, by the groups of query and first hit."""
    by_run = [analysis.by_group(run) for run in range(len(analysis.runs))]
    return {name: [len(groups[name]) for groups in by_run] for name in by_run[0]}


def _compared(analysis: Analysis) -> dict[str, list[Case]]:
    """Return the queries at which only the first of two runs, only the second, and both fail."""
    first, second = analysis.runs
    titles = {(True, False): f"Only {first} fails", (False, True): f"Only {second} fails"}
    titles[True, True] = "Both fail"
    found: dict[str, list[Case]] = {title: [] for title in titles.values()}
    for case in analysis.cases:
        one, other = (answer.failed for answer in case.answers)
        if one or other:
            found[titles[one, other]].append(case)
    return found


def _page(analysis: Analysis, examples: int) -> dict[str, Any]:
    """Return the variables of the templates failures.html and failures.md."""
    titles = {group.name: group.title for group in analysis.groups}
    titles |= {ALL: "All", NONE: "None of these"}
    first = analysis.runs[0]
    of_first = {
        name: [case for case in cases if case.answers[0].failed]
        for name, cases in analysis.by_group().items()
    }
    sections = {
        f"{first} fails, by the paraphrase": of_first,
        f"{first} fails, by the first hit": analysis.by_group(0),
    }
    if len(analysis.runs) == 2:
        sections = {"Side by side": _compared(analysis), **sections}
    shown: list[tuple[str, list[dict[str, Any]]]] = []
    for title, groups in sections.items():
        shown.append((title, []))
        for name, cases in groups.items():
            if name != ALL:
                some = [_example(case, analysis.runs) for case in sample_cases(cases, examples)]
                group = {"title": titles.get(name, name), "total": len(cases), "examples": some}
                shown[-1][1].append(group)
    return {
        **_ABOUT,
        "summary": summarize(analysis),
        "tables": _tables(analysis, titles),
        "sections": shown,
    }


def _tables(analysis: Analysis, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    head = ["group", "queries", *(f"{run} fails" for run in analysis.runs)]
    head += ["difference"] if len(analysis.runs) == 2 else []
    queries = []
    for name, cases in analysis.by_group().items():
        count, failing = len(cases), analysis.failing(cases)
        row = [titles[name], f"{count:,}"]
        row += [_share_and_count(number, count) for number in failing]
        if len(failing) == 2:
            row.append(f"{(failing[1] - failing[0]) / count:+.3f}" if count else "-")
        queries.append(row)
    counts = _mistakes(analysis)
    mistakes = [
        [titles[name], *map(_share_and_count, failing, counts[ALL])]
        for name, failing in counts.items()
    ]
    wrong, by_mistake = "What a failing query is mistaken for", ["group", *analysis.runs]
    meanings = [[group.title, group.meaning] for group in analysis.groups]
    of_groups = ["group", "of a query and another question"]
    return [
        {"title": "Which queries fail", "about": _QUERIES, "head": head, "rows": queries},
        {"title": wrong, "about": _MISTAKES, "head": by_mistake, "rows": mistakes},
        {"title": "The groups", "about": "", "head": of_groups, "rows": meanings},
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def _share_and_count(part: int, whole: int) -> str:
    return f"{_share(part, whole)} ({part:,})"


def _example(case: Case, runs: Sequence[str]) -> dict[str, Any]:
    """Return a failing query as the templates show it."""
    answers = []
    for run, answer in zip(runs, case.answers, strict=True):
        place, other = _place(case, answer)
        shown = {
            "label": _label(run, answer.mistake),
            "verdict": "wrong" if answer.failed else "right",
            "distance": f"{answer.first.distance:.3f}",
            "first": _marked(answer.first.question, case.question),
            "place": place,
            "other": other,
        }
        answers.append(shown)
    return {
        "query": case.question,
        "label": _label("paraphrase", case.groups),
        "paraphrase": _marked(case.paraphrase, case.question),
        "answers": answers,
    }


def _place(case: Case, answer: Answer) -> tuple[str, dict[str, Any] | None]:
    """Where the first known paraphrase is, and its text unless the example shows it anyway."""
    found = answer.paraphrase
    if not answer.failed:
        return "", None
    if found is None:
        return f"no known paraphrase among {DEPTH}", None
    if found.id == case.paraphrase_id:
        return f"the paraphrase at place {answer.place}", None
    return f"another paraphrase at place {answer.place}", _marked(found.question, case.question)


def _label(name: str, groups: Sequence[str] | None) -> str:
    return f"{name} ({', '.join(groups)})" if groups else name


def _marked(text: str, query: str) -> dict[str, Any]:
    """Return a question in pieces, marked if the query lacks them, and the words it lacks."""
    pieces = mark_words(" ".join(text.split()), query)
    return {"pieces": pieces, "lacks": " ".join(missing_words(text, query))}
