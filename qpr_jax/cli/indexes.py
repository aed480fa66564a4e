"""Commands of an index: index, search, add, remove, compact, info."""

from __future__ import annotations

import json
import logging
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from qpr_jax import progress
from qpr_jax.cli import options
from qpr_jax.cli.options import NamedPath, as_json, chunked, load_index, questions_input, read_input
from qpr_jax.data.questions import Entry
from qpr_jax.data.tables import FORMATS, STANDARD_INPUT, input_name, read_values
from qpr_jax.ids import LARGEST_ID, parse_id

log = logging.getLogger("qpr_jax")

_RECIPE = ("factory", "metric", "probes", "assignments")


@click.command()
@click.argument("folder", type=NamedPath(file_okay=False))
@click.argument("questions", default="-")
@click.option("--run", required=True, type=NamedPath(), help="The encoder's folder, or minilm.")
@click.option("--factory", help="Of FAISS: Flat, SQ8, HNSW32, IVF2000,Flat (or SQ8, PQ50), ...")
@click.option("--metric", help="l2, or ip: the inner product.")
@click.option("--probes", type=int, help="Lists that a search reads.")
@click.option("--assignments", type=int, help="Lists that a question is stored in.")
@questions_input
def index(folder: str, questions: str, run: str, **how: Any) -> None:
    """Index QUESTIONS in FOLDER, with the encoder of --run, which is copied there.

    Ids come from the input, otherwise 0, 1, 2, ...; other options default to the run's settings.
    An index that is there is replaced when the new one is complete.

    Example: qpr index my_index questions.jsonl --run runs/quora_sdml
    """
    from qpr_jax.retriever import Retriever, run_encoder, run_recipe

    given = {name: value for name in _RECIPE if (value := how.pop(name)) is not None}
    recipe = run_recipe(run_encoder(run), **given)
    entries = progress.count(read_input(questions, **how), "read")
    retriever = Retriever.build_in(
        folder, entries, run=run, recipe=recipe, source=input_name(questions), log=log.info
    )
    log.info("%s: %s questions", folder, f"{len(retriever):,}")


@click.command()
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
    product times -1) and score, the probability that the two mean the same, if a re-ranker has
    scored the hit.

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
        click.echo("query\tid\tquestion\tdistance\tscore")
    typed = not query and queries == STANDARD_INPUT and sys.stdin and sys.stdin.isatty()
    # The results of a batch must fit into memory.
    batch_size = max(1, min(options.CHUNK, 1_000_000 // min(k, len(retriever) + 1)))
    for batch in chunked(entries, 1 if typed else batch_size):
        texts = [entry.question for entry in batch]
        for text, hits in zip(texts, retriever.search(texts, k, rerank=word), strict=True):
            sys.stdout.writelines(line({"query": text, **hit._asdict()}) for hit in hits)
        sys.stdout.flush()


@click.command()
@click.argument("folder", type=NamedPath())
@click.argument("questions", default="-")
@questions_input
def add(folder: str, questions: str, **how: Any) -> None:
    """Add QUESTIONS to the index of FOLDER; one whose id is there replaces the old one.

    Prints a line {"id", "question"} for each when it is on disk. Questions without an id get
    numbers that no question has had.

    Example: qpr add my_index new_questions.txt
    """
    retriever = load_index(folder)
    count = 0
    try:
        for batch in chunked(progress.count(read_input(questions, **how), "added")):
            for some, given in _runs(batch):
                texts = [entry.question for entry in some]
                ids = retriever.add(texts, [entry.id for entry in some] if given else None)  # type: ignore[misc]
                count += len(ids)
                pairs = zip(ids, texts, strict=True)
                sys.stdout.writelines(as_json({"id": i, "question": text}) for i, text in pairs)
            sys.stdout.flush()
    finally:  # also if interrupted: running it again would add these twice
        log.info("%s: %s added, %s questions", folder, f"{count:,}", f"{len(retriever):,}")


def _runs(batch: list[Entry]) -> Iterator[tuple[list[Entry], bool]]:
    """Split into runs that all have ids or all lack them, with no repeated id."""
    run: list[Entry] = []
    seen: set[int | None] = set()
    for entry in batch:
        other = bool(run) and (run[0].id is None) != (entry.id is None)
        if other or (entry.id is not None and entry.id in seen):
            yield run, run[0].id is not None
            run, seen = [], set()
        run.append(entry)
        seen.add(entry.id)
    if run:
        yield run, run[0].id is not None


@click.command()
@click.argument("folder", type=NamedPath())
@click.argument("ids", default="-")
@click.option("--id", "one", multiple=True, type=int, help="Instead of reading IDS; repeatable.")
@click.option("--format", type=click.Choice(FORMATS))
@click.option("--ignore-missing", is_flag=True, help="Ignore ids that are not in the index.")
def remove(
    folder: str, ids: str, one: tuple[int, ...], format: str | None, ignore_missing: bool
) -> None:
    """Remove the questions of IDS (an id a line, or a column `id`) from the index of FOLDER.

    If any id is missing, nothing is removed.

    Example: qpr remove my_index --id 17 --id 4
    """
    retriever = load_index(folder)
    expected = f"an id, 0 to {LARGEST_ID}"
    rows = read_values(ids, ["id"], parse_id, expected=expected, format=format or "")
    given = one or [value for _, value in rows]
    count = retriever.remove(dict.fromkeys(given), ignore_missing=ignore_missing)
    log.info("%s: %s removed, %s questions", folder, f"{count:,}", f"{len(retriever):,}")


@click.command()
@click.argument("folder", type=NamedPath())
def compact(folder: str) -> None:
    """Build the index of FOLDER again: searches are fast, removed questions are gone from disk.

    Upgrades an index that an older version wrote.

    Example: qpr compact my_index
    """
    from qpr_jax.retriever import upgrade_index

    if not upgrade_index(folder, log.info):
        load_index(folder).compact(log.info)


@click.command()
@click.argument("folder", type=NamedPath())
def info(folder: str) -> None:
    """Print what FOLDER holds, as JSON, after checking all its files.

    Example: qpr info my_index
    """
    retriever = load_index(folder)
    index, encoder, recipe = retriever.index, retriever.encoder, retriever.index.recipe
    index.store.check_integrity()
    removed, added = index.store.counts()
    size = sum(p.stat().st_size for p in pathlib.Path(folder, "index").iterdir() if p.is_file())
    facts = {
        **{"questions": len(retriever), "removed": removed, "added": added},
        **{name: getattr(recipe, name) for name in _RECIPE},
        "recall@10": round(index.vectors.recall, 4),
        "dimension": encoder.dimension,
        "vocabulary": encoder.summary().vocabulary_size,
        "encoder": encoder.identity,
        "rerankers": retriever.second_stages.facts(),
        "index_bytes": size,
        "integrity_check": "ok",
    }
    click.echo(json.dumps(facts, indent=2))
