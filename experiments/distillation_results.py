"""What the rows of students say: a table, quality against speed, the transformers' own tables."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.distillation_rows import OTHERS, ROWS, UNTRAINED, Speeds
from experiments.paper_scores import read_rows
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import Scores
from qpr_jax.files import read_json, write_atomically
from qpr_jax.training.report import save_figure

TITLES = UNTRAINED | {name: row[0] for name, row in OTHERS.items()} | {"base": ROWS["base"][0]}
SPEEDS = "speeds.json"
_CUTOFFS = (1, 3, 5, 10)
_TRANSFORMERS = ("tfidf", "minilm", "minilm_triplet", "minilm_sdml", "base")


def write_results(results: pathlib.Path) -> None:
    """Make the page and the plot of `results` from its folder rows/ alone.

    And, beside it, minilm/README.md, the transformers at cut-offs.
    """
    rows = read_rows(results / "rows")
    if not rows:
        raise UserError(f"{results / 'rows'}: expected rows, found none; make some first")
    reports = {name: read_json(results / "rows" / name / "report.json") for name in rows}
    scores = {
        (split, over): Scores(rows, split, over, search="exact")
        for split in HELD_OUT
        for over in ("pair", "query")
    }
    speeds = speeds_of(results, reports)
    plot_speed(results / "quality_against_speed.png", scores["test", "query"], speeds)
    discussion = results / "discussion.md"
    lines = [
        "# What makes a student better",
        "",
        "Made by `python -m experiments.distillation`; `--rebuild` makes this page and the plot",
        "from the rows (and `discussion.md`) alone. H@1 / MRR by exact search, on the Quora pairs",
        "and the split of [quora](../quora/README.md); questions a second, from strings to",
        "vectors, of all cores (BM25 and TF-IDF: into their index).",
        "",
        *([discussion.read_text(encoding="utf-8")] if discussion.exists() else []),
        "![quality against speed](quality_against_speed.png)",
        "",
        *_table([n for n in TITLES if n in rows], TITLES, scores, reports, speeds),
    ]
    if "base" in rows:
        titles = {name: text for name, (text, _) in ROWS.items()}
        lines += [
            "## One change at a time",
            "",
            "Of the first row, the student. The last column: the difference of MRR per query",
            "on test to it, with its 95 % interval from 2,000 resamples of clusters.",
            "",
            *_table([n for n in ROWS if n in rows], titles, scores, reports, speeds, base="base"),
        ]
    lines += ["Recall, precision, MAP and NDCG at cut-offs: [minilm](../minilm/README.md)."]
    pages = {results: lines, results.parent / "minilm": _cutoff_page(reports)}
    for folder, page in pages.items():
        with write_atomically(folder / "README.md", "w") as file:
            file.write("\n".join(page).rstrip() + "\n")


def _table(
    names: list[str],
    titles: dict[str, str],
    scores: dict[tuple[str, str], Scores],
    reports: dict[str, Any],
    speeds: Speeds,
    base: str = "",
) -> list[str]:
    head = "| | validation, pairs | queries | test, pairs | queries | agreement | questions/s |"
    lines = [head + (" against base |" if base else ""), "|---" * (8 if base else 7) + "|"]
    for name in names:
        cells = []
        for split in HELD_OUT:
            for over in ("pair", "query"):
                hits, _, mrr = scores[split, over].mean(name)
                cells.append(f"{hits:.3f} / {mrr:.3f}")
        agreement = reports[name]["test"].get("agreement")
        cells += [f"{agreement:.3f}" if agreement else ""]
        cells.append(f"{speeds[name]:,.0f}" if name in speeds else "")
        if base:
            found = scores["test", "query"]
            gain = found.mean(name)[2] - found.mean(base)[2]
            low, high = found.interval(name, minus=base)[:, 2]
            cells.append("" if name == base else f"{gain:+.3f} [{low:+.3f}, {high:+.3f}]")
        lines.append(f"| {titles[name]} | {' | '.join(cells)} |")
    return [*lines, ""]


def speeds_of(results: pathlib.Path, reports: dict[str, Any]) -> Speeds:
    """Questions a second, from strings to vectors, where they were measured."""
    path = results / SPEEDS
    found: Speeds = read_json(path) if path.exists() else {}
    into_index = {
        name: report["questions_per_second"]
        for name, report in reports.items()
        if "questions_per_second" in report
    }
    return {name: rate for name, rate in (found | into_index).items() if name in reports}


def plot_speed(path: pathlib.Path, scores: Scores, speeds: Speeds) -> None:
    """MRR per query on test over questions a second; every row, the named ones by name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axis = figure.subplots()
    for name, x in speeds.items():
        y = scores.mean(name)[2]
        if name in TITLES:
            axis.plot(x, y, "o", color="C3" if name == "minilm" else "C0")
            text = TITLES[name].replace("`", "").partition(",")[0]
            axis.annotate(text, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=9)
        else:
            axis.plot(x, y, ".", color="0.6")
    axis.set(xscale="log", xlabel="questions a second, from strings to vectors", ylabel="MRR, test")
    axis.grid(alpha=0.3)
    axis.margins(x=0.2)
    save_figure(figure, path)


def _cutoff_page(reports: dict[str, Any]) -> list[str]:
    """Recall, precision, MAP and NDCG at cut-offs, per query on test, of the transformers."""
    names = [name for name in _TRANSFORMERS if name in reports]
    lines = [
        "# all-MiniLM-L6-v2, as it is and trained further",
        "",
        "Made by `python -m experiments.distillation` from the rows of the",
        "[students](../distillation/README.md). Test, per query, exact search.",
        "",
    ]
    tables: tuple[tuple[str, tuple[str, ...], list[str]], ...] = (
        ("Recall and precision", ("recall", "precision"), []),
        ("MAP, NDCG and MRR", ("map", "ndcg"), ["mrr@20"]),
    )
    for title, metrics, more in tables:
        lines += [f"## {title}", ""]
        wanted = [f"{metric}@{k}" for metric in metrics for k in _CUTOFFS] + more
        capital = {"ndcg": "NDCG", "map": "MAP", "mrr": "MRR"}
        titles = ["@".join([capital.get(m, m), k]) for m, k in (c.split("@") for c in wanted)]
        lines += [f"| | {' | '.join(titles)} |", "|---" * (1 + len(wanted)) + "|"]
        for name in names:
            test = reports[name]["test"]  # an index of its own and "exact", or that alone
            found = test.get("exact", test)["per_query"]
            cells = " | ".join(f"{found[column]:.3f}" for column in wanted)
            lines.append(f"| {TITLES[name]} | {cells} |")
        lines.append("")
    return lines
