"""The command that makes train, dev and test for three tasks of one pair file: splits."""

from __future__ import annotations

import logging
from typing import Any

import click

from qpr_jax.cli.command import Command
from qpr_jax.cli.options import NamedPath
from qpr_jax.data.tables import FORMATS
from qpr_jax.data.task_splits import Sizes

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="{out} is whole, or not there")
@click.argument("pairs", type=NamedPath())
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="Output folder, new.")
@click.option("--dev", type=float, default=Sizes.dev, help="Share of questions.")
@click.option("--test", type=float, default=Sizes.test, help="Share of questions.")
@click.option("--dev-queries", type=int, default=Sizes.dev_queries)
@click.option("--test-queries", type=int, default=Sizes.test_queries)
@click.option("--seed", type=int, default=Sizes.seed, help="Of all samples.")
@click.option("--format", type=click.Choice(FORMATS[1:]), help="Of PAIRS.")
@click.option("--skip-bad-rows", is_flag=True, help="Skip and count bad rows.")
def splits(
    pairs: str, out: str, format: str | None, skip_bad_rows: bool, **sizes: Any
) -> dict[str, Any]:
    """Divide labeled PAIRS into train, dev and test.

    They share no question, and serve three tasks. PAIRS has question1, question2 and is_duplicate,
    as Quora's file. Duplicates, by transitivity, and questions with the same words go to one part;
    pairs of two parts are left out. At most --dev-queries and --test-queries questions become
    queries. Writes to --out:

    \b
    classification/  pairs with their labels, of train, dev and test
    mining/          the questions of dev and of test, and all duplicates among them
    retrieval/       queries of dev and test, the questions relevant to each, and a corpus
    beir/            retrieval in BEIR's format, for qpr evaluate --beir
    report.json      counts and settings

    \b
    Example: qpr splits quora_duplicate_questions.tsv --out parts
             qpr train runs/mine parts/classification/train_pairs.tsv
             qpr evaluate runs/mine parts/classification/test_pairs.tsv --task classification \\
                 --validation parts/classification/dev_pairs.tsv
             qpr evaluate runs/mine --beir parts/beir
    """
    from qpr_jax.data.pairs import read_question_pairs
    from qpr_jax.data.task_splits import make_tasks, write_tasks
    from qpr_jax.files import refuse_existing

    checked = Sizes(**sizes)
    refuse_existing(out)
    data = read_question_pairs(pairs, format=format or "", skip_bad_rows=skip_bad_rows)
    report = write_tasks(out, make_tasks(data, checked))
    for name, counts in report["parts"].items():
        log.info("%s: %s", name, ", ".join(f"{n:,} {what}" for what, n in counts.items()))
    log.info(
        "left out: non-duplicates of two parts: %s, of one cluster: %s; pairs with blanks: %s",
        *(f"{count:,}" for count in report["dropped"].values()),
    )
    return {"out": out, **report}
