"""What the rows that are kept say: tables beside the paper's, intervals, orderings, plots."""

from __future__ import annotations

import csv
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import quora_rows
from experiments.paper_scores import METRICS, Scores, read_rows
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically
from qpr_jax.training.report import save_figure
from qpr_jax.training.settings import flatten

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Table:
    """A table of the paper: its columns, and for each row their values, our row, its scores."""

    title: str
    split: str
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], str, Triple | None], ...]


def _losses(split: str, tl_euc: Triple, tl_ssd: Triple, sdml: Triple) -> Table:
    return Table(
        f"Loss functions, {split} set",
        split,
        ("loss", "distance"),
        (
            (("TL (Rand)", "EUC"), "tl_euc", tl_euc),
            (("TL (Rand)", "SSD"), "tl_ssd", tl_ssd),
            (("SDML", "SSD"), "sdml", sdml),
            (("TL (Hard)", "EUC"), "tl_hard_euc", None),
            (("TL (Hard)", "SSD"), "tl_hard_ssd", None),
            (("TL (Hard, to the anchor)", "SSD"), "tl_hard_anchor_ssd", None),
            (("SDML", "EUC"), "sdml_euc", None),
            (("SDML, distance prior", "SSD"), "distance_prior", None),
            (("BM25", ""), "bm25", None),
            (("TF-IDF", ""), "tfidf", None),
        ),
    )


TABLES = {
    1: Table(
        "Smoothing factor, validation set",
        "validation",
        ("eps",),
        (
            (("0",), "eps_0.0", (0.5568, 0.7381, 0.6217)),
            (("0.1",), "eps_0.1", (0.5901, 0.7841, 0.6591)),
            (("0.2",), "eps_0.2", (0.6030, 0.8090, 0.6762)),
            (("0.3",), "sdml", (0.6133, 0.8113, 0.6837)),
            (("0.4",), "eps_0.4", (0.6107, 0.8144, 0.6815)),
        ),
    ),
    2: Table(
        "Batch size, validation set",
        "validation",
        ("N",),
        (
            (("32",), "n_32", (0.5389, 0.7444, 0.6103)),
            (("64",), "n_64", (0.5710, 0.7726, 0.6410)),
            (("128",), "n_128", (0.6093, 0.8085, 0.6777)),
            (("256",), "n_256", (0.6112, 0.8141, 0.6833)),
            (("512",), "sdml", (0.6133, 0.8113, 0.6837)),
            (("1024",), "n_1024", (0.6081, 0.8008, 0.6764)),
        ),
    ),
    3: _losses(
        "validation",
        (0.4742, 0.6509, 0.5359),
        (0.5763, 0.7640, 0.6421),
        (0.6133, 0.8113, 0.6837),
    ),
    4: _losses(
        "test", (0.4641, 0.6523, 0.5297), (0.5507, 0.7641, 0.6265), (0.6043, 0.8179, 0.6789)
    ),
}

# (what the paper says, the table, the better row, the worse row)
CLAIMS = (
    ("smoothing 0.1 is better than none", 1, "eps_0.1", "eps_0.0"),
    ("0.2 is better than 0.1", 1, "eps_0.2", "eps_0.1"),
    ("0.3 is better than 0.2", 1, "sdml", "eps_0.2"),
    ("0.3 is better than 0.4", 1, "sdml", "eps_0.4"),
    ("N = 64 is better than 32", 2, "n_64", "n_32"),
    ("N = 128 is better than 64", 2, "n_128", "n_64"),
    ("N = 256 is better than 128", 2, "n_256", "n_128"),
    ("N = 512 is better than 256", 2, "sdml", "n_256"),
    ("N = 512 is better than 1024", 2, "sdml", "n_1024"),
    ("triplets: SSD is better than EUC", 3, "tl_ssd", "tl_euc"),
    ("SDML is better than triplets", 3, "sdml", "tl_ssd"),
    ("triplets: SSD is better than EUC", 4, "tl_ssd", "tl_euc"),
    ("SDML is better than triplets", 4, "sdml", "tl_ssd"),
    (
        "random triplets are better than hard ones (the paper's other data)",
        3,
        "tl_ssd",
        "tl_hard_ssd",
    ),
    ("SDML: SSD is better than EUC (the paper's other data)", 3, "sdml", "sdml_euc"),
)


def write_results(results: pathlib.Path) -> None:
    """Make tables, plots and the page of `results` from its folder rows/ alone."""
    rows = read_rows(results / "rows")
    if not rows:
        raise UserError(f"{results / 'rows'}: expected rows, found none; train some first")
    scores = {
        (split, over): Scores(rows, split, over) for split in HELD_OUT for over in ("pair", "query")
    }
    parts = []
    for number, table in TABLES.items():
        if any(name in rows for _, name, _ in table.rows):
            parts.append(_write_table(results, number, table, scores))
    claims = _claims(rows, scores)
    ideas = _write_ideas(results, rows, scores)
    _plots(results, rows, scores)
    discussion = results / "discussion.md"
    with write_atomically(results / "README.md", "w") as file:
        file.write(
            "\n".join(
                [
                    *_INTRODUCTION,
                    "## Which of the paper's orderings hold",
                    "",
                    *claims,
                    "",
                    *([discussion.read_text(encoding="utf-8")] if discussion.exists() else []),
                    *ideas,
                    *[line for part in parts for line in part],
                ]
            )
        )


_INTRODUCTION = (
    "# The paper's tables on the Quora pairs",
    "",
    "Made by `python -m experiments.paper_tables`; `--rebuild` makes this page, the tables and the",
    "plots from `rows/` alone.",
    "",
    "The pair file used has 165,493 questions, about a third of the official file's, so there are",
    "fewer wrong answers to find and **absolute scores are higher than the paper's**. What can be",
    "compared is the order of the rows. Scores are per pair, as in the paper, through the index",
    "(20 questions, 10 probes); in brackets the 95 % interval of a bootstrap over clusters; ± is",
    "the standard deviation over seeds, where a row was trained more than once.",
    "",
)


def _cell(scores: Scores, name: str, metric: int) -> str:
    low, high = scores.interval(name)[:, metric]
    seeds = scores.by_seed[name][:, metric]
    spread = f" ± {seeds.std(ddof=1):.3f} ({len(seeds)} seeds)" if len(seeds) > 1 else ""
    return f"{seeds.mean():.3f} [{low:.3f}, {high:.3f}]{spread}"


def _write_table(
    results: pathlib.Path, number: int, table: Table, scores: dict[tuple[str, str], Scores]
) -> list[str]:
    """Write table_N.csv and table_N.md; the lines of the latter."""
    pairs, queries = scores[table.split, "pair"], scores[table.split, "query"]
    lines = [
        f"## Table {number}: {table.title}",
        "",
        "| "
        + " | ".join(
            [
                *table.columns,
                *(f"{m}, {w}" for m in METRICS for w in ("ours", "paper's, difference")),
            ]
        )
        + " |",
        "|---" * (len(table.columns) + 6) + "|",
    ]
    records: list[dict[str, Any]] = []
    for labels, name, paper in table.rows:
        if name not in pairs.by_seed:
            continue
        cells = list(labels)
        for metric, metric_name in enumerate(METRICS):
            mean = pairs.mean(name)[metric]
            low, high = pairs.interval(name)[:, metric]
            seeds = pairs.by_seed[name][:, metric]
            theirs = paper[metric] if paper else None
            cells.append(_cell(pairs, name, metric))
            cells.append(f"{theirs:.3f}, {mean - theirs:+.3f}" if theirs is not None else "")
            records.append(
                {
                    **dict(zip(table.columns, labels, strict=True)),
                    "row": name,
                    "metric": metric_name,
                    "ours": round(mean, 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                    "seeds": len(seeds),
                    "deviation": round(seeds.std(ddof=1), 4) if len(seeds) > 1 else "",
                    "paper": theirs if theirs is not None else "",
                    "difference": round(mean - theirs, 4) if theirs is not None else "",
                    "ours_per_query": round(queries.mean(name)[metric], 4),
                }
            )
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    _write_csv(results / f"table_{number}.csv", records)
    with write_atomically(results / f"table_{number}.md", "w") as file:
        file.write("\n".join(lines))
    return lines


def _write_csv(path: pathlib.Path, records: list[dict[str, Any]]) -> None:
    with write_atomically(path, "w") as file:
        writer = csv.DictWriter(file, records[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def _verdict(low: float, high: float) -> str:
    return "holds" if low > 0 else "does not hold" if high < 0 else "not decided"


def _claims(rows: dict[str, Any], scores: dict[tuple[str, str], Scores]) -> list[str]:
    """A line for each ordering: the difference here with its interval, the paper's, a verdict."""
    lines = [
        "A difference is of the better row minus the worse. An ordering holds where its interval",
        "is above 0 in H@1 and in MRR, does not where one is below, and is not decided otherwise.",
        "The interval is that of the questions asked, not that of another training: for that, see",
        "the spread of the seeds.",
        "",
        "| the paper | table | H@1, ours | paper's | MRR, ours | paper's | seeds | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for text, number, better, worse in CLAIMS:
        if better not in rows or worse not in rows:
            continue
        table = TABLES[number]
        found = scores[table.split, "pair"]
        paper = {name: triple for _, name, triple in table.rows}
        low, high = found.interval(better, worse)
        difference = found.mean(better) - found.mean(worse)
        cells = []
        for metric in (0, 2):
            cells.append(f"{difference[metric]:+.3f} [{low[metric]:+.3f}, {high[metric]:+.3f}]")
            theirs, others = paper[better], paper[worse]
            cells.append(f"{theirs[metric] - others[metric]:+.3f}" if theirs and others else "")
        verdicts = {_verdict(low[metric], high[metric]) for metric in (0, 2)}
        verdict = next(v for v in ("does not hold", "not decided", "holds") if v in verdicts)
        seeds = f"{len(rows[better])}, {len(rows[worse])}"
        lines.append(f"| {text} | {number} | {' | '.join(cells)} | {seeds} | {verdict} |")
    return lines


IDEAS = {
    "mask": "own-cluster candidates masked",
    "symmetric": "both directions",
    "even": "pairs drawn evenly over clusters",
    "even_mask_symmetric": "the three together",
    "n_1024": "N = 1,024",
    "hard_negatives": "labelled non-duplicates as 128 more candidates",
    "windows_1_3_5": "windows 1, 3 and 5, 200 filters each",
    "word_dropout": "a tenth of the words dropped",
    "averaging": "mean of the last 400 steps' weights",
    "word_sum": "the sum of the word embeddings beside the maxima",
    "subwords": "3-grams for words used less than 3 times",
    "distance_prior": "the distance prior",
}


def _write_ideas(
    results: pathlib.Path, rows: dict[str, Any], scores: dict[tuple[str, str], Scores]
) -> list[str]:
    """Write ideas.csv; the lines of the section: each idea alone, then `quora_best`."""
    comparisons = [
        *((name, "sdml", text) for name, text in IDEAS.items()),
        ("quora_best", "quora_sdml", "`quora_best` minus `quora_sdml`, both at full size"),
    ]
    lines = [
        "## Ideas beyond the paper, each alone",
        "",
        "Differences to the plain row of the same size (SDML, eps 0.3, N = 512), per query,",
        "through the index, with 95 % intervals.",
        "",
        "| idea | validation H@1 | MRR | test H@1 | MRR | in `quora_best` |",
        "|---|---|---|---|---|---|",
    ]
    best = flatten(quora_rows.row_config("quora_best"))
    plainly = flatten(quora_rows.row_config("quora_sdml"))
    records = []
    for name, plain, text in comparisons:
        if name not in rows or plain not in rows:
            continue
        cells = []
        for split in HELD_OUT:
            found = scores[split, "query"]
            low, high = found.interval(name, plain)
            difference = found.mean(name) - found.mean(plain)
            for metric in (0, 2):
                cells.append(f"{difference[metric]:+.3f} [{low[metric]:+.3f}, {high[metric]:+.3f}]")
                records.append(
                    {
                        "row": name,
                        "minus": plain,
                        "split": split,
                        "metric": METRICS[metric],
                        "per_query": round(found.mean(name)[metric], 4),
                        "difference": round(difference[metric], 4),
                        "low": round(low[metric], 4),
                        "high": round(high[metric], 4),
                    }
                )
        changes = quora_rows.ROWS.get(name, {})
        kept = all(best[key] != plainly[key] for key in changes)
        kept_cell = ("yes" if kept else "no") if changes else ""
        lines.append(f"| {text} | {' | '.join(cells)} | {kept_cell} |")
    if records:
        _write_csv(results / "ideas.csv", records)
    for split in HELD_OUT:
        for name in ("quora_sdml", "quora_best"):
            if name in rows:
                found = scores[split, "query"]
                cells = [f"{m} {_cell(found, name, i)}" for i, m in enumerate(METRICS)]
                lines += ["", f"`{name}`, {split}, per query: {', '.join(cells)}."]
    return [*lines, ""]


def _plots(
    results: pathlib.Path, rows: dict[str, Any], scores: dict[tuple[str, str], Scores]
) -> None:
    """eps.png, batch_size.png and losses.png: ours with intervals, the paper's beside."""
    from matplotlib.figure import Figure

    for number, name, label in ((1, "eps", "eps"), (2, "batch_size", "N")):
        table = TABLES[number]
        known = [row for row in table.rows if row[1] in rows]
        if not known:
            continue
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for axis, metric in zip(figure.subplots(1, 3), range(3), strict=True):
            values = [float(labels[0]) for labels, _, _ in known]
            found = scores["validation", "pair"]
            means = np.array([found.mean(row)[metric] for _, row, _ in known])
            ends = np.array([found.interval(row)[:, metric] for _, row, _ in known]).T
            axis.errorbar(values, means, np.abs(ends - means), marker="o", capsize=3, label="ours")
            theirs = [paper[metric] for _, _, paper in known if paper]
            axis.plot(values, theirs, "s:", color="0.5", label="the paper's, on more questions")
            axis.set(xlabel=label, title=METRICS[metric])
            if number == 2:
                axis.set_xscale("log", base=2)
        figure.axes[0].legend()
        save_figure(figure, results / "plots" / f"{name}.png")

    known = [row for row in TABLES[3].rows if row[1] in rows]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axis, metric in zip(figure.subplots(1, 2, sharey=True), (0, 2), strict=True):
        for shift, split in ((-0.2, "validation"), (0.2, "test")):
            found = scores[split, "pair"]
            places = np.arange(len(known))[::-1] + shift
            means = np.array([found.mean(row)[metric] for _, row, _ in known])
            ends = np.array([found.interval(row)[:, metric] for _, row, _ in known]).T
            axis.barh(places, means, 0.38, xerr=np.abs(ends - means), capsize=2, label=split)
        axis.set(title=f"{METRICS[metric]}, per pair", xlim=(0.4, None))
        axis.set_yticks(
            np.arange(len(known))[::-1], [" ".join(labels).strip() for labels, _, _ in known]
        )
    figure.axes[1].legend(loc="lower right")
    save_figure(figure, results / "plots" / "losses.png")
