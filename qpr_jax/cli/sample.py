"""The command that writes files to try the other commands with: sample."""

from __future__ import annotations

from typing import Any

import click

from qpr_jax.cli.command import Command
from qpr_jax.cli.options import NamedPath


@click.command(cls=Command, stopped="{out} is whole, or not there")
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="Output folder, new.")
def sample(out: str) -> dict[str, Any]:
    """Write sample files: questions to a help desk, queries, pairs and logs.

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
    from qpr_jax.data.sample import write_sample

    return {"out": out, **write_sample(out)}
