"""The file of failing queries: a page, Markdown, or JSON, which has all of them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from qpr_jax.errors import UserError
from qpr_jax.failures.analysis import Analysis, Case, table_of_mistakes, table_of_queries
from qpr_jax.failures.rendering import as_html, as_markdown
from qpr_jax.files import Path, write_atomically


def write_failures(path: Path, analysis: Analysis, *, examples: int = 10) -> None:
    """Write an analysis as the name ends in: .html, .md or .json; whole or not at all.

    examples: the most that are shown of a group; a JSON file has all failing queries.
    """
    write = _WRITERS[checked_ending(path)]
    with write_atomically(path) as file:  # a lone surrogate of a question becomes "?"
        file.write(write(analysis, examples).encode("utf-8", "replace"))


def checked_ending(path: Path) -> str:
    """What the name of a file ends in; UserError unless it can be written."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in _WRITERS:
        raise UserError(
            f"`out`: expected a name that ends in {', '.join(_WRITERS)}, got {str(path)!r}"
        )
    return ending


def as_json(analysis: Analysis, examples: int = 0) -> str:
    """The tables, and all queries at which a run fails, with their groups."""
    value = {
        "runs": analysis.runs,
        "split": analysis.split,
        "queries": len(analysis.cases),
        "groups": {group.name: group.meaning for group in analysis.groups},
        "by_query": [row._asdict() for row in table_of_queries(analysis)],
        "by_mistake": [
            {"group": name, "failing": row} for name, row in table_of_mistakes(analysis).items()
        ],
        "failing": [
            _fields(case) for case in analysis.cases if any(a.failed for a in case.answers)
        ],
    }
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _fields(case: Case) -> dict[str, Any]:
    answers = [
        {
            "failed": answer.failed,
            "place": answer.place,
            "first": answer.first._asdict(),
            "paraphrase": answer.paraphrase._asdict() if answer.paraphrase else None,
            "mistake": mistake,
        }
        for answer, mistake in zip(case.answers, case.mistakes, strict=True)
    ]
    kept = {k: v for k, v in dataclasses.asdict(case).items() if k not in ("mistakes", "answers")}
    return kept | {"answers": answers}


_WRITERS = {".html": as_html, ".md": as_markdown, ".json": as_json}
