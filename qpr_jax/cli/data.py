"""Commands that make data for a training: clusters, splits, negatives, sample."""

from __future__ import annotations

import json
import logging
import os
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from qpr_jax import progress
from qpr_jax.cli import command as cli
from qpr_jax.data.columns import table_files
from qpr_jax.data.decoding import input_name
from qpr_jax.data.question_pairs import IDS, QuestionPairs, read_question_pairs
from qpr_jax.data.splits import SPLITS, group_questions, read_split
from qpr_jax.data.task_splits import write_tasks
from qpr_jax.distant.cluster_folder import content_hash, make_folder, score_labels
from qpr_jax.distant.logs import Logs
from qpr_jax.distant.method import LEAST, Method
from qpr_jax.errors import UserError
from qpr_jax.files import read_object, refuse_existing, write_atomically

if TYPE_CHECKING:
    from qpr_jax.index.protocol import Hit
    from qpr_jax.retriever import Retriever
    from qpr_jax.training.negatives import Rules

log = logging.getLogger("qpr_jax")

_COUNTS = (
    "{queries:,} queries, {negatives:,} negatives; {short:,} queries have fewer than asked for; "
    "hits dropped: {paraphrases:,} known paraphrases or the query itself, {rank:,} before the "
    "first rank, {margin:,} within the margin, {score:,} paraphrases by score"
)
_LEAST = f"Minimum for a cluster.  [default: {LEAST['pairwise']}, paper: {LEAST['paper']}]"


@cli.command(stopped="the output folder is complete or absent")
@cli.argument("logs", nargs=-1)
@cli.option("--out", type=cli.FOLDER, help="Output folder, new.")
@cli.option("--coherence", type=click.Choice(list(LEAST)), default="pairwise")
@cli.option("--min-coherence", type=cli.SHARE, help=_LEAST)
@cli.option("--pairs", default=100, type=cli.COUNT, help="Maximum number of pairs from a cluster.")
@cli.option("--seed", default=0, help="Seed of the splits and of the sampled pairs.")
@cli.option("--question", default="question", help="Column of the question.")
@cli.option("--answer", default="answer", help="Column of the answer.")
@cli.table_format("LOGS")
@cli.skip_bad_rows
@cli.option("--spark", help="Spark master: local[4], spark://host:7077, yarn.  [default: none]")
@cli.option("--labels", type=cli.PATH, help="Print the share of right clusters of a sample.tsv.")
def clusters(
    logs: tuple[str, ...],
    out: str | None,
    coherence: str,
    min_coherence: float | None,
    pairs: int,
    seed: int,
    question: str,
    answer: str,
    format: str | None,
    skip_bad_rows: bool,
    spark: str | None,
    labels: str | None,
) -> dict[str, Any] | None:
    """Make training pairs from LOGS of questions and answers.

    LOGS are files or folders. Questions with the same answer form a cluster; clusters with a low
    coherence are removed. Writes clusters.jsonl, pairs_{train,validation,test}.tsv,
    questions.jsonl, and report.json with counts. sample.tsv has 200 random clusters and an empty
    column for labels: 1 or yes where the questions mean the same, 0 or no.

    \b
    Example: qpr clusters logs.jsonl.gz --out clusters
             qpr clusters --labels clusters/sample.tsv
    """
    if (labels is None) is not bool(logs) or bool(logs) is (out is None):
        raise click.UsageError("give LOGS and --out, or --labels only")
    if labels is not None:
        click.echo(json.dumps(score_labels(labels)))
        return None
    form, least = format or "", LEAST[coherence] if min_coherence is None else min_coherence
    report = make_folder(
        str(out),
        Logs(table_files(logs, format=form), question, answer, form),
        Method(coherence, least, pairs, seed),
        skip_bad_rows=skip_bad_rows,
        spark=spark or "",
    )
    log.info("%s", _counts({name: n for name, n in report.items() if isinstance(n, int)}))
    for name, counts in report["splits"].items():
        log.info("%s: %s", name, _counts(counts))
    log.info("the coherence of removed clusters is below `--min-coherence %g`", least)
    log.info("%s: judge the clusters of sample.tsv", out)
    return {"out": out, **report}


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in numbers.items())


@cli.command(stopped="{out} is complete or absent")
@cli.argument("pairs", type=cli.PATH)
@cli.out_folder
@cli.option("--dev", default=0.05, type=cli.PART, help="Share of the questions in dev.")
@cli.option("--test", default=0.1, type=cli.PART, help="Share of the questions in test.")
@cli.table_format("PAIRS")
@cli.skip_bad_rows
def splits(
    pairs: str, out: str, dev: float, test: float, format: str | None, skip_bad_rows: bool
) -> dict[str, Any]:
    """Divide labeled PAIRS into train, dev and test.

    These share no question. PAIRS has question1, question2 and is_duplicate, as Quora's file.
    Duplicates, by transitivity, and questions with the same words go to one part; pairs of two
    parts are left out. Writes:

    \b
    train.tsv, dev.tsv, test.tsv  pairs with their labels
    beir/                         queries of dev and test, and a corpus of all other questions
    report.json                   counts

    \b
    Example: qpr splits quora_duplicate_questions.tsv --out parts
             qpr train runs/mine parts/train.tsv
             qpr evaluate runs/mine parts/test.tsv --task classification --validation parts/dev.tsv
             qpr evaluate runs/mine --beir parts/beir
    """
    refuse_existing(out)
    data = read_question_pairs(pairs, format=format, skip_bad_rows=skip_bad_rows)
    report = write_tasks(out, data, dev=dev, test=test)
    for name, counts in report["parts"].items():
        log.info("%s: %s", name, _counts(counts))
    more = {name: report[name] for name in ("blank_pairs", "self_pairs")}
    log.info("left out: %s", _counts(report["dropped"] | more))
    return {"out": out, **report}


@cli.command(stopped="{out} is complete or unchanged")
@cli.argument("run", type=cli.PATH)
@cli.argument("pairs", default="-")
@cli.option("--out", required=True, type=cli.FILE, help="A .tsv or .jsonl file.")
@cli.option("--from-rank", default=1, type=cli.COUNT, help="First rank to keep.")
@cli.option("--to-rank", default=50, type=cli.COUNT, help="Last rank to keep.")
@cli.option("--count", default=4, type=cli.COUNT, help="Negatives per query.")
@cli.option("--relative-margin", type=cli.DISTANCE, help="Distance: 1 + this times the positive's.")
@cli.option("--scored", is_flag=True, help="Score hits by RUN's model of pairs.")
@cli.option("--cross-encoder", type=cli.PATH, help="Score hits by this folder's model.")
@cli.option("--max-score", type=cli.SHARE, help="Drop hits of a higher score.  [default: 0.5]")
@cli.option("--seed", type=click.IntRange(0), help="Choose at random.  [default: the nearest]")
@cli.option("--split", type=click.Choice(SPLITS), help="Use only questions in this split of RUN.")
@cli.table_format("PAIRS")
@cli.skip_bad_rows
def negatives(
    run: str,
    pairs: str,
    out: str,
    from_rank: int,
    to_rank: int,
    count: int,
    relative_margin: float | None,
    scored: bool,
    cross_encoder: str | None,
    max_score: float | None,
    seed: int | None,
    split: str | None,
    format: str | None,
    skip_bad_rows: bool,
) -> dict[str, Any]:
    """Mine hard negatives for a training.

    A negative is a near hit of a question of PAIRS (question1, question2, is_duplicate) that is not
    a known paraphrase. Known paraphrases are linked by duplicates, also through others, or have the
    same words; the farthest one is the positive. Ranks leave them out. Searches the index of RUN;
    without an index, all questions of PAIRS; with --split, those of the split alone, so that a
    training reads no held-out question. --scored and --cross-encoder drop hits that are probably
    paraphrases without a label.

    Writes query, negative, rank, distance, positive_distance, id (of the negative in the index)
    and, with a model, score (how likely the two mean the same). A training reads the file as
    data.negatives.

    \b
    Example: qpr negatives runs/quora_sdml pairs.tsv --split train --out negatives.tsv \\
                 --relative-margin 0.5
             qpr train runs/mine pairs.tsv --set data.negatives=negatives.tsv \\
                 --set batch.hard_negatives=128
    """
    from qpr_jax.training.negatives import Rules

    if from_rank > to_rank:
        raise click.UsageError("--from-rank is above --to-rank")
    if max_score is not None and not (scored or cross_encoder):
        raise click.UsageError("--max-score goes with --scored or --cross-encoder")
    if pathlib.Path(out).suffix not in (".tsv", ".jsonl"):
        raise UserError(f"expected a file .tsv or .jsonl, got {out}", setting="out")
    if pathlib.Path(out).resolve() == pathlib.Path(pairs).resolve():
        raise UserError(f"expected another file than that of the pairs, got {out}", setting="out")
    least = 0.5 if max_score is None else max_score
    rules = Rules(from_rank, to_rank, count, relative_margin, least, seed)
    labeled = read_question_pairs(pairs, format=format, skip_bad_rows=skip_bad_rows)
    if split is not None:
        labeled = _subset(labeled, run, pairs, split)
    if not labeled.is_duplicate.any():
        where = f" in {split}" if split else ""
        what = f"{input_name(pairs)}: expected questions labeled as duplicates, got none{where}"
        raise UserError(what)
    retriever = _open_searched(run, labeled, rules, whole=split is None)
    if scored and retriever.ordering(None) is None:
        raise UserError(f"{run}: has no scores of pairs", setting="scored")
    counts = _write_negatives(out, labeled, rules, retriever, scored, cross_encoder)
    log.info("%s: %s", out, _COUNTS.format_map(counts))
    return {"out": out, **counts}


def _subset(labeled: QuestionPairs, run: str, path: str, split: str) -> QuestionPairs:
    """Return the pairs of a split of the run; UserError if the file has no ids of its questions."""
    trained_on = read_object(pathlib.Path(run, "run.json")).get("data.sha256")
    if labeled.numbered and not (os.path.exists(path) and trained_on == content_hash(path)):
        what = f"expected {path} to be the file that {run} was trained on, or to have the "
        what += f"columns {' and '.join(IDS)}, which say which split a question is in"
        raise UserError(what, setting="split", remedy="give the file of the training")
    return labeled.subset(np.isin(labeled.ids, read_split(run, split)))


def _open_searched(run: str, labeled: QuestionPairs, rules: Rules, *, whole: bool) -> Retriever:
    """Open the index of the run if it may be searched `whole`, else index the questions."""
    from qpr_jax.retriever import Retriever

    if not (whole and pathlib.Path(run, "index").is_dir()):
        log.info("indexing %s questions", f"{len(labeled.questions):,}")
        return Retriever.build(labeled.questions, encoder=run)
    retriever = Retriever.load(run)
    if retriever.store.index_config.metric != "l2" and rules.relative_margin is not None:
        what = f"{run}: expected an index by distance, got one by inner product"
        raise UserError(what, remedy="leave out --relative-margin")
    return retriever


def _write_negatives(
    out: str,
    labeled: QuestionPairs,
    rules: Rules,
    retriever: Retriever,
    scored: bool,
    cross_encoder: str | None,
) -> Counter[str]:
    """Write the negatives of the questions that have a known paraphrase; options as of the command.

    Returns the counts of `find_negatives`.
    """
    from qpr_jax.data.clusters import transitive_clusters
    from qpr_jax.pair_model.cross_encoder import read_cross_encoder
    from qpr_jax.pair_model.hits import score_hits
    from qpr_jax.pair_model.plain import probability
    from qpr_jax.training.negatives import FIELDS, find_negatives, query_groups

    same = labeled.pairs[labeled.is_duplicate]
    clusters = transitive_clusters(len(labeled.questions), same)
    groups = group_questions(labeled.questions, clusters)
    queries = query_groups(labeled.questions, groups)
    encoder, store = retriever.encoder, retriever.store
    model = retriever.ordering(None) if scored else None
    other: Any = read_cross_encoder(cross_encoder) if cross_encoder else None
    counts: Counter[str] = Counter()

    def find(texts: Sequence[str], k: int) -> tuple[np.ndarray, list[list[Hit]]]:
        vectors = retriever.encode(texts)
        hits = store.search(vectors, k)
        if model is not None:
            hits = score_hits(model, encoder, store, texts, hits, sort=False)
        return vectors, hits

    def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        first, second = zip(*pairs, strict=True)
        return probability(other.logits(first, second, np.zeros(len(pairs))))

    asked = (labeled.questions, groups, queries, rules)
    found = find_negatives(*asked, find, counts, score if other else None)
    with progress.bar("query", sum(map(len, queries))) as show, write_atomically(out, "w") as file:

        def rows() -> Iterator[dict[str, object]]:
            for some in found:
                yield from (negative.fields(labeled.questions) for negative in some)
                show(counts["queries"], "")

        header = FIELDS if scored or cross_encoder else FIELDS[:-1]
        file.writelines(cli.as_lines(rows(), pathlib.Path(out).suffix[1:], header))
    return counts


@cli.command(stopped="{out} is complete or absent")
@cli.out_folder
def sample(out: str) -> dict[str, Any]:
    """Write a sample: questions, queries, pairs and logs of a help desk.

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
    from qpr_jax.data.find_data import write_sample

    return {"out": out, **write_sample(out)}
