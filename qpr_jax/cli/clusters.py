"""The command that makes paraphrase data from logs of questions and answers: clusters."""

from __future__ import annotations

import json
import logging
from typing import Any

import click

from qpr_jax.cli.command import Command, Output
from qpr_jax.cli.options import FiniteRange, NamedPath
from qpr_jax.data.tables import FORMATS
from qpr_jax.distant.method import LEAST, Method

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="the output folder is whole, or not there")
@click.argument("logs", nargs=-1)
@click.option("--out", type=NamedPath(file_okay=False), help="Output folder, new.")
@click.option("--coherence", type=click.Choice(list(LEAST)), default="pairwise")
@click.option(
    "--min-coherence",
    type=FiniteRange(0, 1),
    help=f"Least of a cluster.  [default: {LEAST['pairwise']}, paper: {LEAST['paper']}]",
)
@click.option("--pairs", default=100, type=click.IntRange(1), help="Most of a cluster.")
@click.option("--seed", "split_seed", default=0, help="Of the splits and the sampled pairs.")
@click.option("--question", "question_column", default="question", help="Column of the question.")
@click.option("--answer", "answer_column", default="answer", help="Column of the answer.")
@click.option("--format", type=click.Choice(FORMATS[1:]), help="Of LOGS.  [default: by suffix]")
@click.option("--skip-bad-rows", is_flag=True, help="Skip and count bad rows.")
@click.option("--spark", help="Spark master: local[4], spark://host:7077, yarn.  [default: none]")
@click.option("--verdicts", type=NamedPath(), help="A sample.tsv with verdicts.")
def clusters(
    logs: tuple[str, ...],
    out: str | None,
    coherence: str,
    min_coherence: float | None,
    pairs: int,
    split_seed: int,
    question_column: str,
    answer_column: str,
    format: str | None,
    skip_bad_rows: bool,
    spark: str | None,
    verdicts: str | None,
) -> Output | dict[str, Any]:
    """Make training pairs from LOGS of questions and answers.

    Questions with the same answer form a cluster; clusters with a low coherence are removed. LOGS
    are files or folders of JSON lines, CSV, TSV (no quoting) or Parquet, also compressed with gzip
    or zstd. Writes clusters.jsonl, pairs_{train,validation,test}.tsv and questions.jsonl, and
    report.json, with their counts and coherence. sample.tsv has 200 random clusters and an empty
    column for verdicts: 1 or yes where the questions mean the same, 0 or no. --verdicts prints the
    share of right clusters in a sample.tsv with verdicts.

    \b
    Example: qpr clusters logs.jsonl.gz --out clusters
             qpr clusters --verdicts clusters/sample.tsv
    """
    if (verdicts is None) is not bool(logs) or bool(logs) is (out is None):
        raise click.UsageError("give LOGS and --out, or --verdicts only")
    if verdicts is not None:
        from qpr_jax.distant.report import score_verdicts

        scores = score_verdicts(verdicts)
        return Output(json.dumps(scores) + "\n", [scores])
    from qpr_jax.distant import make_folder
    from qpr_jax.distant.logs import Logs, log_files

    least = LEAST[coherence] if min_coherence is None else min_coherence
    report = make_folder(
        str(out),
        Logs(log_files(logs, format=format or ""), question_column, answer_column, format or ""),
        Method(coherence, least, pairs, split_seed),
        skip_bad_rows=skip_bad_rows,
        spark=spark or "",
    )
    for line in _summary(report):
        log.info("%s", line)
    log.info("%s: judge the clusters of sample.tsv", out)
    return {"out": out, **report}


def _summary(report: dict[str, Any]) -> list[str]:
    counts = {name: f"{n:,}" for name, n in report.items() if isinstance(n, int)}
    return [
        "{rows} rows ({bad_rows} bad ones left out), {questions} questions; {undecided_questions} "
        "have no most frequent answer, {questions_alone} do not share theirs".format(**counts),
        "{clusters} clusters of {clustered_questions} questions; removed for low coherence: "
        "{clusters_removed} of {questions_removed} questions".format(**counts),
        *(
            f"{split}: " + ", ".join(f"{count:,} {name}" for name, count in numbers.items())
            for split, numbers in report["splits"].items()
        ),
    ]
