"""The page and the plots of the batch-size study, from the rows and measurements kept."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.paper_numbers import TABLES
from experiments.paper_scores import read_rows
from experiments.tables import write_csv
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import Scores
from qpr_jax.files import read_json, write_atomically
from qpr_jax.training.metric_writer import read_json_lines
from qpr_jax.training.report import save_figure

BENCH_FILE = "bench.jsonl"
LABELS = {
    "none": "rate as it is",
    "sqrt": "rate by the root of N",
    "linear": "rate by N",
    "mask": "by the root, own cluster masked",
    "stop": "by the root, to early stop",
}


def write_results(results: pathlib.Path) -> None:
    """Write README.md, rows.csv and plots/ from `rows/`, bench.jsonl and discussion.md."""
    scores, table = _records(results / "rows")
    bench = read_json_lines(results / BENCH_FILE)
    if not table and not bench:
        raise UserError(
            f"{results}: expected rows/ or {BENCH_FILE}, found neither; make some first"
        )
    lines = [
        "# Quality, time and memory against the size of a batch",
        "",
        "Made by `python -m experiments.batch_size_scaling`; `--rebuild` makes this page and the",
        "plots from `rows/`, `bench.jsonl` and `discussion.md` alone.",
        "",
    ]
    discussion = results / "discussion.md"
    if discussion.exists():
        lines += [discussion.read_text(encoding="utf-8")]
    if table:
        write_csv(results / "rows.csv", table)
        _plot_quality(results, table, scores)
        lines += _quality(table)
    if bench:
        _plot_cost(results, bench)
        lines += _cost(bench)
    with write_atomically(results / "README.md", "w") as file:
        file.write("\n".join(lines))


def _records(rows: pathlib.Path) -> tuple[Scores, list[dict[str, Any]]]:
    """Validation scores per pair through the index, and a record of each row, by N and rule."""
    scores = Scores(read_rows(rows), "validation", "pair")
    table = []
    for name in scores.by_seed:
        if name.rpartition("_")[2] not in LABELS:
            raise UserError(f"{rows / name}: not a row of this study; remove the folder")
        report, metrics = read_json(rows / name / "report.json"), rows / name / "metrics.jsonl"
        steps = read_json_lines(metrics)
        low, high = scores.interval(name)
        hit, _, mrr = scores.mean(name)
        size = report["settings"]["batch_size"]
        table.append(
            {
                "N": size,
                "rule": name.rpartition("_")[2],
                "pairs": report["timing"]["steps"] * size,
                "steps": report["timing"]["steps"],
                "H@1": round(float(hit), 4),
                "H@1 low": round(float(low[0]), 4),
                "H@1 high": round(float(high[0]), 4),
                "MRR": round(float(mrr), 4),
                "MRR low": round(float(low[2]), 4),
                "MRR high": round(float(high[2]), 4),
                "false negatives": _mean(steps, "false_negatives"),
                "rows with one": _mean(steps, "rows_with_false_negatives"),
                "pairs a second": round(report["timing"]["pairs_per_second"]),
            }
        )
    order = list(LABELS)
    return scores, sorted(table, key=lambda row: (order.index(row["rule"]), row["N"]))


def _mean(steps: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in steps]))


def _quality(table: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Quality",
        "",
        "`quora_sdml` with 150 filters. Validation, per pair, through the index; in brackets the",
        "95 % interval of a bootstrap over clusters. All rows but those to early stop saw four",
        "epochs' pairs, with a warm-up over a twentieth of the steps. False negatives: the share",
        "of a query's other candidates that are of its cluster, and the share of the queries that",
        "have one. Pairs a second are those of the run, on one core beside another training.",
        "",
        "| learning rate | N | steps | H@1 | MRR | false negatives | queries with one | pairs/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        lines.append(
            f"| {LABELS[row['rule']]} | {row['N']:,} | {row['steps']:,} "
            f"| {row['H@1']:.3f} [{row['H@1 low']:.3f}, {row['H@1 high']:.3f}] "
            f"| {row['MRR']:.3f} [{row['MRR low']:.3f}, {row['MRR high']:.3f}] "
            f"| {row['false negatives']:.3%} | {row['rows with one']:.1%} "
            f"| {row['pairs a second']:,} |"
        )
    plots = ("quality", "false_negatives")
    return [*lines, "", *(f"![{name}](plots/{name}.png)" for name in plots), ""]


def _cost(bench: list[dict[str, Any]]) -> list[str]:
    first = bench[0]
    plain = first["batch_size"] / first["seconds"]
    lines = [
        "## Time and memory of a step",
        "",
        f"`quora_sdml`, {first['filters']} filters, on {first['devices']} {first['device']} "
        "device(s): median of the steps after compiling, in a fresh process for each N, with the",
        "laying-out of the batch and its way to the device; the peak memory is of the process, the",
        "data included (`python -m experiments.batch_size_scaling --bench`).",
        "",
        "| N | seconds | pairs/s | of those at the first N | peak GiB |",
        "|---|---|---|---|---|",
    ]
    for row in bench:
        rate = row["batch_size"] / row["seconds"]
        lines.append(
            f"| {row['batch_size']:,} | {row['seconds']:.3g} | {rate:,.0f} | {rate / plain:.2f} "
            f"| {row['peak_gib']:.2f} |"
        )
    return [*lines, "", "![cost](plots/cost.png)", ""]


def _plot_quality(results: pathlib.Path, table: list[dict[str, Any]], scores: Scores) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    theirs = [(int(labels[0]), paper) for labels, _, paper in TABLES[2].rows if paper]
    for axis, metric, place in zip(figure.subplots(1, 2), ("H@1", "MRR"), (0, 2), strict=True):
        for rule, label in LABELS.items():
            rows = [row for row in table if row["rule"] == rule]
            if not rows:
                continue
            means = np.array([row[metric] for row in rows])
            ends = np.array([[row[f"{metric} low"], row[f"{metric} high"]] for row in rows]).T
            sizes = [row["N"] for row in rows]
            axis.errorbar(sizes, means, np.abs(ends - means), marker="o", capsize=2, label=label)
        axis.plot(
            [size for size, _ in theirs],
            [paper[place] for _, paper in theirs],
            "s:",
            color="0.5",
            label="the paper's, on more questions",
        )
        axis.set_xscale("log", base=2)
        axis.set(xlabel="N", title=f"{metric}, validation, per pair")
    figure.axes[0].legend(fontsize="small")
    save_figure(figure, results / "plots" / "quality.png")

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    by_size = sorted({row["N"]: row for row in table if row["rule"] != "mask"}.items())
    for axis, key, label in zip(
        figure.subplots(1, 2),
        ("false negatives", "rows with one"),
        ("share of a query's other candidates", "share of the queries that have one"),
        strict=True,
    ):
        axis.plot([size for size, _ in by_size], [100 * row[key] for _, row in by_size], marker="o")
        axis.set_xscale("log", base=2)
        axis.set(xlabel="N", ylabel="%", title=f"False negatives, {label}", ylim=(0, None))
    save_figure(figure, results / "plots" / "false_negatives.png")


def _plot_cost(results: pathlib.Path, bench: list[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    sizes = [row["batch_size"] for row in bench]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    rate, peak = figure.subplots(1, 2)
    rate.plot(sizes, [row["batch_size"] / row["seconds"] for row in bench], marker="o")
    rate.set(ylabel="pairs a second")
    peak.plot(sizes, [row["peak_gib"] for row in bench], marker="o")
    peak.set(ylabel="peak memory of the process, GiB")
    for axis in (rate, peak):
        axis.set_xscale("log", base=2)
        axis.set(xlabel="N", ylim=(0, None))
    save_figure(figure, results / "plots" / "cost.png")
