"""The command that writes files to try the other commands with: sample."""

from __future__ import annotations

from typing import Any

import click

from qpr_jax.cli.command import Command
from qpr_jax.cli.options import NamedPath


@click.command(cls=Command, stopped="{out} is whole, or not there")
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="Output folder, new.")
@click.option("--clusters", type=int, default=600, help="Meanings; 3 questions each.")
@click.option("--seed", type=int, default=0, help="Another seed gives other questions.")
def sample(out: str, clusters: int, seed: int) -> dict[str, Any]:
    """Write generated questions to try the commands with.

    \b
    questions.csv    id, question, article; the same article means the same question
    queries.csv      question, id: other questions, and what they should find
    pairs.tsv        labeled pairs for a training, in the format of Quora's file
    logs.jsonl       question, answer: a log without labels

    \b
    Example: qpr sample --out sample
             qpr index my_index sample/questions.csv
             qpr evaluate my_index sample/queries.csv
    """
    from qpr_jax.data.sample import write_sample

    return {"out": out, **write_sample(out, clusters=clusters, seed=seed)}
