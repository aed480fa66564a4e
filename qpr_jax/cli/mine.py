"""Commands about which questions mean the same: mine, evaluate."""

from __future__ import annotations

import array
import json
import logging
import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import click
import numpy as np

from qpr_jax import progress
from qpr_jax.cli.options import NamedPath, as_json, as_tsv, questions_input, read_input
from qpr_jax.data.labeled_pairs import read_duplicates, read_labeled
from qpr_jax.data.quora import is_quora_file, read_quora
from qpr_jax.data.tables import FORMATS, STANDARD_INPUT, input_name, read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically, write_json
from qpr_jax.ids import parse_id

log = logging.getLogger("qpr_jax")

TASKS = ("retrieval", "classification", "mining")


class Finite(click.FloatRange):
    """A number of a range, not NaN, not infinity."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no number", param, ctx)


@click.command()
@click.argument("questions", default="-")
@click.option("--run", required=True, type=NamedPath(), help="The encoder's folder, or minilm.")
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="A folder.")
@click.option("--threshold", type=Finite(min=0), help="Pairs up to this squared distance.")
@click.option("--pairs", "count", type=click.IntRange(min=1), help="So many, the closest.")
@click.option("--labels", type=NamedPath(), help="Labelled pairs that choose the threshold, ...")
@click.option("--precision", type=Finite(0, 1, min_open=True), help="... for this share of true.")
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

    Say --threshold, --pairs, or --labels and --precision. The last takes the largest threshold at
    which, of all pairs of the labelled questions that are closer, this share is labelled, or linked
    by what is labelled, as duplicates; more questions have more pairs that are none, so the
    precision is that of about as many questions.

    QUESTIONS may be Quora's pair file too. Writes pairs (id1, id2, distance, question1, question2;
    nearest first), clusters (cluster, id, question) and info.json to --out. Exact, in time that
    grows with the square of the questions; more than --most pairs are an error.

    Example: qpr mine questions.tsv --run runs/quora_sdml --out mined --threshold 0.5
    """
    from qpr_jax.data.clusters import transitive_clusters
    from qpr_jax.evaluation.pairs import mine_labeled_questions, threshold_of_precision
    from qpr_jax.index.mining import close_pairs, closest_pairs
    from qpr_jax.retriever import run_encoder

    chosen = [threshold is not None, count is not None, None not in (labels, precision)]
    if sum(chosen) != 1 or (chosen[2] is (labels is None)):
        raise click.UsageError("say one of --threshold, --pairs, or --labels with --precision")
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)  # what cannot be written is told before the work
    encode = run_encoder(run).encode
    ids, texts = _all_questions(questions, **how)
    if labels is not None and precision is not None:
        found, clusters = mine_labeled_questions(encode, read_labeled(labels), log.info)
        threshold = threshold_of_precision(found, clusters, precision)
        log.info("threshold: %r", threshold)
        if len(texts) > 2 * len(clusters):
            log.info(
                "warning: that is the precision among the %s labelled questions; each of %s has "
                "more others that lie as close",
                *(f"{len(clusters):,}", f"{len(texts):,}"),
            )
    vectors = encode(texts)
    if count is not None:
        found = closest_pairs(vectors, count, log=log.info)
    else:
        found = close_pairs(vectors, float(threshold or 0), most=most, log=log.info)
    clusters = transitive_clusters(len(texts), np.stack([found.first, found.second], axis=1))
    pairs = (
        (ids[a], ids[b], distance, texts[a], texts[b])
        for a, b, distance in zip(*(values.tolist() for values in found), strict=True)
    )
    members = np.argsort(clusters, kind="stable")[(clusters < 0).sum() :].tolist()
    groups = ((int(clusters[i]), ids[i], texts[i]) for i in members)
    _write(folder / f"pairs.{output}", ("id1", "id2", "distance", "question1", "question2"), pairs)
    _write(folder / f"clusters.{output}", ("cluster", "id", "question"), groups)
    sizes = np.bincount(clusters[members], minlength=1)
    info = {
        "run": run,
        "questions": len(texts),
        "threshold": float(found.distances.max(initial=0)) if threshold is None else threshold,
        "pairs": len(found.first),
        "clustered_questions": len(members),
        "clusters": int((sizes > 0).sum()),
        "largest_cluster": int(sizes.max()),
    }
    write_json(folder / "info.json", info)
    log.info(
        "%s: %s pairs, %s questions in %s clusters, the largest of %s",
        *(out, f"{info['pairs']:,}", f"{info['clustered_questions']:,}"),
        *(f"{info['clusters']:,}", f"{info['largest_cluster']:,}"),
    )


def _all_questions(path: str, **how: Any) -> tuple[list[int], list[str]]:
    """Ids and texts of all questions, where there are some, and each id is of one."""
    from qpr_jax.ids import number_entries, refuse_repeated

    if is_quora_file(path) and how["format"] is None:
        data = read_quora(path, skip_bad_rows=how["skip_bad_rows"])
        return data.ids.tolist(), data.questions
    lines = array.array("q")
    entries = progress.count(read_input(path, **how), "read")
    rows = list(number_entries(entries, lines, input_name(path)))
    if not rows:
        raise UserError(f"{input_name(path)}: expected questions, got none")
    ids, texts = map(list, zip(*rows, strict=True))
    refuse_repeated(np.array(ids), lines, input_name(path))
    return ids, texts


def _write(path: pathlib.Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with write_atomically(path, "w") as file:
        if path.suffix == ".tsv":
            file.write("\t".join(columns) + "\n")
        said = as_tsv if path.suffix == ".tsv" else as_json
        file.writelines(said(dict(zip(columns, row, strict=True))) for row in rows)


@click.command()
@click.argument("folder", type=NamedPath())
@click.argument("pairs", default="-")
@click.option("--task", type=click.Choice(TASKS), default=TASKS[0], show_default=True)
@click.option("--validation", type=NamedPath(), help="Labelled pairs that choose the thresholds.")
@click.option("--duplicates", type=NamedPath(), help="Pairs of ids; PAIRS are questions (mining).")
@click.option("--format", type=click.Choice(FORMATS[1:]))
@click.option("--column", default="question", help="Where the query stands (retrieval).")
@click.option("--other-texts", is_flag=True, help="Pass over hits with the query's text.")
@click.option("--beir", type=NamedPath(), help="A folder in BEIR's format, instead of PAIRS.")
@click.option("--split", help="Of --beir.  [default: test]")
@click.option("--trec", type=NamedPath(dir_okay=False), help="A file for the run of --beir.")
def evaluate(
    folder: str,
    pairs: str,
    task: str,
    validation: str | None,
    duplicates: str | None,
    format: str | None,
    column: str,
    other_texts: bool,
    beir: str | None,
    split: str | None,
    trec: str | None,
) -> None:
    """Score the run or index of FOLDER by PAIRS, or a run by a set of BEIR; prints JSON.

    retrieval: PAIRS are a query and the `id` of an indexed question that means the same; a query
    may stand in several rows. Averaged over queries.

    classification: PAIRS are question1, question2, is_duplicate (0 or 1; Quora's own format too),
    called duplicates up to a distance that is best on the pairs of --validation.

    mining: PAIRS as for classification; all duplicates are to be found among all their questions,
    what several pairs link included. Or PAIRS are questions, with the columns qid and question,
    and --duplicates has the columns qid1 and qid2, as qpr splits writes both.

    --beir is a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv. All documents are
    searched, and scored as BEIR does. --trec writes what was found in TREC's format.

    \b
    Example: qpr evaluate my_index held_out.tsv
             qpr evaluate runs/quora_sdml test.jsonl --task classification --validation val.jsonl
             qpr evaluate runs/quora_sdml --beir datasets/scifact --trec scifact.run
    """
    if beir is not None:
        if task != "retrieval" or other_texts or (pairs, column) != ("-", "question") or format:
            raise click.UsageError("--beir goes with --split and --trec alone")
    elif (split, trec) != (None, None):
        raise click.UsageError("--split and --trec go with --beir")
    if (task == "classification") is (validation is None):
        raise click.UsageError("--validation goes with --task classification, and with no other")
    if task != "retrieval" and (other_texts or column != "question"):
        raise click.UsageError("--column and --other-texts go with --task retrieval alone")
    if duplicates is not None and (task != "mining" or format):
        raise click.UsageError("--duplicates goes with --task mining, and without --format")
    if pairs == STANDARD_INPUT and STANDARD_INPUT in (validation, duplicates):
        raise click.UsageError("standard input is one file: name all but one")
    if beir is not None:
        scores = _of_beir(folder, beir, split or "test", trec)
    elif task == "retrieval":
        scores = _retrieval(folder, pairs, format, column, other_texts)
    else:
        scores = _verdicts(folder, pairs, validation, duplicates, format)
    click.echo(json.dumps(scores))


def _retrieval(
    folder: str, pairs: str, format: str | None, column: str, other_texts: bool
) -> dict[str, Any]:
    from qpr_jax.evaluation.retrieval import relevance_scores
    from qpr_jax.retriever import Retriever

    retriever = Retriever.load(folder, indexed=True)
    wanted: dict[str, set[int]] = {}
    for line, fields in read_rows(pairs, [column, "id"], format=format or ""):
        value = fields if isinstance(fields, str) else parse_id(fields["id"])
        query = "" if isinstance(fields, str) else fields[column]
        if not isinstance(value, int) or not isinstance(query, str):
            got = fields if isinstance(fields, str) else f"got {query!r} and {fields['id']!r}"
            raise UserError(f"{input_name(pairs)}, line {line}: expected a query and an id; {got}")
        wanted.setdefault(query, set()).add(value)
    if not wanted:
        raise UserError(f"{input_name(pairs)}: expected pairs to score, got none")
    return relevance_scores(retriever.search, wanted, other_texts=other_texts)


def _of_beir(folder: str, beir: str, split: str, trec: str | None) -> dict[str, Any]:
    from qpr_jax.evaluation.beir import beir_scores
    from qpr_jax.retriever import run_encoder

    return beir_scores(run_encoder(folder).encode, beir, split, run_file=trec, log=log.info)


def _verdicts(
    folder: str, pairs: str, validation: str | None, duplicates: str | None, format: str | None
) -> dict[str, Any]:
    from qpr_jax.evaluation.pairs import (
        require_both_labels,
        score_classification,
        score_mining,
    )
    from qpr_jax.retriever import run_encoder

    encode = run_encoder(folder).encode
    if duplicates is None:
        test = read_labeled(pairs, format=format or "")
    else:
        test = read_duplicates(pairs, duplicates)
    if validation is None:
        counts = {
            "questions": len(test.questions),
            "labelled_pairs": len(test.pairs),
            "non_duplicates": int((~test.is_duplicate).sum()),
        }
        return counts | score_mining(encode, test, log.info)
    chosen_on = read_labeled(validation, format=format or "")
    require_both_labels(chosen_on.is_duplicate, f"{input_name(validation)}: ")
    require_both_labels(test.is_duplicate, f"{input_name(pairs)}: ")
    return score_classification(encode, chosen_on, test)
