"""The command that makes train, dev and test for three tasks of one pair file: splits."""

from __future__ import annotations

import logging
from typing import Any

import click

from qpr_jax.cli.command import Command
from qpr_jax.cli.options import NamedPath
from qpr_jax.data.tables import FORMATS

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="{out} is whole, or not there")
@click.argument("pairs", type=NamedPath())
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="Output folder, new.")
@click.option("--dev", default=0.05, help="Share of questions.")
@click.option("--test", default=0.1, help="Share of questions.")
@click.option("--format", type=click.Choice(FORMATS[1:]), help="Of PAIRS.")
@click.option("--skip-bad-rows", is_flag=True, help="Skip and count bad rows.")
def splits(
    pairs: str, out: str, format: str | None, skip_bad_rows: bool, dev: float, test: float
) -> dict[str, Any]:
    """Divide labeled PAIRS into train, dev and test.

    They share no question. PAIRS has question1, question2 and is_duplicate, as Quora's file.
    Duplicates, by transitivity, and questions with the same words go to one part; pairs of two
    parts are left out. Writes to --out:

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
    from qpr_jax.data.pairs import read_question_pairs
    from qpr_jax.data.task_splits import make_tasks, write_tasks
    from qpr_jax.files import refuse_existing

    refuse_existing(out)
    data = read_question_pairs(pairs, format=format or "", skip_bad_rows=skip_bad_rows)
    report = write_tasks(out, make_tasks(data, dev=dev, test=test))
    for name, counts in report["parts"].items():
        log.info("%s: %s", name, ", ".join(f"{n:,} {what}" for what, n in counts.items()))
    log.info(
        "left out: non-duplicates of two parts: %s, of one cluster: %s; pairs with blanks: %s",
        *(f"{count:,}" for count in report["dropped"].values()),
    )
    return {"out": out, **report}
