"""The command `qpr rerank`, which scores pairs with a cross-encoder."""

from __future__ import annotations

import itertools
import logging
import sys

import click

from qpr_jax import progress
from qpr_jax.cli import options
from qpr_jax.cli.command import Command
from qpr_jax.cli.options import CHUNK, NamedPath
from qpr_jax.data.pairs import COLUMNS
from qpr_jax.data.tables import FORMATS, read_values

log = logging.getLogger("qpr_jax")

QUESTIONS = COLUMNS[:2]


@click.command(cls=Command, stopped="the lines printed are complete", prints_json=True)
@click.argument("model", type=NamedPath())
@click.argument("pairs", default="-")
@click.option("--format", type=click.Choice(FORMATS[1:]), help="The format of PAIRS.")
@click.option("--output", type=click.Choice(["jsonl", "tsv"]), default="jsonl")
def rerank(model: str, pairs: str, format: str | None, output: str) -> None:
    """Score PAIRS with a cross-encoder.

    PAIRS has the columns question1 and question2. MODEL is a run that trained a cross-encoder, or a
    folder in the format of sentence-transformers' CrossEncoder. Prints a line for each pair, in the
    order of PAIRS: question1, question2, score (the output of the model after its activation) and,
    for a run, probability (that the two mean the same, calibrated on validation pairs).

    Example: qpr rerank runs/quora_cross_encoder pairs.tsv --output tsv
    """
    from qpr_jax.reranking.cross_encoder import read_cross_encoder

    def parse(first: object, second: object) -> tuple[str, str] | None:
        return (first, second) if isinstance(first, str) and isinstance(second, str) else None

    scorer = read_cross_encoder(model)
    write = options.as_tsv if output == "tsv" else options.as_json
    found = read_values(pairs, QUESTIONS, parse, expected="two questions", format=format or "")
    rows = progress.count((pair for _, pair in found), "scored")
    calibrated = scorer.calibration is not None
    names = [*QUESTIONS, "score", *(["probability"] if calibrated else [])]
    if output == "tsv":
        click.echo("\t".join(names))
    while part := list(itertools.islice(rows, CHUNK)):
        logits = scorer.predict(part)
        values = (scorer.scores(logits), scorer.probabilities(logits))
        columns = (column.tolist() for column in values if column is not None)
        for pair, *scores in zip(part, *columns, strict=True):
            sys.stdout.write(write(dict(zip(names, (*pair, *scores), strict=True))))
