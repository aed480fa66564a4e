"""Commands that make data for a training: clusters, splits, sample."""

from __future__ import annotations

import json
import logging
from typing import Any

import click

from qpr_jax.cli import command as cli
from qpr_jax.data.beir_tasks import write_tasks
from qpr_jax.data.columns import read_values
from qpr_jax.data.decoding import table_files
from qpr_jax.data.log_clusters import LEAST, Method, make_folder
from qpr_jax.data.logs import Logs
from qpr_jax.data.question_pairs import parse_label, read_question_pairs
from qpr_jax.errors import UserError
from qpr_jax.files import refuse_existing

log = logging.getLogger("qpr_jax")

_LEAST = f"Minimum for a cluster.  [default: {LEAST['pairwise']}, paper: {LEAST['paper']}]"
_FILL_IN = "fill in a sample.tsv of `qpr clusters`, and keep it tab-separated UTF-8"


@cli.command(stopped="{out} is complete or absent")
@cli.argument("logs", nargs=-1)
@cli.option("--out", type=cli.FOLDER, help="Output folder, new.")
@cli.option("--coherence", type=click.Choice(list(LEAST)), default="pairwise")
@cli.option("--min-coherence", type=cli.SHARE, help=_LEAST)
@cli.option("--pairs", default=100, type=cli.COUNT, help="Maximum number of pairs from a cluster.")
@cli.option(
    "--seed",
    default=0,
    type=click.IntRange(0, 2**32 - 1),
    help="Seed of the splits and of the sampled pairs.",
)
@cli.option("--question", default="question", help="Column of the question.")
@cli.option("--answer", default="answer", help="Column of the answer.")
@cli.table_format("LOGS")
@cli.skip_bad_rows
@cli.option("--spark", help="Spark master: local[4], spark://host:7077, yarn.  [default: none]")
@cli.option("--labels", type=cli.PATH, help="Print the share of right clusters of a sample.tsv.")
def clusters(
    logs: tuple[str, ...],
    out: str | None,
    coherence: str,
    min_coherence: float | None,
    pairs: int,
    seed: int,
    question: str,
    answer: str,
    format: str | None,
    skip_bad_rows: bool,
    spark: str | None,
    labels: str | None,
) -> dict[str, Any] | None:
    """Make training pairs from LOGS of questions and answers.

    LOGS are files or folders. Questions with the same answer form a cluster; clusters with a low
    coherence are removed. Writes clusters.jsonl, pairs_{train,validation,test}.tsv,
    questions.jsonl, and report.json with counts. sample.tsv has 200 random clusters and an empty
    column for labels: 1 or yes where the questions mean the same, 0 or no.

    \b
    Example: qpr clusters logs.jsonl.gz --out clusters
             qpr clusters --labels clusters/sample.tsv
    """
    if (labels is None) is not bool(logs) or bool(logs) is (out is None):
        raise click.UsageError("give LOGS and --out, or --labels only")
    if labels is not None:
        click.echo(json.dumps(score_labels(labels)))
        return None
    form, least = format or "", LEAST[coherence] if min_coherence is None else min_coherence
    report = make_folder(
        str(out),
        Logs(table_files(logs, format=form), question, answer, form),
        Method(coherence, least, pairs, seed),
        skip_bad_rows=skip_bad_rows,
        spark=spark or "",
    )
    log.info("%s", _counts({name: n for name, n in report.items() if isinstance(n, int)}))
    for name, counts in report["splits"].items():
        log.info("%s: %s", name, _counts(counts))
    log.info("the coherence of removed clusters is below `--min-coherence %g`", least)
    log.info("%s: judge the clusters of sample.tsv", out)
    return {"out": out, **report}


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in numbers.items())


@cli.command(stopped="{out} is complete or absent")
@cli.argument("pairs", type=cli.PATH)
@cli.out_folder
@cli.option("--dev", default=0.05, type=cli.PART, help="Share of the questions in dev.")
@cli.option("--test", default=0.1, type=cli.PART, help="Share of the questions in test.")
@cli.table_format("PAIRS")
@cli.skip_bad_rows
def splits(
    pairs: str, out: str, dev: float, test: float, format: str | None, skip_bad_rows: bool
) -> dict[str, Any]:
    """Divide labeled PAIRS into train, dev and test.

    These share no question. PAIRS has question1, question2 and is_duplicate, as Quora's file.
    Duplicates, by transitivity, and questions with the same words go to one part; pairs of two
    parts are left out. Writes:

    \b
    train.tsv, dev.tsv, test.tsv  pairs with their labels
    beir/                         queries of dev and test, and a corpus of all other questions
    report.json                   counts

    \b
    Example: qpr splits quora_duplicate_questions.tsv --out parts
             qpr train runs/mine parts/train.tsv
             qpr evaluate runs/mine parts/test.tsv --task classification --validation parts/dev.tsv
             qpr evaluate runs/mine --beir parts/beir
    """
    if dev + test >= 1:
        raise click.UsageError(f"--dev and --test have a sum below 1, got {dev + test:g}")
    refuse_existing(out)
    data = read_question_pairs(pairs, format=format, skip_bad_rows=skip_bad_rows)
    report = write_tasks(out, data, dev=dev, test=test)
    for name, counts in report["parts"].items():
        log.info("%s: %s", name, _counts(counts))
    more = {name: report[name] for name in ("blank_pairs", "self_pairs")}
    log.info("left out: %s", _counts(report["dropped"] | more))
    return {"out": out, **report}


@cli.command(stopped="{out} is complete or absent")
@cli.out_folder
def sample(out: str) -> dict[str, Any]:
    """Write a sample: questions, queries, pairs and logs of a help desk.

    \b
    questions.csv    id, question, product, date
    queries.csv      question, id: other wordings, and what they should find
    pairs.csv        question1, question2, is_duplicate: labeled pairs for a training
    logs.jsonl       question, answer: a log without labels

    \b
    Example: qpr sample --out sample
             qpr index my_index sample/questions.csv
             qpr evaluate my_index sample/queries.csv
    """
    from qpr_jax.data.generated_questions import write_sample

    return {"out": out, **write_sample(out)}


def score_labels(path: str) -> dict[str, Any]:
    """Return the share of judged clusters that are coherent, with Wilson's 95 % interval."""
    from qpr_jax.evaluation.scores import wilson

    def parse(label: object) -> bool | str | None:
        return parse_label(label) if str(label).strip() else ""

    columns, expected = ["label"], "a `label` 1 or yes, 0 or no, or nothing"
    found = read_values(path, columns, parse, expected=expected, format="tsv", remedy=_FILL_IN)
    cells = [*found]
    labels = [label for label in cells if isinstance(label, bool)]
    if not labels:
        what = f"{path}: expected labels, got {len(cells)} blank ones"
        raise UserError(what, remedy="fill in the column `label`")
    low, high = wilson(sum(labels) / len(labels), len(labels))
    return {
        "judged": len(labels),
        "not_judged": len(cells) - len(labels),
        "coherent": sum(labels),
        "accuracy": sum(labels) / len(labels),
        "low": low,
        "high": high,
    }
