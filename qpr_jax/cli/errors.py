"""The command `errors`: analyze the queries at which a run fails."""

from __future__ import annotations

import logging
import pathlib
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.cli.command import Command
from qpr_jax.cli.options import NamedPath, load_index
from qpr_jax.data.splits import HELD_OUT, read_pairs
from qpr_jax.errors import UserError

if TYPE_CHECKING:
    from qpr_jax.retriever import Retriever

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="{out} is whole, or as it was before")
@click.argument("run", type=NamedPath())
@click.argument("other", required=False, type=NamedPath())
@click.option("--split", type=click.Choice(HELD_OUT), default="test")
@click.option(
    "--out", required=True, type=NamedPath(dir_okay=False), help="A .html, .md or .json file."
)
@click.option("--examples", type=click.IntRange(min=0), default=10, help="Shown of each group.")
def errors(run: str, other: str | None, split: str, out: str, examples: int) -> dict[str, Any]:
    """Show the held-out queries at which RUN fails.

    They are grouped by what differs, with examples. RUN is a work directory with splits/ and
    index/. A query fails if its first hit, without the query itself, is not a known paraphrase.
    Groups: numbers, negation, names, word order, unseen words, length. OTHER, a folder with an
    index of the same questions, is compared with RUN on the splits of RUN. Writes an HTML page that
    loads nothing from the network, Markdown, or JSON, which has all failing queries.

    \b
    Example: qpr errors runs/quora_sdml --out errors.html
             qpr errors runs/quora_sdml runs/quora_best --split validation --out errors.md
    """
    from qpr_jax.failures.analysis import (
        analyze,
        questions_of_pairs,
        require_same_questions,
    )
    from qpr_jax.failures.page import check_ending, summarize, write_failures

    check_ending(out)
    names = _names(run, other)
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    pairs = read_pairs(run, split)
    retrievers = [load_index(run), *([_load_other(other)] if other else [])]
    first = retrievers[0]
    for second in retrievers[1:]:
        require_same_questions(first.store, second.store, str(other))
    words = first.encoder.summary().words
    analysis = analyze(
        {name: retriever.search for name, retriever in zip(names, retrievers, strict=True)},
        questions_of_pairs(first.store, pairs, f"{run}: splits/{split}.tsv"),
        pairs,
        split=split,
        vocabulary=None if words is None else frozenset(words),
    )
    write_failures(out, analysis, examples=examples)
    log.info("%s: %s", out, summarize(analysis))
    failing = dict(zip(analysis.runs, analysis.failing(analysis.cases), strict=True))
    return {"out": out, "split": split, "queries": len(analysis.cases), "failing": failing}


def _load_other(folder: str) -> Retriever:
    """As `load_index`, with an error that names OTHER, not RUN."""
    try:
        return load_index(folder)
    except UserError as error:
        name = "other" if error.setting == "run" else error.setting
        raise UserError(error.what, setting=name, remedy=error.remedy) from None


def _names(run: str, other: str | None) -> list[str]:
    """Name the runs on the page by their folders, or by whole paths if those names are equal."""
    folders = [run] if other is None else [run, other]
    paths = [pathlib.Path(folder).resolve() for folder in folders]
    if len({*paths}) < len(paths):
        raise UserError(f"expected another folder than {run}, got {other}", setting="other")
    last = [path.name for path in paths]
    return last if len({*last}) == len(last) else [str(path) for path in paths]
