"""The command that makes paraphrase data of question-answer logs: clusters."""

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
    help=f"Clusters of less are removed.  [default: {LEAST['pairwise']}, paper: {LEAST['paper']}]",
)
@click.option(
    "--pairs", default=100, show_default=True, type=click.IntRange(1), help="Of a cluster."
)
@click.option("--seed", default=0, show_default=True, help="Of the split and the draw of pairs.")
@click.option("--question", default="question", help="The column of questions.")
@click.option("--answer", default="answer", help="The column of answers.")
@click.option("--format", type=click.Choice(FORMATS[1:]), help="Else what each name ends in says.")
@click.option("--skip-bad-rows", is_flag=True, help="Count and leave out bad rows.")
@click.option("--spark", help="A Spark master: local[4], spark://host:7077, yarn; else in memory.")
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
    """Make clusters and pairs of questions of LOGS, which hold questions and their answers.

    Questions with the same answer are a cluster, unless they are too little coherent. LOGS are
    files or folders of JSON lines, CSV, TSV (no quoting) or Parquet, gzip or zstd. Writes
    clusters.jsonl, pairs_{train,validation,test}.tsv, questions.jsonl, and what a person judges
    them by: report.html, report.json, and sample.tsv, 200 random clusters with a column for
    verdicts (1 or yes where the questions mean the same, 0 or no), of which --verdicts tells the
    share that is right.

    \b
    Example: qpr clusters logs.jsonl.gz --out clusters
             qpr clusters --verdicts clusters/sample.tsv
    """
    if (verdicts is None) is not bool(logs) or bool(logs) is (out is None):
        raise click.UsageError("say LOGS and --out, or --verdicts alone")
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
    for line in _told(report):
        log.info("%s", line)
    log.info("%s: judge sample.tsv, and see report.html", out)


def _told(report: dict[str, Any]) -> list[str]:
    counted = {name: f"{n:,}" for name, n in report.items() if isinstance(n, int)}
    return [
        "{rows} rows ({bad_rows} bad ones left out), {questions} questions; {undecided_questions} "
        "had no answer most often, {questions_alone} have theirs alone".format(**counted),
        "{clusters} clusters of {clustered_questions} questions; too little coherent: "
        "{clusters_removed} of {questions_removed} questions".format(**counted),
        *(
            f"{split}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
            for split, counts in report["splits"].items()
        ),
    ]
