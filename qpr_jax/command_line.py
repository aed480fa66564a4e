"""The command `qpr`: train, encode, index, search and keep an index up to date.

Exit codes: 0 done; 1 a mistake that the user can put right (one line says which), or nobody reads
the output any more; 2 a wrong command or option; 128 and the signal's number where a signal came.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from qpr_jax.console import counted, told_in_one_line, use_huge_pages
from qpr_jax.data.questions import (
    FORMATS,
    STANDARD_INPUT,
    Entry,
    parse_id,
    read_questions,
    read_rows,
)
from qpr_jax.errors import Interrupted, UserError

log = logging.getLogger("qpr_jax")

_BATCH = 1024  # questions that are searched or added together
Command = Callable[..., Any]


def _input(command: Command) -> Command:
    """The options of a command that reads questions."""
    for option in reversed(
        (
            click.option(
                "--format",
                type=click.Choice(FORMATS),
                help="Of the input; else what its name ends in says, else a question a line.",
            ),
            click.option("--column", default="question", help="Where the question stands."),
            click.option("--skip-bad-rows", is_flag=True, help="Count and leave out bad rows."),
        )
    ):
        command = option(command)
    return command


def _entries(path: str, format: str | None, column: str, skip_bad_rows: bool) -> Iterator[Entry]:
    return read_questions(
        path, format=format or "", column=column, skip_bad_rows=skip_bad_rows, log=log.info
    )


def _batches(entries: Iterable[Entry], size: int = _BATCH) -> Iterator[list[Entry]]:
    stream = iter(entries)
    return iter(lambda: list(itertools.islice(stream, size)), [])


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="qpr_jax")
def qpr() -> None:
    """Find the questions already asked that mean the same.

    FOLDER is what `qpr train`, `python -m experiments.main` or `qpr index` made. Questions are
    read from files or, for "-", from standard input: lines, TSV, CSV or JSON lines (the last three
    with `question` and, if you like, `id`), gzip too.
    """


@qpr.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("pairs", type=click.Path())
@click.option("--config", type=click.Path(), help="Settings as TOML; see training/settings.py.")
def train(folder: str, pairs: str, config: str | None) -> int:
    """Train on a file of labelled PAIRS, then index and score its questions, in FOLDER.

    PAIRS is in the format of Quora's question pairs. The same command goes on after a kill.

    Example: qpr train runs/mine pairs.tsv --config mine.toml
    """
    use_huge_pages()
    from qpr_jax.training.run import train_and_evaluate
    from qpr_jax.training.settings import default_settings, from_toml

    settings = from_toml(config) if config else default_settings()
    settings.data.path = pairs
    try:
        train_and_evaluate(settings, folder)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


@qpr.command()
@click.argument("folder", type=click.Path())
@click.argument("questions", default="-")
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="A .npy file.")
@_input
def encode(folder: str, questions: str, out: str, **how: Any) -> None:
    """Write the vectors of QUESTIONS, float32 [n, d] in their order, to a .npy file.

    NumPy maps it with np.load(OUT, mmap_mode="r"). The same command goes on after a kill.

    Example: qpr encode runs/quora_sdml questions.tsv --out vectors.npy
    """
    from qpr_jax.retrieval.vectors_file import encode_to_file
    from qpr_jax.retriever import run_encoder

    encoder = run_encoder(folder)
    entries = (entry.question for entry in counted(_entries(questions, **how), "encoded"))
    rows = encode_to_file(
        out,
        entries,
        encoder.encode,
        dimension=encoder.dimension,
        encoder=encoder.identity,
        log=log.info,
    )
    log.info("%s: %s vectors of %d numbers", out, f"{rows:,}", encoder.dimension)


@qpr.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("questions", default="-")
@click.option("--run", required=True, type=click.Path(), help="The folder of the encoder.")
@click.option("--factory", help="Of FAISS: Flat, SQ8, HNSW32, IVF2000,Flat (or SQ8, PQ50), ...")
@click.option("--metric", help="l2, or ip: the inner product.")
@click.option("--probes", type=int, help="Lists that a search reads.")
@click.option("--assignments", type=int, help="Lists that a question is stored in.")
@_input
def index(folder: str, questions: str, run: str, **how: Any) -> None:
    """Index QUESTIONS in FOLDER, with the encoder of --run, which is copied there.

    Ids are those of the input, or 0, 1, 2, ... where it has none. What is not given of the recipe
    is as in the run. An index that is there is replaced, when the new one is whole.

    Example: qpr index my_index questions.jsonl --run runs/quora_sdml
    """
    from qpr_jax.retriever import Retriever, run_encoder, run_recipe

    names = ("factory", "metric", "probes", "assignments")
    given = {name: value for name in names if (value := how.pop(name)) is not None}
    recipe = run_recipe(run_encoder(run), **given)
    entries = counted(_entries(questions, **how), "read")
    retriever = Retriever.build_in(folder, entries, run=run, recipe=recipe, log=log.info)
    log.info("%s: %s questions", folder, f"{len(retriever):,}")


@qpr.command()
@click.argument("folder", type=click.Path())
@click.argument("queries", default="-")
@click.option("-k", default=5, type=click.IntRange(min=1), help="Questions a query.")
@click.option("--query", multiple=True, help="Ask this instead of reading QUERIES; repeatable.")
@click.option("--output", type=click.Choice(["jsonl", "tsv"]), default="jsonl")
@_input
def search(
    folder: str, queries: str, k: int, query: tuple[str, ...], output: str, **how: Any
) -> None:
    """Print the indexed questions nearest to each of QUERIES, nearest first.

    A line a question found: query, id, question, distance (squared Euclidean).

    Example: qpr search runs/quora_sdml --query "how can i learn python quickly" -k 3
    """
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(folder)
    asked: Iterable[Entry] = (Entry(0, None, text) for text in query)
    if not query:
        asked = _entries(queries, **how)
    if output == "tsv":
        click.echo("query\tid\tquestion\tdistance")
    typed = not query and queries == STANDARD_INPUT and sys.stdin.isatty()
    for batch in _batches(asked, 1 if typed else _BATCH):
        texts = [entry.question for entry in batch]
        lines = []
        for text, hits in zip(texts, retriever.search(texts, k), strict=True):
            for hit in hits:
                fields = {"query": text, **hit._asdict()}
                lines.append(
                    json.dumps(fields)
                    if output == "jsonl"
                    else "\t".join(map(_cell, fields.values()))
                )
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


def _cell(value: object) -> str:
    text = " ".join(str(value).split()) if isinstance(value, str) else f"{value}"
    return text.encode("utf-8", "replace").decode()


@qpr.command()
@click.argument("folder", type=click.Path())
@click.argument("questions", default="-")
@_input
def add(folder: str, questions: str, **how: Any) -> None:
    """Add QUESTIONS to the index of FOLDER; one whose id is there replaces the old one.

    Prints a line {"id", "question"} for each when it is on disk. Questions without an id get
    numbers that no question has had.

    Example: qpr add my_index new_questions.txt
    """
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(folder)
    count = 0
    for batch in _batches(counted(_entries(questions, **how), "added")):
        for some, given in _runs(batch):
            texts = [entry.question for entry in some]
            ids = retriever.add(texts, [entry.id for entry in some] if given else None)  # type: ignore[misc]
            count += len(ids)
            for value, text in zip(ids, texts, strict=True):
                sys.stdout.write(json.dumps({"id": value, "question": text}) + "\n")
        sys.stdout.flush()
    log.info("%s: %s added, %s questions", folder, f"{count:,}", f"{len(retriever):,}")


def _runs(batch: list[Entry]) -> Iterator[tuple[list[Entry], bool]]:
    """The entries in order, cut so that all or none of a run have ids, and no id stands twice."""
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


@qpr.command()
@click.argument("folder", type=click.Path())
@click.argument("ids", default="-")
@click.option("--id", "one", multiple=True, type=int, help="Instead of reading IDS; repeatable.")
@click.option("--format", type=click.Choice(FORMATS))
@click.option("--ignore-missing", is_flag=True, help="Pass over ids that no question has.")
def remove(
    folder: str, ids: str, one: tuple[int, ...], format: str | None, ignore_missing: bool
) -> None:
    """Remove the questions of IDS (an id a line, or a column `id`) from the index of FOLDER.

    All or, where one is not there, none.

    Example: qpr remove my_index --id 17 --id 4
    """
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(folder)
    wanted = list(one) if one else list(_read_ids(ids, format))
    before = len(retriever)
    retriever.remove(dict.fromkeys(wanted), ignore_missing=ignore_missing)
    gone = before - len(retriever)
    log.info("%s: %s removed, %s questions", folder, f"{gone:,}", f"{len(retriever):,}")


def _read_ids(path: str, format: str | None) -> Iterator[int]:
    for line, fields in read_rows(path, ["id"], format=format or ""):
        value = fields if isinstance(fields, str) else parse_id(_stripped(fields["id"]))
        if not isinstance(value, int):
            got = fields if isinstance(fields, str) else f"got {fields['id']!r}"
            raise UserError(f"{path}, line {line}: expected an id, 0 to {2**63 - 1}; {got}")
        yield value


def _stripped(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


@qpr.command()
@click.argument("folder", type=click.Path())
def compact(folder: str) -> None:
    """Index anew what is in FOLDER now: searches as fast as new, removed questions gone from disk.

    Example: qpr compact my_index
    """
    from qpr_jax.retriever import Retriever

    Retriever.load(folder).compact(log.info)


@qpr.command()
@click.argument("folder", type=click.Path())
@click.argument("pairs", default="-")
@click.option("--format", type=click.Choice(FORMATS[1:]))
@click.option("--column", default="question", help="Where the query stands.")
@click.option("--other-texts", is_flag=True, help="Pass over hits with the text of the query.")
def evaluate(folder: str, pairs: str, format: str | None, column: str, other_texts: bool) -> None:
    """Score searches by PAIRS of a query and the `id` of a question that means the same.

    A query may stand in several rows, with an id each. Prints JSON: queries, hits@1, hits@10,
    mrr@20 and recall@10, averaged over queries.

    Example: qpr evaluate my_index held_out.tsv
    """
    from qpr_jax.retrieval.evaluate import relevance_scores
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(folder)
    wanted: dict[str, set[int]] = {}
    for line, fields in read_rows(pairs, [column, "id"], format=format or ""):
        value = fields if isinstance(fields, str) else parse_id(_stripped(fields["id"]))
        query = "" if isinstance(fields, str) else fields[column]
        if not isinstance(value, int) or not isinstance(query, str):
            got = fields if isinstance(fields, str) else f"got {query!r} and {fields['id']!r}"
            raise UserError(f"{pairs}, line {line}: expected a query and an id; {got}")
        wanted.setdefault(query, set()).add(value)
    if not wanted:
        raise UserError(f"{pairs}: expected pairs to score, got none")
    click.echo(json.dumps(relevance_scores(retriever.search, wanted, other_texts=other_texts)))


@qpr.command()
@click.argument("folder", type=click.Path())
def info(folder: str) -> None:
    """Print what FOLDER holds, as JSON, after checking all its files.

    Example: qpr info my_index
    """
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(folder)
    rows, encoder = retriever.index.rows, retriever.encoder
    size = sum(p.stat().st_size for p in pathlib.Path(folder, "index").iterdir() if p.is_file())
    facts = {
        "questions": len(retriever),
        "removed": rows.deaths,
        "added": len(rows.added),
        "factory": rows.recipe.factory,
        "metric": rows.recipe.metric,
        "probes": rows.recipe.probes,
        "assignments": rows.recipe.assignments,
        "recall@10": round(rows.recall, 4),
        "dimension": encoder.dimension,
        "vocabulary": encoder.vocabulary.size,
        "encoder": encoder.identity,
        "index_bytes": size,
    }
    click.echo(json.dumps(facts, indent=2))


def main() -> int:
    """The program; the exit status."""

    def start() -> int:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        try:
            return qpr.main(standalone_mode=False) or 0
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            raise KeyboardInterrupt from None

    return told_in_one_line(start)


if __name__ == "__main__":
    sys.exit(main())
