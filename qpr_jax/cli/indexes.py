"""Commands of an index: index, search, add, remove, compact, info."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from qpr_jax import progress
from qpr_jax.cli import options
from qpr_jax.cli.command import Command, Output
from qpr_jax.cli.completion import complete_encoder, complete_factory
from qpr_jax.cli.costs import Costs, dry_run
from qpr_jax.cli.options import (
    NamedPath,
    as_json,
    chunked,
    load_index,
    payload_input,
    questions_input,
    read_input,
)
from qpr_jax.data.questions import Entry
from qpr_jax.data.tables import FORMATS, STANDARD_INPUT, input_name, read_values
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, StrPath
from qpr_jax.ids import Id, check_each, id_key, parse_key
from qpr_jax.index.milvus_server import is_address

if TYPE_CHECKING:
    from qpr_jax.retriever import Hit

log = logging.getLogger("qpr_jax")

_RUN_HELP = "The encoder's folder, or minilm.  [default: that of FOLDER, else open_student]"
_RECIPE = ("factory", "metric", "probes", "assignments")


@click.command(cls=Command, stopped="{folder} has its index of before, or the whole new one")
@click.argument("folder", type=NamedPath(file_okay=False))
@click.argument("questions", default="-")
@click.option(
    "--run",
    type=NamedPath(),
    shell_complete=complete_encoder,
    help=_RUN_HELP,
)
@click.option(
    "--documents-by",
    metavar="MODEL",
    type=NamedPath(),
    shell_complete=complete_encoder,
    help="Another encoder for QUESTIONS: the teacher of that of --run.",
)
@click.option(
    "--factory",
    shell_complete=complete_factory,
    help="Of FAISS: Flat, SQ8, HNSW32, IVF2000,Flat (or SQ8, PQ50), ...",
)
@click.option("--metric", help="l2, or ip: the inner product.")
@click.option("--probes", type=int, help="Lists that a search reads.")
@click.option("--assignments", type=int, help="Lists that a question is stored in.")
@dry_run
@payload_input
@questions_input
def index(
    folder: str,
    questions: str,
    run: str | None,
    documents_by: str | None,
    dry_run: bool,
    **how: Any,
) -> dict[str, Any]:
    """Index QUESTIONS in FOLDER, with the encoder of --run, which is copied there.

    Ids come from the input, otherwise 0, 1, 2, ...; its other columns are kept as payload and come
    back with a hit. Other options default to the run's settings. An index that is there is replaced
    when the new one is complete.

    With --documents-by a slow encoder reads QUESTIONS, once, and the fast one of --run, which
    learned its vectors, each query; both are copied.

    \b
    Example: qpr index my_index tickets.csv
             qpr index my_index questions.jsonl --run runs/quora_sdml --payload product,date
    """
    from qpr_jax.costs.indexing import index_estimate
    from qpr_jax.encoders.load import is_encoder
    from qpr_jax.encoders.packaged import default_folder
    from qpr_jax.index.documents import read_documents
    from qpr_jax.retriever import Retriever, run_encoder, run_recipe

    source = run or (folder if is_encoder(folder) else default_folder())
    given = {name: value for name in _RECIPE if (value := how.pop(name)) is not None}
    if is_address(folder):
        return _index_in_milvus(folder, questions, source, documents_by, dry_run, given, how)
    encoder = run_encoder(source)
    recipe = run_recipe(encoder, **given)
    other = read_documents(documents_by, encoder) if documents_by is not None else None
    estimate = index_estimate(folder, source, recipe, encoder, documents=other)
    costs = Costs(folder, estimate, stop=dry_run)
    if pathlib.Path(folder, "index", MANIFEST).exists() and not dry_run:
        log.info("%s: has an index, which the new one replaces with all that was added", folder)
    say = functools.cache(log.info)  # the columns, once, though a large file is read twice
    entries = costs.begin(questions, lambda: read_input(questions, say=say, **how))
    if entries is None:
        return costs.facts
    retriever = Retriever.build_in(
        *(folder, progress.count(entries, "read", costs.count), source),
        documents_by=documents_by,
        recipe=recipe,
        where=f"{input_name(questions)}, line",
        log=log.info,
    )
    costs.end()
    log.info("%s: %s questions", folder, f"{len(retriever):,}")
    facts = dataclasses.asdict(retriever.index.recipe)
    return {"folder": folder, "questions": len(retriever), **facts}


def _index_in_milvus(
    address: str,
    questions: str,
    source: StrPath,
    documents_by: str | None,
    dry_run: bool,
    given: dict[str, Any],
    how: dict[str, Any],
) -> dict[str, Any]:
    """As of `index`; the work is the server's, so what it takes is not estimated."""
    from qpr_jax.index.milvus_recipe import milvus_recipe
    from qpr_jax.retriever import Retriever, run_encoder, run_recipe

    if dry_run:
        raise UserError("expected a folder, got a collection of Milvus", setting="dry_run")
    encoder = run_encoder(source)
    # A run may ask for several lists a question, which a user has not asked Milvus for.
    more = {"assignments_given": "assignments" in given}
    recipe = milvus_recipe(run_recipe(encoder, **given), encoder.dimension, **more)
    retriever = Retriever.build_in(
        *(address, progress.count(read_input(questions, say=log.info, **how), "read"), source),
        documents_by=documents_by,
        recipe=recipe,
        where=f"{input_name(questions)}, line",
        log=log.info,
    )
    log.info("%s: %s questions", address, f"{len(retriever):,}")
    return {"folder": address, "questions": len(retriever), **dataclasses.asdict(recipe)}


@click.command(cls=Command, stopped="the lines printed are complete", prints_json=True)
@click.argument("folder", type=NamedPath())
@click.argument("queries", default="-")
@click.option("-k", default=5, type=click.IntRange(min=1), help="Questions a query.")
@click.option(
    "--query", multiple=True, help="Search for this text instead of reading QUERIES; repeatable."
)
@click.option("--output", type=click.Choice(["jsonl", "tsv"]), default="jsonl")
@options.second_stage
@questions_input
def search(
    folder: str,
    queries: str,
    k: int,
    query: tuple[str, ...],
    output: str,
    rerank: str | None,
    cross_encoder: str | None,
    **how: Any,
) -> None:
    """Print the best indexed questions for each of QUERIES, best first.

    Each line is a hit: query, id, question, distance (squared Euclidean, or, for ip, the inner
    product times -1), score, the probability that the two mean the same, if a re-ranker has scored
    the hit, and payload, if the question has one.

    Example: qpr search runs/quora_sdml --query "how can i learn python quickly" -k 3
    """
    word = options.parse_rerank(rerank)
    if cross_encoder and word != "cross_encoder":
        raise click.UsageError("--cross-encoder goes with --rerank cross_encoder only")
    retriever = load_index(folder, cross_encoder)
    entries: Iterable[Entry] = (Entry(0, None, text) for text in query)
    if not query:
        entries = read_input(queries, **how)
    line = options.as_tsv if output == "tsv" else as_json
    if output == "tsv":
        click.echo("query\tid\tquestion\tdistance\tscore\tpayload")
    typed = not query and queries == STANDARD_INPUT and sys.stdin and sys.stdin.isatty()
    # The results of a batch must fit into memory.
    batch_size = max(1, min(options.CHUNK, 1_000_000 // min(k, len(retriever) + 1)))
    for batch in chunked(entries, 1 if typed else batch_size):
        texts = [entry.question for entry in batch]
        for text, hits in zip(texts, retriever.search(texts, k, rerank=word), strict=True):
            sys.stdout.writelines(line(_hit_fields(text, hit, output)) for hit in hits)
        sys.stdout.flush()


def _hit_fields(query: str, hit: Hit, output: str) -> dict[str, object]:
    """What is printed of a hit; JSON without a payload where there is none."""
    fields = {"query": query, **hit._asdict()}
    if output == "jsonl" and hit.payload is None:
        del fields["payload"]
    return fields


@click.command(
    cls=Command,
    stopped="the lines printed are in {folder}; the others may not be",
    prints_json=True,
)
@click.argument("folder", type=NamedPath())
@click.argument("questions", default="-")
@payload_input
@questions_input
def add(folder: str, questions: str, **how: Any) -> None:
    """Add QUESTIONS to the index of FOLDER; one whose id is there replaces the old one.

    Prints a line {"id", "question"} for each when it is on disk. Questions without an id get
    numbers that no question has had.

    Example: qpr add my_index new_questions.txt
    """
    retriever = load_index(folder)
    count = 0

    def summarize() -> None:
        log.info("%s: %s added, %s questions", folder, f"{count:,}", f"{len(retriever):,}")

    try:
        for batch in chunked(progress.count(read_input(questions, say=log.info, **how), "added")):
            for some, given in _runs(batch):
                texts = [entry.question for entry in some]
                numbers = [entry.id for entry in some if entry.id is not None] if given else None
                ids = retriever.add(texts, numbers, [entry.payload for entry in some])
                count += len(ids)
                pairs = zip(ids, texts, strict=True)
                sys.stdout.writelines(as_json({"id": i, "question": text}) for i, text in pairs)
            sys.stdout.flush()
    except Exception:  # running it again would add these twice
        summarize()
        raise
    summarize()


def _runs(batch: list[Entry]) -> Iterator[tuple[list[Entry], bool]]:
    """Split into runs that all have ids or all lack them, with no repeated id."""
    run: list[Entry] = []
    seen: set[Id | None] = set()
    for entry in batch:
        key = None if entry.id is None else id_key(entry.id)
        other = bool(run) and (run[0].id is None) != (key is None)
        if other or (key is not None and key in seen):
            yield run, run[0].id is not None
            run, seen = [], set()
        run.append(entry)
        seen.add(key)
    if run:
        yield run, run[0].id is not None


@click.command(cls=Command, stopped="either all these ids were removed from {folder}, or none")
@click.argument("folder", type=NamedPath())
@click.argument("ids", default="-")
@click.option("--id", "one", multiple=True, help="Instead of reading IDS; repeatable.")
@click.option("--format", type=click.Choice(FORMATS))
@click.option("--id-column", default="id", help="Column of the id.")
@click.option("--ignore-missing", is_flag=True, help="Ignore ids that are not in the index.")
def remove(
    folder: str,
    ids: str,
    one: tuple[str, ...],
    format: str | None,
    id_column: str,
    ignore_missing: bool,
) -> dict[str, Any]:
    """Remove the questions of IDS (an id a line, or a table) from the index of FOLDER.

    If any id is missing, nothing is removed.

    Example: qpr remove my_index --id 17 --id 4
    """
    retriever = load_index(folder)
    expected = "an id: a whole number, or a string of at most 1,024 bytes"
    rows: Iterator[tuple[int, Id]] = read_values(
        *(ids, [id_column], parse_key),
        expected=expected,
        format=format or "",
        remedy="name the column with {id_column}, or another format with {format}",
    )
    given = [*map(id_key, check_each(one))] if one else [value for _, value in rows]
    count = retriever.remove(dict.fromkeys(given), ignore_missing=ignore_missing)
    log.info("%s: %s removed, %s questions", folder, f"{count:,}", f"{len(retriever):,}")
    return {"folder": folder, "removed": count, "questions": len(retriever)}


@click.command(cls=Command, stopped="{folder} holds the same questions as before")
@click.argument("folder", type=NamedPath())
@dry_run
def compact(folder: str, dry_run: bool) -> dict[str, Any]:
    """Build the index of FOLDER again: searches are fast, removed questions are gone from disk.

    Upgrades an index that an older version wrote.

    Example: qpr compact my_index
    """
    from qpr_jax.costs.indexing import index_estimate
    from qpr_jax.costs.rows import sample_store
    from qpr_jax.upgrade import upgrade_index

    if is_address(folder):
        load_index(folder).compact(log.info)
        return {"folder": folder, "upgraded": False}
    if not dry_run and upgrade_index(folder, log.info):
        return {"folder": folder, "upgraded": True}
    retriever = load_index(folder)
    index = retriever.index
    how = index.requested, retriever.encoder, index.documents
    estimate = index_estimate(folder, folder, *how)
    costs = Costs(folder, estimate, stop=dry_run)
    if len(index) and not costs.begin_sample(sample_store(index.store)):
        return costs.facts
    retriever.compact(log.info)
    costs.end()
    return {"folder": folder, "upgraded": False}


@click.command(cls=Command, stopped="nothing was changed")
@click.argument("folder", type=NamedPath())
def info(folder: str) -> Output:
    """Print what FOLDER holds, as JSON, after checking all its files.

    Example: qpr info my_index
    """
    from qpr_jax.facts import index_facts

    facts = index_facts(folder)
    return Output(json.dumps(facts, indent=2) + "\n", [facts])
