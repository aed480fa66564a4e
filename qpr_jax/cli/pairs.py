"""Commands of pairs: negatives mines them, rerank scores them, calibrate fits scores."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from qpr_jax import progress
from qpr_jax.cli import command as cli
from qpr_jax.data.columns import read_values
from qpr_jax.data.decoding import input_name
from qpr_jax.data.question_pairs import COLUMNS, IDS, QuestionPairs, read_question_pairs
from qpr_jax.data.splits import SPLITS, group_questions, read_split
from qpr_jax.distant.cluster_folder import content_hash
from qpr_jax.errors import UserError
from qpr_jax.files import read_object, refuse_existing, write_atomically

if TYPE_CHECKING:
    from qpr_jax.index.base import Hit
    from qpr_jax.reranking.cross_encoder import CrossEncoder
    from qpr_jax.reranking.model import FittedModel

log = logging.getLogger("qpr_jax")

_COUNTS = (
    "{queries:,} queries, {negatives:,} negatives; {short:,} queries have fewer than asked for; "
    "hits dropped: {paraphrases:,} known paraphrases or the query itself, {rank:,} before the "
    "first rank, {margin:,} within the margin, {score:,} paraphrases by score"
)
_FITTED = "fitted to {verdicts:,} verdicts, {duplicates:,} duplicates"
_FIT = "precision {precision:.2f} and recall {recall:.2f} at 0.5, Brier score {brier:.3f}"


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
def negatives(run: str, pairs: str, out: str, split: str | None, **options: Any) -> dict[str, Any]:
    """Mine hard negatives for a training.

    A negative is a near hit of a question of PAIRS (question1, question2, is_duplicate) that is not
    a known paraphrase. Known paraphrases are linked by duplicates, also through others, or have the
    same words; the farthest one is the positive. Ranks leave them out. Searches the index of RUN;
    without an index, all questions of PAIRS; with --split, those of the split alone, so that a
    training reads no held-out question. --rerank and --cross-encoder drop hits that are probably
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
    from qpr_jax.reranking.cross_encoder import read_cross_encoder
    from qpr_jax.reranking.hits import score_hits
    from qpr_jax.retriever import Retriever
    from qpr_jax.training.negatives import FIELDS, Rules, find_negatives

    if options["from_rank"] > options["to_rank"]:
        raise click.UsageError("--from-rank is above --to-rank")
    if options["max_score"] is not None and not (options["scored"] or options["cross_encoder"]):
        raise click.UsageError("--max-score goes with --rerank or --cross-encoder")
    output = pathlib.Path(out).suffix.removeprefix(".")
    if output not in ("tsv", "jsonl"):
        raise UserError(f"expected a file .tsv or .jsonl, got {out}", setting="out")
    if pathlib.Path(out).resolve() == pathlib.Path(pairs).resolve():
        raise UserError(f"expected another file than that of the pairs, got {out}", setting="out")
    scored, cross_encoder = options.pop("scored"), options.pop("cross_encoder")
    how = {name: options.pop(name) for name in ("format", "skip_bad_rows")}
    labeled, groups, queries = _read_queries(run, pairs, split, how)
    score = functools.partial(_score, read_cross_encoder(cross_encoder)) if cross_encoder else None
    if split is None and pathlib.Path(run, "index").is_dir():
        retriever = Retriever.load(run)
        if retriever.store.recipe.metric != "l2" and options["relative_margin"] is not None:
            what = f"{run}: expected an index by distance, got one by inner product"
            raise UserError(what, remedy="leave out --relative-margin")
    else:
        log.info("indexing %s questions", f"{len(labeled.questions):,}")
        retriever = Retriever.build(labeled.questions, encoder=run)
    model = retriever.ordering(None)
    if scored and model is None:
        raise UserError(f"{run}: has no scores of pairs", setting="scored")

    def find(texts: Sequence[str], k: int) -> tuple[np.ndarray, list[list[Hit]]]:
        vectors = retriever.encode(texts)
        hits = retriever.store.search(vectors, k)
        if model and scored:
            hits = score_hits(model, retriever.encoder, retriever.store, texts, hits, sort=False)
        return vectors, hits

    counts: Counter[str] = Counter()
    found = find_negatives(
        labeled.questions,
        groups,
        queries,
        Rules(**{name: value for name, value in options.items() if value is not None}),
        find,
        counts,
        score,
    )
    with progress.bar("query", sum(map(len, queries))) as show, write_atomically(out, "w") as file:

        def rows() -> Iterator[dict[str, object]]:
            for some in found:
                yield from (negative.fields(labeled.questions) for negative in some)
                show(counts["queries"], "")

        header = FIELDS if score or scored else FIELDS[:-1]
        file.writelines(cli.as_lines(rows(), output, header))
    log.info("%s: %s", out, _COUNTS.format_map(counts))
    return {"out": out, **counts}


def _read_queries(
    run: str, path: str, split: str | None, how: dict[str, Any]
) -> tuple[QuestionPairs, np.ndarray, list[np.ndarray]]:
    """Read the labeled pairs, the groups of their questions, and those with several texts."""
    from qpr_jax.data.clusters import transitive_clusters
    from qpr_jax.training.negatives import query_groups

    labeled = read_question_pairs(path, **how)
    if split is not None:
        known = read_object(pathlib.Path(run, "run.json")).get("data.sha256")
        if labeled.numbered and not (os.path.exists(path) and known == content_hash(path)):
            what = f"expected {path} to be the file that {run} was trained on, or to have the "
            what += f"columns {' and '.join(IDS)}, which say which split a question is in"
            raise UserError(what, setting="split", remedy="give the file of the training")
        labeled = labeled.subset(np.isin(labeled.ids, read_split(run, split)))
    same = labeled.pairs[labeled.is_duplicate]
    clusters = transitive_clusters(len(labeled.questions), same)
    groups = group_questions(labeled.questions, clusters)
    queries = query_groups(labeled.questions, groups)
    if not queries:
        where = f" in {split}" if split else ""
        what = f"{input_name(path)}: expected questions labeled as duplicates, got none{where}"
        raise UserError(what)
    return labeled, groups, queries


def _score(model: CrossEncoder, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """The probabilities of pairs, calibrated or the sigmoid of the logit."""
    logits = model.predict(pairs)
    calibrated = model.probabilities(logits)
    return 1 / (1 + np.exp(-logits.astype(np.float64))) if calibrated is None else calibrated


@cli.command(stopped="the lines printed are complete", prints_json=True)
@cli.argument("model", type=cli.PATH)
@cli.argument("pairs", default="-")
@cli.table_format("PAIRS")
@cli.lines_output
def rerank(model: str, pairs: str, format: str | None, output: str) -> None:
    """Score PAIRS with a cross-encoder.

    PAIRS has the columns question1 and question2. MODEL is a run that trained a cross-encoder, or a
    folder of sentence-transformers' CrossEncoder. Prints a line for each pair: question1,
    question2, score (the output of the model after its activation) and, for a run, probability
    (that the two mean the same, calibrated on validation pairs).

    Example: qpr rerank runs/quora_cross_encoder pairs.tsv --output tsv
    """
    from qpr_jax.reranking.cross_encoder import read_cross_encoder

    def parse(first: object, second: object) -> tuple[str, str] | None:
        return (first, second) if isinstance(first, str) and isinstance(second, str) else None

    scorer, columns = read_cross_encoder(model), COLUMNS[:2]
    given = read_values(pairs, columns, parse, expected="two questions", format=format or "")

    def rows() -> Iterator[dict[str, object]]:
        for part in cli.chunked(progress.count(given, "scored")):
            logits = scorer.predict(part)
            values = {"score": scorer.scores(logits), "probability": scorer.probabilities(logits)}
            known = {name: column.tolist() for name, column in values.items() if column is not None}
            for at, pair in enumerate(part):
                scores = {name: column[at] for name, column in known.items()}
                yield dict(zip(columns, pair, strict=True)) | scores

    header = [*columns, "score", *(["probability"] if scorer.calibration is not None else [])]
    sys.stdout.writelines(cli.as_lines(rows(), output, header))


def _save_last(model: FittedModel, folder: pathlib.Path) -> None:
    from qpr_jax.reranking.model import save_pair_model

    save_pair_model(folder, model)


@cli.command(stopped="the scores are the old ones or the new ones")
@cli.argument("named", metavar="ENCODER", type=cli.PATH)
@cli.argument("verdicts", default="-")
@cli.option("--out", type=cli.FOLDER, help="New folder, instead of changing ENCODER.")
@cli.table_format("VERDICTS")
@cli.skip_bad_rows
def calibrate(named: str, verdicts: str, out: str | None, **how: Any) -> dict[str, Any]:
    """Fit the scores of an encoder to VERDICTS, 20 or more of both kinds.

    VERDICTS has question1, question2 and is_duplicate (0 or 1). With a column weight (the number of
    found pairs that a row stands for), as `qpr review` writes it, they are a sample of found pairs.
    Without it, the texts are taken for a table, whose near pairs without a label are no duplicates.
    The fit begins with the scores of ENCODER: give all verdicts in one file. ENCODER is changed, or
    copied to --out. Prints the precision and recall of held-out verdicts before and after.

    Example: qpr calibrate minilm verdicts.csv --out models/support
    """
    from qpr_jax.encoders.load import save_encoder
    from qpr_jax.index.run import run_encoder_folder
    from qpr_jax.reranking.model import read_encoder_and_model, save_pair_model
    from qpr_jax.reranking.refit import refit

    if out is not None:
        refuse_existing(out)
    elif not pathlib.Path(named).is_dir():
        what = f"expected the folder of an encoder to change, got the name {named!r}"
        raise UserError(what, remedy="name a folder for the calibrated copy with --out")
    encoder, model = read_encoder_and_model(named)
    labeled = read_question_pairs(verdicts, weighted=True, **how)
    model, facts = refit(model, encoder.identity, labeled, encoder.encode(labeled.questions))
    if out is None:
        save_pair_model(run_encoder_folder(named), model)
    else:
        save_encoder(out, encoder, also=functools.partial(_save_last, model))
    where = named if out is None else out
    log.info("%s: %s", where, _FITTED.format_map(facts))
    for name in ("before", "after"):
        if facts[name]:
            log.info("held-out labels, %s: %s", name, _FIT.format_map(facts[name]))
    if facts["after"]["brier"] >= facts["after"]["base_brier"]:
        log.warning(
            "the scores say less than the share of duplicates alone; judge found pairs, as "
            "`qpr review` shows them: likely pairs and made opposites are no sample of these"
        )
    return {"out": where, **facts}
