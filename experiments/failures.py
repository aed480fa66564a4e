"""What a run gets wrong, by what differs between a query and its first hit, with examples.

    python -m experiments.failures --run=runs/quora_distilled    the page results/failures
    python -m experiments.failures --rebuild                     the page from what is kept

Held-out queries of the Quora pairs are counted, and not shown, since their text may not be passed
on. Examples are of public questions that the run must not have trained on, in `qa_logs/` of
`$QPR_DATA_DIR` (`experiments/question_sets.py`).
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from experiments.question_sets import QuestionSet, read_set
from experiments.tables import table_lines
from qpr_jax.cli.program import run_program
from qpr_jax.data.splits import read_pairs
from qpr_jax.failures.analysis import (
    ALL,
    NONE,
    Analysis,
    Case,
    analyze,
    examples_by_mistake,
    mistake_counts,
    query_counts,
    questions_of_pairs,
    sample_cases,
)
from qpr_jax.failures.differences import make_groups
from qpr_jax.files import StrPath, read_json, write_atomically, write_json
from qpr_jax.retriever import Retriever
from qpr_jax.searcher import Searcher

FOLDER = pathlib.Path(__file__).parent.parent / "results" / "failures"
COUNTS = "counts.json"
QUORA = "Quora, test"
MOST, EXAMPLES = 5000, 3  # questions of a set; examples of a group
# Sets whose licence allows to show questions, and whom to name.
SHOWN = {
    "clinc150": "clinc150 (Larson et al., 2019), CC BY 3.0",
    "webquestions": "WebQuestions (Berant et al., 2013), CC BY 4.0",
    "simplequestions": "SimpleQuestions (Bordes et al., 2015), CC BY 3.0",
}
_STAGES = ("one stage", "two stages")


def count_failures(run: str) -> dict[str, Any]:
    """The counts of each set by group, and examples of those that may be shown."""
    retriever = Retriever.load(run)
    words = retriever.encoder.summary().words
    vocabulary = None if words is None else {*words}
    pairs = read_pairs(run, "test")
    texts = questions_of_pairs(retriever.index, pairs, f"{run}: splits/test.tsv")
    found = {QUORA: analyze(_searches(retriever), texts, pairs, vocabulary=vocabulary)}
    for name in SHOWN:
        found[name] = count_set(read_set(name, MOST), run, vocabulary)
    return {
        "run": pathlib.Path(run).name,
        "encoder": retriever.encoder.identity,
        "sets": {name: counts_of(analysis) for name, analysis in found.items()},
        "examples": {name: _examples(found[name]) for name in SHOWN},
    }


def count_set(questions: QuestionSet, run: StrPath, vocabulary: Set[str] | None) -> Analysis:
    """Search a set for each of its queries with the encoder of a run, through its kind of index."""
    retriever = Retriever.build(questions.texts, run=run)
    links = np.argwhere(questions.relevance.toarray())
    texts = dict(enumerate(questions.texts))
    return analyze(_searches(retriever), texts, links, vocabulary=vocabulary)


def _searches(retriever: Searcher) -> dict[str, Any]:
    """By stages: the search with the re-ranker, if there is one, and without."""
    searches = {_STAGES[0]: lambda texts, k: retriever.search(texts, k, rerank=False)}
    if retriever.second_stages.choose(None, retriever.index):
        searches[_STAGES[1]] = lambda texts, k: retriever.search(texts, k, rerank="light")
    return searches


def counts_of(analysis: Analysis) -> dict[str, Any]:
    """The queries and mistakes of each group, as they are kept."""
    return {
        "runs": analysis.runs,
        "queries": [count._asdict() for count in query_counts(analysis)],
        "mistakes": mistake_counts(analysis),
    }


def _examples(analysis: Analysis) -> dict[str, list[dict[str, str]]]:
    """Of each group, queries of its mistakes with the first hit and what was looked for."""
    return {
        group: [_example(case) for case in sample_cases(cases, EXAMPLES)]
        for group, cases in examples_by_mistake(analysis).items()
    }


def _example(case: Case) -> dict[str, str]:
    first = case.answers[0].first.question
    return {"query": case.question, "first hit": first, "looked for": case.paraphrase}


def page_lines(kept: Mapping[str, Any], discussion: str) -> list[str]:
    """The page from what `count_failures` gave."""
    meanings = {group.name: group for group in make_groups(set())}
    lines = [
        "# What goes wrong",
        "",
        f"Made by `python -m experiments.failures --run=runs/{kept['run']}`; `--rebuild` makes",
        f"this page from `{COUNTS}` (and `discussion.md`) alone. A query fails if its first hit is",
        "not known to mean the same. Some hits are right all the same: nobody has labeled all",
        "paraphrases. Of the Quora pairs only counts are shown, since their text may not be",
        "passed on.",
        "",
        discussion.rstrip(),
        "",
        "## How often a query fails, by how it differs from its closest paraphrase",
        "",
        "Failing queries of all queries of a group, in one stage and, after the slash, in two.",
        "A query can be in several groups.",
        "",
        *_count_table(kept["sets"], meanings),
        "## What it was mistaken for",
        "",
        "Failing queries in one stage, by how the query differs from its first hit.",
        "",
        *_mistake_table(kept["sets"], meanings),
    ]
    for name, groups in kept["examples"].items():
        lines += [f"## Examples: {name}", "", f"Questions of {SHOWN[name]}, as they are.", ""]
        for group, examples in groups.items():
            if examples:
                lines += [f"**{_title(group, meanings)}**", ""]
                table = [[example[key] for key in examples[0]] for example in examples]
                lines += table_lines([*examples[0]], table)
    return lines


def write_page(folder: pathlib.Path) -> None:
    """Write README.md of what is kept in the folder."""
    text = folder / "discussion.md"
    discussion = text.read_text(encoding="utf-8") if text.exists() else ""
    lines = page_lines(read_json(folder / COUNTS), discussion)
    with write_atomically(folder / "README.md", "w") as file:
        file.write("\n".join(lines))


def _title(group: str, meanings: Mapping[str, Any]) -> str:
    if group in (ALL, NONE):
        return {ALL: "all", NONE: "none of these"}[group]
    return f"{meanings[group].title}: {meanings[group].meaning}"


def _count_table(sets: Mapping[str, Any], meanings: Mapping[str, Any]) -> list[str]:
    rows: dict[str, list[str]] = {}
    for counts in sets.values():
        for count in counts["queries"]:
            shares = (f"{failing / max(1, count['queries']):.0%}" for failing in count["failing"])
            cell = f"{' / '.join(shares)} of {count['queries']:,}" if count["queries"] else ""
            rows.setdefault(count["group"], []).append(cell)
    table = [[_title(group, meanings), *cells] for group, cells in rows.items()]
    return table_lines(["", *sets], table)


def _mistake_table(sets: Mapping[str, Any], meanings: Mapping[str, Any]) -> list[str]:
    groups = next(iter(sets.values()))["mistakes"]
    table = [
        [
            _title(group, meanings),
            *(f"{counts['mistakes'][group][0]:,}" for counts in sets.values()),
        ]
        for group in groups
    ]
    return table_lines(["", *sets], table)


def main() -> int:
    """Count the failures of a run, if one is given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", help="A finished run that has not trained on the public questions."
    )
    parser.add_argument("--rebuild", action="store_true", help="The page from what is kept.")
    parser.add_argument("--results", type=pathlib.Path, default=FOLDER)
    given = parser.parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    if given.run:
        write_json(given.results / COUNTS, count_failures(given.run))
    write_page(given.results)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
