"""Does a larger batch help? The paper stopped at 1,024 pairs; this goes on to 32,768.

    python -m experiments.batch_size_scaling              train all rows, then page and plots
    python -m experiments.batch_size_scaling --sizes=512,4096 --rules=sqrt
    python -m experiments.batch_size_scaling --bench      time and memory of a step, to 131,072;
                                                          --sizes=512 --bench measures one again

All rows of a rule see the same number of pairs. The rules say how the learning rate grows with
the batch ("none", "sqrt", "linear"); "mask" is "sqrt" with the candidates of an anchor's own
cluster masked, "stop" is "sqrt" trained to its early stop, however many pairs that takes.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.measuring import program, run
from experiments import paper_tables
from experiments.paper_numbers import TABLES
from experiments.study import Flag, Flags, Study, Trials
from experiments.tables import score_records, table_lines, write_scores
from experiments.trials import Trial, load, log
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.metric_writer import read_json_lines
from qpr_jax.training.report import save_figure

EXAMPLES = 4 * 220_306  # four epochs of the shared pair file
SIZES = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
SQRT: dict[str, Any] = {"optimizer.learning_rate_scaling": "sqrt"}
# name -> what the page calls it, its settings
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("rate as it is", {"optimizer.learning_rate_scaling": "none"}),
    "sqrt": ("rate by the root of N", SQRT),
    "linear": ("rate by N", {"optimizer.learning_rate_scaling": "linear"}),
    "mask": ("by the root, own cluster masked", SQRT | {"loss.mask_own_cluster": True}),
    "stop": ("by the root, to early stop", SQRT | {"max_epochs": 40}),
}
BENCH_FILE = "bench.jsonl"
# Of the paper's encoder at full size.
BENCH_SIZES = (512, 1024, 4096, 16_384, 32_768, 65_536, 131_072)
BENCH_PAIRS = 16_384  # in all the steps of a size that are timed, one at least
ENCODE_CHUNK = 4096


def row_config(size: int, rule: str) -> TrainConfig:
    """The settings of a row: `quora_sdml` with the filters of the paper's tables."""
    steps = max(1, round(EXAMPLES / size))
    changes = {
        **paper_tables.CHANGES,
        **RULES[rule][1],
        "batch_size": size,
        "optimizer.warmup_steps": steps // 20,
        "log_every": max(1, min(20, steps // 10)),
    }
    if rule != "stop":
        changes |= {
            "max_steps": steps,
            "early_stopping.every_steps": max(1, steps // 4),
            "early_stopping.patience": 5,  # more than there are evaluations
        }
    return load("quora_sdml", changes)


def trials(flags: Flags) -> list[Trial]:
    """The rows that the flags ask for, small batches first."""
    plain = load("quora_sdml").batch_size  # at which all rules give the same learning rate
    return [
        Trial(f"n_{size}_{rule}", row_config(size, rule))
        for size in _numbers(flags.sizes) or SIZES
        for rule in flags.rules or RULES
        if size != plain or rule not in ("none", "linear")
    ]


def _numbers(sizes: Sequence[str]) -> tuple[int, ...]:
    for size in sizes:
        if not size.isdecimal() or int(size) < 1:
            raise UserError(f"expected positive whole numbers, got {size!r}", setting="sizes")
    return tuple(map(int, sizes))


def bench_config(size: int) -> TrainConfig:
    """The settings of a step that is measured: `quora_sdml`, large batches encoded in chunks."""
    chunk = ENCODE_CHUNK if size > ENCODE_CHUNK else 0
    return load("quora_sdml", {"batch_size": size, "batch.encode_chunk": chunk})


def measure(size: int) -> dict[str, Any]:
    """Seconds of a step of `quora_sdml` at `size` pairs, and the peak memory, in this process."""
    import statistics
    import time

    import jax
    import jax.numpy as jnp

    from benchmarks.measuring import peak_gib
    from qpr_jax.data.sources import find_quora
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.stages import build_plan

    config = bench_config(size)
    plan = build_plan(config, load_dataset(config, find_quora()))
    mesh, state = plan.mesh, plan.state
    loader, train = plan.stages[0].objectives[0]
    first = loader.batch(0, mesh)
    step = train.step.compile(state, first)
    state, _ = jax.block_until_ready(step(state, first))  # the first step asks for the memory
    times = []
    for number in range(max(1, BENCH_PAIRS // size)):
        start = time.perf_counter()
        batch = loader.batch(number % loader.epoch, mesh)
        if jax.tree.map(jnp.shape, batch) != jax.tree.map(jnp.shape, first):
            continue  # a batch of another layout would have to be compiled
        state, metrics = step(state, batch)
        value = float(metrics["loss"])
        times.append(time.perf_counter() - start)
    return {
        "batch_size": size,
        "filters": config.encoder.filters,
        "encode_chunk": config.batch.encode_chunk,
        "seconds": statistics.median(times),
        "peak_gib": peak_gib(),
        "loss": value,
        "device": jax.devices()[0].device_kind,
        "devices": mesh.size,
    }


def bench(flags: Flags) -> list[str]:
    """Measure each size in a process of its own, and keep it beside those measured before.

    Sizes that were measured before are measured again only where `--sizes` names them. Returns
    the sizes that could not be measured, each with the reason.
    """
    path = flags.results / BENCH_FILE
    failed = []
    known = {row["batch_size"] for row in read_json_lines(path)}
    for size in _numbers(flags.sizes) or [size for size in BENCH_SIZES if size not in known]:
        try:
            row = run("experiments.batch_size_scaling", {"size": size})
        except UserError as error:
            log.error("N = %s: %s", f"{size:,}", error)
            failed.append(f"N = {size}: {error}")
            continue
        rate = size / row["seconds"]
        log.info(
            "N = %s: %.2f s a step, %s pairs/s, %.2f GiB",
            *(f"{size:,}", row["seconds"], f"{rate:,.0f}", row["peak_gib"]),
        )
        rows = {row["batch_size"]: row for row in read_json_lines(path)} | {size: row}
        with write_atomically(path, "w") as file:
            file.writelines(json.dumps(rows[size]) + "\n" for size in sorted(rows))
    return failed


def page(done: Trials) -> list[str]:
    """Quality against the size from the rows, and time and memory from bench.jsonl; plots."""
    table = _records(done)
    bench = read_json_lines(done.results / BENCH_FILE)
    lines: list[str] = []
    if table:
        write_scores(
            done,
            "python -m experiments.batch_size_scaling",
            score_records(done, "pair", "index", splits=("validation",)),
        )
        lines += _quality(table, done.results / "plots")
    if bench:
        lines += _cost(bench, done.results / "plots")
    return lines


def _records(done: Trials) -> list[dict[str, Any]]:
    """The cells of each row, by rule and N: validation scores per pair, through the index."""
    scores = done.scores("validation", "pair")
    reports, metrics = done.read("report.json"), done.read("metrics.jsonl")
    table = []
    for name in done.ranks:
        rule = name.rpartition("_")[2]
        if rule not in RULES:
            raise UserError(
                f"{done.workdir / name}: not a trial of this study",
                remedy="remove the folder",
            )
        report, steps = reports[name], metrics[name]
        size, timing = report["settings"]["batch_size"], report["timing"]
        count = timing["steps"]
        record = {"N": size, "rule": rule, "pairs": count * size, "steps": count}
        for metric, i in (("H@1", 0), ("MRR", 2)):
            values = scores.mean(name)[i], *scores.interval(name)[:, i]
            for suffix, value in zip(("", " low", " high"), values, strict=True):
                record[f"{metric}{suffix}"] = round(float(value), 4)
        record["false negatives"] = np.mean([step["false_negatives"] for step in steps])
        record["rows with one"] = np.mean([step["rows_with_false_negatives"] for step in steps])
        record["pairs a second"] = round(timing["pairs_per_second"])
        table.append(record)
    return sorted(table, key=lambda row: (list(RULES).index(row["rule"]), row["N"]))


def _quality(table: list[dict[str, Any]], plots: pathlib.Path) -> list[str]:
    """The rows' scores and false negatives, with their plots."""
    _plot_quality(plots / "quality.png", table)
    by_size = {row["N"]: row for row in table if row["rule"] != "mask"}
    sizes = sorted(by_size)
    _plot_pair(
        plots / "false_negatives.png",
        sizes,
        [
            (f"False negatives, {title}", "%", [100 * by_size[size][key] for size in sizes])
            for key, title in (
                ("false negatives", "share of a query's other candidates"),
                ("rows with one", "share of the queries that have one"),
            )
        ],
    )
    rows = [
        [
            RULES[row["rule"]][0],
            f"{row['N']:,}",
            f"{row['steps']:,}",
            f"{row['H@1']:.3f} [{row['H@1 low']:.3f}, {row['H@1 high']:.3f}]",
            f"{row['MRR']:.3f} [{row['MRR low']:.3f}, {row['MRR high']:.3f}]",
            f"{row['false negatives']:.3%}",
            f"{row['rows with one']:.1%}",
            f"{row['pairs a second']:,}",
        ]
        for row in table
    ]
    head = ["learning rate", "N", "steps", "H@1", "MRR"]
    head += ["false negatives", "queries with one", "pairs/s"]
    return [
        "## Quality",
        "",
        "`quora_sdml` with 150 filters. Validation, per pair, through the index; in brackets the",
        "95 % interval of a bootstrap over clusters. All rows but those to early stop saw four",
        "epochs' pairs, with a warm-up over a twentieth of the steps. False negatives: the share",
        "of a query's other candidates that are of its cluster, and the share of the queries that",
        "have one. Pairs a second are those of the run, on one core beside another training.",
        "",
        *table_lines(head, rows),
        *(f"![{name}](plots/{name}.png)" for name in ("quality", "false_negatives")),
        "",
    ]


def _cost(bench: list[dict[str, Any]], plots: pathlib.Path) -> list[str]:
    """The time and memory of a step, with their plot."""
    first = bench[0]
    rates = [row["batch_size"] / row["seconds"] for row in bench]
    peaks = [row["peak_gib"] for row in bench]
    _plot_pair(
        plots / "cost.png",
        [row["batch_size"] for row in bench],
        [("", "pairs a second", rates), ("", "peak memory of the process, GiB", peaks)],
    )
    rows = [
        [
            f"{row['batch_size']:,}",
            f"{row['seconds']:.3g}",
            f"{rate:,.0f}",
            f"{rate / rates[0]:.2f}",
            f"{row['peak_gib']:.2f}",
        ]
        for row, rate in zip(bench, rates, strict=True)
    ]
    return [
        "## Time and memory of a step",
        "",
        f"`quora_sdml`, {first['filters']} filters, on {first['devices']} {first['device']} "
        "device(s): median of the steps after compiling, in a fresh process for each N, with the",
        "laying-out of the batch and its way to the device; the peak memory is of the process, the",
        "data included (`python -m experiments.batch_size_scaling --bench`).",
        "",
        *table_lines(("N", "seconds", "pairs/s", "of those at the first N", "peak GiB"), rows),
        "![cost](plots/cost.png)",
        "",
    ]


def _plot_quality(path: pathlib.Path, table: list[dict[str, Any]]) -> None:
    """Plot H@1 and MRR against N, a curve for each rule, and the paper's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    theirs = [(int(labels[0]), paper) for labels, _, paper in TABLES[2].rows if paper]
    for axis, metric, place in zip(figure.subplots(1, 2), ("H@1", "MRR"), (0, 2), strict=True):
        for rule, (label, _) in RULES.items():
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
    save_figure(figure, path)


def _plot_pair(
    path: pathlib.Path, sizes: list[int], curves: list[tuple[str, str, list[float]]]
) -> None:
    """Plot two curves against N, side by side, each from 0; `curves` are (title, label, values)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axis, (title, label, values) in zip(figure.subplots(1, 2), curves, strict=True):
        axis.plot(sizes, values, marker="o")
        axis.set_xscale("log", base=2)
        axis.set(xlabel="N", ylabel=label, title=title, ylim=(0, None))
    save_figure(figure, path)


STUDY = Study(
    name="batch_size",
    results="batch_size",
    trials=trials,
    page=page,
    flags={
        "sizes": Flag((), "Only these batch sizes."),
        "rules": Flag((), f"Only these of {', '.join(RULES)}.", list(RULES)),
        "bench": Flag(False, "Measure a step's time and memory, train nothing."),
    },
    actions={"bench": bench},
)

if __name__ == "__main__":
    sys.exit(program(STUDY.main, measure))
