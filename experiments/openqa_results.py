"""What the rows on question-answer logs say: tables 5 and 6 for each filter, and orderings."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.paper_numbers import OPEN_DOMAIN
from experiments.paper_scores import read_rows
from experiments.tables import claim_lines, write_table
from qpr_jax.data.splits import HELD_OUT, SPLITS
from qpr_jax.distant.method import LEAST
from qpr_jax.distant.report import score_verdicts
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import SCORE_NAMES, Scores
from qpr_jax.files import read_json, write_atomically

CLAIMS = tuple(
    (text, number, better, worse)
    for number in OPEN_DOMAIN
    for text, better, worse in (
        ("SDML is better than random triplets", "sdml", "tl_ssd"),
        ("random triplets are better than hard ones, SSD", "tl_ssd", "tl_hard_ssd"),
        ("random triplets are better than hard ones, EUC", "tl_euc", "tl_hard_euc"),
        ("triplets: SSD is better than EUC", "tl_ssd", "tl_euc"),
        ("SDML: SSD is better than EUC", "sdml", "sdml_euc"),
    )
)


def write_results(results: pathlib.Path) -> None:
    """Make tables and the page of `results` from its folders `*/rows/` alone."""
    known = [name for name in LEAST if list((results / name / "rows").glob("[!.]*/ranks.npz"))]
    if not known:
        raise UserError(f"{results}: expected rows, found none; train some first")
    lines = [
        "# The paper's tables on question-answer logs",
        "",
        "Made by `python -m experiments.openqa_tables`; `--rebuild` makes this page and the tables",
        "from the rows (and `discussion.md`) alone. The logs are not the paper's: what can be",
        "compared is the order of the rows. Settings, scores, brackets and ± are as in",
        "[quora](../quora/README.md); all questions of the logs form the index.",
        "",
    ]
    discussion = results / "discussion.md"
    if discussion.exists():
        lines += [discussion.read_text(encoding="utf-8")]
    lines += ["## What each filter keeps", "", *_filters(results, known)]
    for name in known:
        folder = results / name
        rows = read_rows(folder / "rows")
        scores = {
            (split, over): Scores(rows, split, over)
            for split in HELD_OUT
            for over in ("pair", "query")
        }
        lines += [f"# Coherence: {name}", "", "## Which of the paper's orderings hold", ""]
        lines += [*claim_lines(CLAIMS, OPEN_DOMAIN, rows, scores), ""]
        for number, table in OPEN_DOMAIN.items():
            lines += write_table(folder, number, table, scores)
        lines += _full(rows, scores)
    with write_atomically(results / "README.md", "w") as file:
        file.write("\n".join(lines).rstrip() + "\n")


def _filters(results: pathlib.Path, known: list[str]) -> list[str]:
    """A column a filter: counts of its report, and the share of a sample judged right."""
    reports = {}
    for name in known:
        row = min((results / name / "rows").glob("[!.]*/report.json"))
        reports[name] = read_json(row)["data"]["distant_supervision"]
    counts: list[tuple[str, list[Any]]] = [
        (field.replace("_", " "), [reports[name][field] for name in known])
        for field, value in reports[known[0]].items()
        if isinstance(value, int)
    ]
    for split in SPLITS:
        for what in ("clusters", "questions", "pairs"):
            values = [reports[name]["splits"][split][what] for name in known]
            counts.append((f"{split}: {what}", values))
    lines = [f"| | {' | '.join(known)} |", "|---" * (1 + len(known)) + "|"]
    least = [f"{reports[name]['method']['least']:g}" for name in known]
    lines.append(f"| least coherence | {' | '.join(least)} |")
    lines += [f"| {what} | {' | '.join(f'{v:,}' for v in values)} |" for what, values in counts]
    verdicts = []
    for name in known:
        path = results / name / "verdicts.tsv"
        cell = ""
        if path.exists():
            found = score_verdicts(str(path))
            cell = (
                f"{found['accuracy']:.3f} [{found['low']:.3f}, {found['high']:.3f}] "
                f"of {found['judged']}"
            )
        verdicts.append(cell)
    return [*lines, f"| judged coherent, of a random sample | {' | '.join(verdicts)} |", ""]


def _full(rows: dict[str, Any], scores: dict[tuple[str, str], Scores]) -> list[str]:
    lines = []
    for split in HELD_OUT:
        for over in ("pair", "query"):
            if "openqa_sdml" in rows:
                found = scores[split, over].mean("openqa_sdml")
                told = ", ".join(f"{m} {v:.3f}" for m, v in zip(SCORE_NAMES, found, strict=True))
                lines += [f"`openqa_sdml`, {split}, per {over}: {told}.", ""]
    return lines
