"""The command `clusters`: make clusters of paraphrases from logs of questions and answers."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import click

from qpr_jax.cli.options import NamedPath
from qpr_jax.data.tables import FORMATS
from qpr_jax.distant.method import LEAST, Method

log = logging.getLogger("qpr_jax")


@click.command()
@click.argument("logs", nargs=-1)
@click.option("--out", type=NamedPath(file_okay=False), help="A new folder.")
@click.option("--coherence", type=click.Choice(list(LEAST)), default="pairwise", show_default=True)
@click.option(
    "--min-coherence",
    type=click.FloatRange(0, 1),
    help=f"Remove clusters with less.  [default: {LEAST['pairwise']}, paper: {LEAST['paper']}]",
)
@click.option(
    "--pairs", default=100, show_default=True, type=click.IntRange(1), help="At most, of a cluster."
)
@click.option("--seed", default=0, show_default=True, help="Of the split and the sampled pairs.")
@click.option("--question", default="question", help="The column of questions.")
@click.option("--answer", default="answer", help="The column of answers.")
@click.option(
    "--format", type=click.Choice(FORMATS[1:]), help="If absent, the suffix of each name says."
)
@click.option("--skip-bad-rows", is_flag=True, help="Count bad rows and leave them out.")
@click.option("--spark", help="A Spark master: local[4], spark://host:7077, yarn.")
@click.option("--verdicts", type=NamedPath(), help="A sample.tsv with verdicts filled in.")
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
    verdicts: str | None,
) -> None:
    """Make clusters and pairs of paraphrases from LOGS of questions and their answers.

    Questions with the same answer are a cluster, if they are coherent enough. LOGS are files or
    folders of JSON lines, CSV, TSV (no quoting) or Parquet, also gzip or zstd. They are read into
    memory, or by Spark with --spark. Writes clusters.jsonl, pairs_{train,validation,test}.tsv and
    questions.jsonl; report.html, report.json and sample.tsv are for a person to judge the clusters.
    sample.tsv has 200 random clusters with a column for verdicts: 1 or yes if the questions have
    the same meaning, else 0 or no. --verdicts prints the share of clusters that are right.

    \b
    Example: qpr clusters logs.jsonl.gz --out clusters
             qpr clusters --verdicts clusters/sample.tsv
    """
    if (verdicts is None) is not bool(logs) or bool(logs) is (out is None):
        raise click.UsageError("expected LOGS and --out, or --verdicts alone")
    if verdicts is not None:
        from qpr_jax.distant.report import score_verdicts

        click.echo(json.dumps(score_verdicts(verdicts)))
        return
    from qpr_jax.distant import make_folder
    from qpr_jax.distant.logs import Logs, log_files

    least = LEAST[coherence] if min_coherence is None else min_coherence
    if math.isnan(least):
        raise click.UsageError("`--min-coherence`: expected 0 to 1, got nan")
    report = make_folder(
        str(out),
        Logs(log_files(logs, format=format or ""), question, answer, format or ""),
        Method(coherence, least, pairs, seed),
        skip_bad_rows=skip_bad_rows,
        spark=spark or "",
    )
    for line in _summary(report):
        log.info("%s", line)
    log.info("%s: see report.html, and judge the clusters in sample.tsv", out)


def _summary(report: dict[str, Any]) -> list[str]:
    counts = {name: f"{n:,}" for name, n in report.items() if isinstance(n, int)}
    return [
        "{rows} rows ({bad_rows} bad ones left out), {questions} questions; {undecided_questions} "
        "without a most frequent answer, {questions_alone} alone with theirs".format(**counts),
        "{clusters} clusters of {clustered_questions} questions; {clusters_removed} of "
        "{questions_removed} questions removed as not coherent enough".format(**counts),
        *(
            f"{split}: " + ", ".join(f"{count:,} {name}" for name, count in of_split.items())
            for split, of_split in report["splits"].items()
        ),
    ]
