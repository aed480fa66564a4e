"""Commands of an index: index, search, add, remove, compact, info."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from qpr_jax import kinds
from qpr_jax.cli import command as cli
from qpr_jax.data.columns import listed, read_values
from qpr_jax.data.decoding import FORMATS
from qpr_jax.data.entries import EXPECTED, Entry, Id, id_key, parse_key
from qpr_jax.data.tables import Table
from qpr_jax.data.typed_rows import STANDARD_INPUT, input_name
from qpr_jax.errors import UserError, counted, shortened
from qpr_jax.running import with_progress

log = logging.getLogger("qpr_jax")

_ENCODER = "Name or folder.  [default: that of FOLDER; minilm; above 50,000 rows open_student]"
_CLEAN = "Leave out HTML and shared sentences.  [default: --clean]"
_RERANK = "Order of the first hits.  [default: score, if there is one]"


def _check_factory(factory: str) -> None:
    from qpr_jax.index.protocol import AUTO, parse_factory

    if factory != AUTO:
        parse_factory(factory)


@cli.command(stopped="{folder} keeps its old index or has the new one")
@cli.argument("folder", type=cli.FOLDER)
@cli.several_files
@cli.option("--encoder", type=cli.PATH, help=_ENCODER)
@cli.option(
    "--factory",
    callback=cli.checked(_check_factory),
    help="FAISS index: auto, Flat, HNSW32, IVF2000,Flat (or SQ8, PQ50).",
)
@cli.option("--metric", type=click.Choice(["l2", "ip"]), help="ip: the inner product.")
@cli.option("--nprobe", type=click.IntRange(1, 10**6), help="Lists that a search probes.")
@cli.option("--vectors", type=click.Choice(["float32", "float16"]), help="float16: half the disk.")
@cli.option("--clean/--no-clean", default=None, help=_CLEAN)
@cli.questions_input(ids=True, payload=True, texts=True)
def index(
    folder: str,
    questions: tuple[str, ...],
    encoder: str | None,
    factory: str | None,
    metric: str | None,
    nprobe: int | None,
    vectors: str | None,
    clean: bool | None,
    read: cli.Read,
) -> dict[str, Any]:
    """Index QUESTIONS, files or folders, in FOLDER.

    The encoder is copied to FOLDER. Ids come from the input, otherwise 0, 1, 2, ...; its other
    columns are kept as payload and come back with a hit. Other options default to the settings of
    the encoder. The old index of FOLDER is replaced when the new one is complete. FOLDER may be a
    collection, milvus://HOST:19530/NAME.

    \b
    Example: qpr index my_index tickets.csv
             qpr index my_index questions.jsonl --encoder runs/quora_sdml --payload product,date
    """
    from qpr_jax.locations import present_encoder
    from qpr_jax.retriever import Retriever

    index_config = {"factory": factory, "metric": metric, "nprobe": nprobe, "vectors": vectors}
    index_config["clean"] = clean
    table = cli.read_files(questions, read)
    table.label = "read"
    retriever = Retriever.build(
        table,
        encoder=present_encoder(folder) if encoder is None else encoder,
        location=folder,
        index_config={name: value for name, value in index_config.items() if value is not None},
    )
    log.info("%s: %s", folder, counted(len(retriever), "question"))
    facts = dataclasses.asdict(retriever.store.index_config)
    return {"folder": folder, "questions": len(retriever), **facts}


@cli.command(stopped="the lines printed are complete", prints_json=True)
@cli.argument("folder", type=cli.PATH)
@cli.argument("queries", default="-", type=cli.PATH)
@cli.option("-k", default=5, type=cli.COUNT, help="Hits per query.")
@cli.option("--query", multiple=True, help="A text, instead of QUERIES; repeatable.")
@cli.lines_output
@cli.option("--rerank", type=click.Choice(["false", "cross_encoder"]), help=_RERANK)
@cli.option("--cross-encoder", type=cli.PATH, help="Folder of a cross-encoder.")
@cli.option("--distinct", is_flag=True, help="Of hits with equal texts, print the first.")
@cli.option("--min-score", type=cli.SHARE, help="Leave out hits with a lower score or none.")
@cli.questions_input(ids=True)
def search(
    folder: str,
    queries: str,
    k: int,
    query: tuple[str, ...],
    output: str,
    rerank: str | None,
    cross_encoder: str | None,
    distinct: bool,
    min_score: float | None,
    read: cli.Read,
) -> None:
    """Print the best indexed questions for each of QUERIES.

    QUERIES is a text, a file, or - for standard input. Each line that is printed is a hit, the best
    first. It has the query, and the id, question and payload (other columns) of the hit. The score
    says how likely the two mean the same, from 0 to 1. The distance is 0 for equal texts, and about
    2 for unrelated ones.

    \b
    Example: qpr search runs/quora_sdml "how can i learn python quickly" -k 3
             qpr search my_index new_tickets.csv --id-column ticket --output tsv
    """
    from qpr_jax.index.protocol import Hit

    of_files = ("queries", "id_column", "no_ids", "format", "text_column", "skip_bad_rows")
    if query and (other := cli.option_on_line(*of_files)):
        raise click.UsageError(f"give {other} or --query, not both")
    word: Any = False if rerank == "false" else rerank
    if cross_encoder and word != "cross_encoder":
        raise click.UsageError("--cross-encoder goes with --rerank cross_encoder only")
    retriever = cli.load_index(folder, cross_encoder)
    if not query and _is_text(queries):
        query = (queries,)
    entries: Iterable[Entry] = [Entry(0, None, text) for text in query]
    # The results of a batch must fit into memory.
    size = max(1, min(cli.CHUNK, 1_000_000 // min(k, len(retriever) + 1)))
    if not query:
        entries = cli.read_files([queries], read)
        if queries == STANDARD_INPUT and sys.stdin and sys.stdin.isatty():
            size = 1
    find = functools.partial(
        retriever.search, k=k, rerank=word, distinct=distinct, min_score=min_score
    )
    columns, without, asked = retriever.store.index_config.text_columns, list[str](), 0
    header = ("query", "query_id", *Hit._fields)[: None if columns else -1]

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal asked
        for batch in cli.chunked(entries, size):
            asked += len(batch)
            found = find([entry.question for entry in batch])
            for entry, hits in zip(batch, found, strict=True):
                without.extend([entry.question] * (not hits))
                for hit in hits:
                    fields = dict(zip(header, (entry.question, entry.id, *hit), strict=False))
                    for name in ("query_id", "payload", "column"):
                        if output == "jsonl" and fields.get(name) is None:
                            fields.pop(name, None)
                    yield fields
            sys.stdout.flush()

    sys.stdout.writelines(cli.as_lines(rows(), output, header))
    if not asked:
        raise UserError(f"{input_name(queries)}: expected queries, got none")
    if without:
        least = "" if min_score is None else f" of a score of {min_score:g} or more"
        more = f" and {counted(len(without) - 1, 'other query')}" if without[1:] else ""
        step = "" if min_score is None else "; a lower --min-score shows the nearest"
        log.info('no hits%s for "%s"%s%s', least, shortened(without[0]), more, step)


def _is_text(queries: str) -> bool:
    """Return whether this is a query, not a file; UserError for the name of a file that is gone."""
    has_suffix = re.fullmatch(r"\S*(/\S*|\.\w+)", queries) is not None
    if has_suffix and not os.path.exists(queries):
        what = f"{queries}: found no such file{kinds.similar_path(queries, kinds.TABLE)}"
        raise UserError(what, remedy="name a file, or use --query")
    is_file = os.path.exists(queries) and not os.path.isdir(queries)
    if is_file and not has_suffix:
        log.info("queries: the lines of the file %s", queries)
    if os.path.isdir(queries):
        log.info("query: the text %s, not the folder of this name", queries)
    return bool(queries.strip()) and not (is_file or has_suffix or queries == STANDARD_INPUT)


@cli.command(stopped="the lines printed are in {folder}; the others may not be", prints_json=True)
@cli.argument("folder", type=cli.PATH)
@cli.several_files
@cli.questions_input(ids=True, payload=True, texts=True)
def add(folder: str, questions: tuple[str, ...], read: cli.Read) -> None:
    """Add QUESTIONS to the index of FOLDER.

    A question whose id is there replaces the old one. Prints a line {"id", "question"} for each
    when it is on disk. Questions without an id get numbers that no question has had.

    Example: qpr add my_index new_questions.txt
    """
    from qpr_jax.index.protocol import check_text_columns

    retriever = cli.load_index(folder)
    index_config = retriever.store.index_config
    table = cli.read_files(questions, functools.partial(read, like=index_config.columns))
    check_text_columns(index_config, table.named.more)
    count = replaced = 0
    try:
        for batch in cli.chunked(with_progress(table, "added")):
            _require_ids(folder, index_config.id_column, read, table)
            for _, group in itertools.groupby(batch, lambda entry: entry.id is None):
                some = [*group]
                if keys := [id_key(entry.id) for entry in some if entry.id is not None]:
                    some = [*dict(zip(keys, some, strict=True)).values()]  # the last of each id
                there = retriever.store.get([entry.id for entry in some if entry.id is not None])
                ids = retriever.add(some)
                replaced += sum(question is not None for question in there)
                count += len(ids)
                rows = zip(ids, (entry.question for entry in some), strict=True)
                lines = cli.as_lines(({"id": i, "question": text} for i, text in rows), "jsonl")
                sys.stdout.writelines(lines)
            sys.stdout.flush()
    finally:  # after an error, too: the same command would add these twice
        added, now = f"{count - replaced:,} added", counted(len(retriever), "question")
        log.info("%s: %s, %s replaced, %s", folder, added, f"{replaced:,}", now)


def _require_ids(folder: str, name: str, read: cli.Read, table: Table) -> None:
    """UserError where a table of several columns lacks that of the ids of an index."""
    chosen, asked = table.chosen, read.keywords["id"]
    if name and chosen.names[1:] and not chosen.id and asked == "":
        what = f"{table.where.rpartition(',')[0]}: expected the column of ids `{name}`, as in "
        what += f"{folder}, got {listed(chosen.names)}"
        remedy = "name another with `--id-column`, or number the rows with `--no-ids`"
        raise UserError(what, remedy=remedy)


@cli.command(stopped="either all these ids were removed from {folder}, or none")
@cli.argument("folder", type=cli.PATH)
@cli.argument("ids", default="-")
@cli.option("--id", "one", multiple=True, help="An id, instead of IDS; repeatable.")
@cli.option("--format", type=click.Choice(FORMATS))
@cli.option("--id-column", default="id", help="Column of the id.")
@cli.option("--ignore-missing", is_flag=True, help="Ignore ids that are not in the index.")
def remove(
    folder: str,
    ids: str,
    one: tuple[str, ...],
    format: str | None,
    id_column: str,
    ignore_missing: bool,
) -> dict[str, Any]:
    """Remove the questions of IDS from the index of FOLDER.

    IDS is a file with an id a line, or a table. If any id is missing, nothing is removed.

    Example: qpr remove my_index --id 17 --id 4
    """
    if one and (other := cli.option_on_line("ids", "format", "id_column")):
        raise click.UsageError(f"give {other} or --id, not both")
    if ids != "-" and not one and not os.path.exists(ids):
        what = f"{ids}: found no such file{kinds.similar_path(ids, kinds.TABLE)}"
        raise UserError(what, remedy="for an id write `--id`")
    retriever = cli.load_index(folder)
    remedy = "name the column with `--id-column`, or another format with `--format`"
    read: Iterator[Id] = read_values(
        ids, [id_column], parse_key, expected=EXPECTED, format=format or "", remedy=remedy
    )
    named = dict.fromkeys(map(id_key, one) if one else read)
    count = retriever.remove(named, ignore_missing=ignore_missing)
    left = counted(len(retriever), "question")
    log.info("%s: %s removed, %s", folder, f"{count:,}", left)
    return {"folder": folder, "removed": count, "questions": len(retriever)}


@cli.command(stopped="{folder} holds the same questions as before")
@cli.argument("folder", type=cli.PATH)
def compact(folder: str) -> dict[str, Any]:
    """Rebuild the index of FOLDER without removed questions.

    It is built from the stored vectors: nothing is encoded. Searches become fast again after many
    additions.

    Example: qpr compact my_index
    """
    retriever = cli.load_index(folder)
    retriever.compact()
    log.info("%s: %s", folder, counted(len(retriever), "question"))
    return {"folder": folder, "questions": len(retriever)}


@cli.command(stopped="nothing was changed", prints_json=True)
@cli.argument("folder", type=cli.PATH)
def info(folder: str) -> dict[str, Any]:
    """Check all files of FOLDER and print what it holds.

    Example: qpr info my_index
    """
    from qpr_jax.locations import model_facts

    retriever = cli.load_index(folder)
    store, encoder = retriever.store, retriever.encoder
    return {
        "questions": len(store),
        **dataclasses.asdict(store.index_config),
        **store.facts(),
        "shared": None if store.cleaner.shared is None else [*store.cleaner.shared],
        "dimension": encoder.dimension,
        "vocabulary": encoder.summary().vocabulary_size,
        "encoder": encoder.fingerprint,
        "pair_model": model_facts(retriever.pair_model),
        "integrity_check": "ok",
    }
