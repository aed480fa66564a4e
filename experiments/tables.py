"""What the rows that are kept say: tables beside the paper's, intervals, orderings, plots."""

from __future__ import annotations

import csv
import pathlib
from typing import Any

import numpy as np

from experiments import quora_rows
from experiments.paper_numbers import TABLES, Table
from experiments.paper_plots import write_plots
from experiments.paper_scores import read_rows
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import SCORE_NAMES, Scores
from qpr_jax.files import read_json, write_atomically
from qpr_jax.training.config import identity
from qpr_jax.training.metric_writer import read_json_lines

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
            plot = {1: "eps", 2: "batch_size", 3: "losses"}.get(number)
            parts.append(write_table(results, number, table, scores, plot=plot))
    claims = claim_lines(CLAIMS, TABLES, rows, scores)
    ideas = _write_ideas(results, rows, scores)
    write_plots(results, rows, scores)
    discussion = results / "discussion.md"
    with write_atomically(results / "README.md", "w") as file:
        file.write(
            "\n".join(
                [
                    *_introduction(results / "rows"),
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


def _introduction(rows: pathlib.Path) -> list[str]:
    reports = (read_json(path) for path in sorted(rows.glob("[!.]*/report.json")))
    questions = next((r["data"]["questions"] for r in reports if "data" in r), None)
    return [
        "# The paper's tables on the Quora pairs",
        "",
        "Made by `python -m experiments.paper_tables`; `--rebuild` makes this page, the tables and",
        "the plots from `rows/` (and `discussion.md`) alone.",
        "",
        "All rows but `quora_sdml` and `quora_best` are `quora_sdml` with "
        f"{quora_rows.STUDY['filters']} filters and",
        "what the row says, trained until validation MRR has not risen for two epochs, ten epochs",
        f"at most ({quora_rows.TRIPLET['max_epochs']} with triplets).",
        f"The pair file used has {questions:,} questions where the official one has 537,933 ids, so"
        if questions
        else "The pair file is not known here, so",
        "there are fewer wrong answers to find: absolute scores cannot be set against the paper's,",
        "and a well-trained row scores higher. What can be compared is the order of the rows.",
        "Scores are per pair, as in the paper, through the index (20 questions, 10 probes); in",
        "brackets the 95 % interval of a bootstrap over clusters; ± is the standard deviation over",
        "seeds, where a row was trained more than once; epochs are those to the kept weights, of",
        "those trained, by the first seed.",
        "",
    ]


def _cell(scores: Scores, name: str, metric: int) -> str:
    low, high = scores.interval(name)[:, metric]
    seeds = scores.by_seed[name][:, metric]
    spread = f" ± {seeds.std(ddof=1):.3f} ({len(seeds)} seeds)" if len(seeds) > 1 else ""
    return f"{seeds.mean():.3f} [{low:.3f}, {high:.3f}]{spread}"


def write_table(
    results: pathlib.Path,
    number: int,
    table: Table,
    scores: dict[tuple[str, str], Scores],
    *,
    plot: str | None = None,
) -> list[str]:
    """Write table_N.csv and table_N.md; the lines of the latter, with a plot if there is one."""
    pairs, queries = scores[table.split, "pair"], scores[table.split, "query"]
    head = [*table.columns, "epochs"]
    for metric_name in SCORE_NAMES:
        head += [metric_name, "paper's, difference"]
    lines = [
        f"## Table {number}: {table.title}",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    records: list[dict[str, Any]] = []
    for labels, name, paper in table.rows:
        if name not in pairs.by_seed:
            continue
        epochs = _epochs(results / "rows" / name)
        cells = [*labels, epochs]
        for metric, metric_name in enumerate(SCORE_NAMES):
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
                    "epochs": epochs,
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
    lines += ["", *([f"![{plot}](plots/{plot}.png)", ""] if plot else [])]
    write_csv(results / f"table_{number}.csv", records)
    with write_atomically(results / f"table_{number}.md", "w") as file:
        file.write("\n".join(lines))
    return lines


def _epochs(row: pathlib.Path) -> str:
    """The epoch whose weights were kept, and how many were trained; empty for a lexical row."""
    if not (row / "evaluations.jsonl").exists():
        return ""
    evaluations = [evaluation["mrr"] for evaluation in read_json_lines(row / "evaluations.jsonl")]
    return f"{1 + int(np.argmax(evaluations))} of {len(evaluations)}"


def write_csv(path: pathlib.Path, records: list[dict[str, Any]]) -> None:
    """Write records of the same keys, atomically."""
    with write_atomically(path, "w") as file:
        writer = csv.DictWriter(file, records[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def verdict_of(low: float, high: float) -> str:
    """Whether an ordering holds, by the interval of the difference."""
    return "holds" if low > 0 else "does not hold" if high < 0 else "not decided"


def claim_lines(
    claims: tuple[tuple[str, int, str, str], ...],
    tables: dict[int, Table],
    rows: dict[str, Any],
    scores: dict[tuple[str, str], Scores],
) -> list[str]:
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
    for text, number, better, worse in claims:
        if better not in rows or worse not in rows:
            continue
        table = tables[number]
        found = scores[table.split, "pair"]
        paper = {name: triple for _, name, triple in table.rows}
        low, high = found.interval(better, worse)
        difference = found.mean(better) - found.mean(worse)
        cells = []
        for metric in (0, 2):
            cells.append(f"{difference[metric]:+.3f} [{low[metric]:+.3f}, {high[metric]:+.3f}]")
            theirs, others = paper[better], paper[worse]
            cells.append(f"{theirs[metric] - others[metric]:+.3f}" if theirs and others else "")
        verdicts = {verdict_of(low[metric], high[metric]) for metric in (0, 2)}
        verdict = next(v for v in ("does not hold", "not decided", "holds") if v in verdicts)
        seeds = f"{len(rows[better])}, {len(rows[worse])}"
        lines.append(f"| {text} | {number} | {' | '.join(cells)} | {seeds} | {verdict} |")
    return lines


# name -> (what it is, the settings that tell whether a config has it)
IDEAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mask": ("own-cluster candidates masked", ("mask_own_cluster",)),
    "symmetric": ("both directions", ("symmetric",)),
    "even": ("clusters drawn evenly", ("sampling",)),
    "even_mask_symmetric": (
        "the three together",
        ("sampling", "mask_own_cluster", "symmetric"),
    ),
    "n_1024": ("N = 1,024", ("batch_size",)),
    "hard_negatives": ("32 labelled non-duplicates as candidates more", ("hard_negatives",)),
    "windows_1_3_5": ("windows 1, 3 and 5, 100 filters each", ("windows",)),
    "bag_of_words": ("the sum of the word embeddings beside the maxima", ("bag_of_words",)),
    "word_dropout": ("a fifth of the words dropped", ("word_dropout",)),
    "ema": ("exponential average of the weights over 200 steps", ("ema_steps",)),
    "decay": ("the learning rate decays to 0 in ten epochs", ("learning_rate_decay",)),
    "char_ngrams": ("3-grams for words used less than 3 times", ("char_ngrams",)),
    "distance_prior": ("the distance prior", ("prior",)),
}


def _write_ideas(
    results: pathlib.Path, rows: dict[str, Any], scores: dict[tuple[str, str], Scores]
) -> list[str]:
    """Write ideas.csv; the lines of the section: each idea alone, then `quora_best`."""
    comparisons = [
        *((name, "sdml", text) for name, (text, _) in IDEAS.items()),
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
    plainly = identity(quora_rows.row_config("quora_sdml"))
    config = results / "rows" / "quora_best" / "config.json"
    best = plainly | (read_json(config) if config.exists() else {})
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
                        "metric": SCORE_NAMES[metric],
                        "per_query": round(found.mean(name)[metric], 4),
                        "difference": round(difference[metric], 4),
                        "low": round(low[metric], 4),
                        "high": round(high[metric], 4),
                    }
                )
        defining = IDEAS[name][1] if name in IDEAS else ()
        kept = all(best[key] != plainly[key] for key in defining)
        kept_cell = ("yes" if kept else "no") if defining else ""
        lines.append(f"| {text} | {' | '.join(cells)} | {kept_cell} |")
    if records:
        write_csv(results / "ideas.csv", records)
    for split in HELD_OUT:
        for name in ("quora_sdml", "quora_best"):
            if name in rows:
                found = scores[split, "query"]
                cells = [f"{m} {_cell(found, name, i)}" for i, m in enumerate(SCORE_NAMES)]
                lines += ["", f"`{name}`, {split}, per query: {', '.join(cells)}."]
    return [*lines, ""]
