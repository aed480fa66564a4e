"""Commands about which questions mean the same: mine, evaluate."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import numpy as np

from qpr_jax.commands.streams import NamedPath, as_json, as_tsv, questions_input, questions_of
from qpr_jax.console import counted
from qpr_jax.data.labelled import Labelled, read_labelled
from qpr_jax.data.questions import FORMATS, named, parse_id, read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically

log = logging.getLogger("qpr_jax")

TASKS = ("retrieval", "classification", "mining")


@click.command()
@click.argument("questions", default="-")
@click.option("--run", required=True, type=NamedPath(), help="The folder of the encoder.")
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="A folder.")
@click.option("--threshold", type=float, help="Pairs up to this squared distance.")
@click.option("--pairs", "count", type=click.IntRange(min=1), help="So many, the closest.")
@click.option("--labels", type=NamedPath(), help="Labelled pairs that choose the threshold, ...")
@click.option("--precision", type=float, help="... for this share of duplicates up to it.")
@click.option("--most", type=click.IntRange(min=1), default=10_000_000, show_default=True)
@click.option("--output", type=click.Choice(["jsonl", "tsv"]), default="jsonl")
@questions_input
def mine(
    questions: str,
    run: str,
    out: str,
    threshold: float | None,
    count: int | None,
    labels: str | None,
    precision: float | None,
    most: int,
    output: str,
    **how: Any,
) -> None:
    """Find all pairs of QUESTIONS that are closer than a threshold, and the groups they link.

    Say --threshold, --pairs, or --labels and --precision; the last measures a precision of
    labelled pairs, which is that of the pairs found only where the labelled ones are like them.
    Writes pairs (id1, id2, distance, question1, question2; nearest first) and clusters (cluster,
    id, question) to --out. Exact, in time that grows with the square of the questions; more than
    --most pairs are an error.

    Example: qpr mine questions.tsv --run runs/quora_sdml --out mined --threshold 0.5
    """
    from qpr_jax.data.clusters import transitive_clusters
    from qpr_jax.retrieval.mining import close_pairs, closest_pairs
    from qpr_jax.retrieval.verdicts import threshold_of_precision
    from qpr_jax.retriever import run_encoder

    chosen = [threshold is not None, count is not None, None not in (labels, precision)]
    if sum(chosen) != 1 or (chosen[2] is (labels is None)):
        raise click.UsageError("say one of --threshold, --pairs, or --labels with --precision")
    encoder = run_encoder(run)
    if labels is not None and precision is not None:
        labelled = read_labelled(labels)
        distances = _pair_distances(labelled, encoder.encode)
        threshold = threshold_of_precision(distances, labelled.is_duplicate, precision)
        log.info("threshold: %.6g", threshold)
    entries = list(counted(questions_of(questions, **how), "read"))
    texts = [entry.question for entry in entries]
    ids = [i if entry.id is None else entry.id for i, entry in enumerate(entries)]
    vectors = encoder.encode(texts)
    if count is not None:
        found = closest_pairs(vectors, count, log=log.info)
    else:
        found = close_pairs(vectors, float(threshold or 0), most=most, log=log.info)
    clusters = transitive_clusters(len(texts), np.stack([found.first, found.second], axis=1))
    pairs = (
        {
            "id1": ids[a],
            "id2": ids[b],
            "distance": distance,
            "question1": texts[a],
            "question2": texts[b],
        }
        for a, b, distance in zip(*(values.tolist() for values in found), strict=True)
    )
    members = np.flatnonzero(clusters >= 0)
    members = members[np.argsort(clusters[members], kind="stable")]
    groups = (
        {"cluster": int(clusters[i]), "id": ids[i], "question": texts[i]} for i in members.tolist()
    )
    folder = pathlib.Path(out)
    _write(folder / f"pairs.{output}", pairs, ("id1", "id2", "distance", "question1", "question2"))
    _write(folder / f"clusters.{output}", groups, ("cluster", "id", "question"))
    log.info(
        "%s: %s pairs, %s questions in %s clusters",
        *(out, f"{len(found.first):,}", f"{len(members):,}", f"{clusters.max(initial=-1) + 1:,}"),
    )


def _write(path: pathlib.Path, rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> None:
    with write_atomically(path, "w") as file:
        if path.suffix == ".tsv":
            file.write("\t".join(columns) + "\n")
        file.writelines(map(as_tsv if path.suffix == ".tsv" else as_json, rows))


def _pair_distances(labelled: Labelled, encode: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    from qpr_jax.retrieval.mining import pair_distances

    return pair_distances(encode(labelled.questions), *labelled.pairs.T)


@click.command()
@click.argument("folder", type=NamedPath())
@click.argument("pairs", default="-")
@click.option("--task", type=click.Choice(TASKS), default=TASKS[0], show_default=True)
@click.option("--validation", type=NamedPath(), help="Labelled pairs that choose the thresholds.")
@click.option("--format", type=click.Choice(FORMATS[1:]))
@click.option("--column", default="question", help="Where the query stands (retrieval).")
@click.option("--other-texts", is_flag=True, help="Pass over hits with the query's text.")
def evaluate(
    folder: str,
    pairs: str,
    task: str,
    validation: str | None,
    format: str | None,
    column: str,
    other_texts: bool,
) -> None:
    """Score the run or index of FOLDER by PAIRS; prints JSON.

    retrieval: PAIRS are a query and the `id` of an indexed question that means the same; a query
    may stand in several rows. Averaged over queries.

    classification: PAIRS are question1, question2, is_duplicate (0 or 1; Quora's own format too),
    called duplicates up to a distance that is best on the pairs of --validation.

    mining: PAIRS as for classification; all duplicates are to be found among all their questions,
    what several pairs link included.

    \b
    Example: qpr evaluate my_index held_out.tsv
             qpr evaluate runs/quora_sdml test.jsonl --task classification --validation val.jsonl
    """
    if (task == "classification") is (validation is None):
        raise click.UsageError("--validation goes with --task classification, and with no other")
    if task == "retrieval":
        scores = _retrieval(folder, pairs, format, column, other_texts)
    else:
        scores = _verdicts(folder, pairs, validation, format)
    click.echo(json.dumps(scores))


def _retrieval(
    folder: str, pairs: str, format: str | None, column: str, other_texts: bool
) -> dict[str, Any]:
    from qpr_jax.retrieval.evaluate import relevance_scores
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(folder)
    wanted: dict[str, set[int]] = {}
    for line, fields in read_rows(pairs, [column, "id"], format=format or ""):
        value = fields if isinstance(fields, str) else parse_id(fields["id"])
        query = "" if isinstance(fields, str) else fields[column]
        if not isinstance(value, int) or not isinstance(query, str):
            got = fields if isinstance(fields, str) else f"got {query!r} and {fields['id']!r}"
            raise UserError(f"{named(pairs)}, line {line}: expected a query and an id; {got}")
        wanted.setdefault(query, set()).add(value)
    if not wanted:
        raise UserError(f"{named(pairs)}: expected pairs to score, got none")
    return relevance_scores(retriever.search, wanted, other_texts=other_texts)


def _verdicts(
    folder: str, pairs: str, validation: str | None, format: str | None
) -> dict[str, Any]:
    from qpr_jax.data.clusters import pair_count, transitive_clusters
    from qpr_jax.retrieval.mining import closest_pairs
    from qpr_jax.retrieval.verdicts import best_thresholds, classification_scores, mining_scores
    from qpr_jax.retriever import run_encoder

    encode = run_encoder(folder).encode
    test = read_labelled(pairs, format=format or "")
    if validation is None:
        duplicates = test.pairs[test.is_duplicate]
        clusters = transitive_clusters(len(test.questions), duplicates)
        depth = 100_000 + 10 * pair_count(clusters)
        found = closest_pairs(encode(test.questions), depth, log=log.info)
        return {"questions": len(test.questions), **mining_scores(found, clusters)}
    chosen_on = read_labelled(validation, format=format or "")
    near = _pair_distances(chosen_on, encode)
    thresholds = best_thresholds(near, chosen_on.is_duplicate)
    return {
        "thresholds": thresholds,
        "validation": classification_scores(near, chosen_on.is_duplicate, thresholds),
        "test": classification_scores(_pair_distances(test, encode), test.is_duplicate, thresholds),
    }
