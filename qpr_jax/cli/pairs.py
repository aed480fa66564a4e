"""Commands of pairs: negatives mines them, rerank scores them, calibrate fits probabilities."""

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
from qpr_jax.data.decoding import input_name
from qpr_jax.data.pairs import COLUMNS, IDS, QuestionPairs, read_question_pairs
from qpr_jax.data.splits import SPLITS, group_questions, read_split
from qpr_jax.data.tables import read_values
from qpr_jax.distant.folder import content_hash
from qpr_jax.errors import UserError, needs
from qpr_jax.files import read_object, refuse_existing, write_atomically

if TYPE_CHECKING:
    from qpr_jax.reranking.cross_encoder import CrossEncoder

log = logging.getLogger("qpr_jax")

_COUNTS = (
    "{queries:,} queries, {negatives:,} negatives; {short:,} queries have fewer than asked for; "
    "hits dropped: {paraphrases:,} known paraphrases or the query itself, {rank:,} before the "
    "first rank, {margin:,} within the margin, {score:,} paraphrases by score"
)
_FITTED = "fitted to {verdicts:,} verdicts, {duplicates:,} duplicates"
_FIT = "calibration error {ece:.3f}, Brier score {brier:.3f} (base rate {base_brier:.3f})"


@cli.command(stopped="{out} is complete or unchanged")
@cli.argument("run", type=cli.PATH)
@cli.argument("pairs", default="-")
@cli.option("--out", required=True, type=cli.FILE, help="A .tsv or .jsonl file.")
@cli.option("--from-rank", default=1, type=cli.COUNT, help="First rank to keep.")
@cli.option("--to-rank", default=50, type=cli.COUNT, help="Last rank to keep.")
@cli.option("--count", default=4, type=cli.COUNT, help="Negatives per query.")
@cli.option("--relative-margin", type=cli.DISTANCE, help="Distance: 1 + this times the positive's.")
@cli.option("--rerank", type=click.Choice(["light"]), help="Score hits by RUN's re-ranker.")
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
    and, with a model, score (the probability that the two mean the same). A training reads the file
    as data.negatives.

    \b
    Example: qpr negatives runs/quora_sdml pairs.tsv --split train --out negatives.tsv \\
                 --relative-margin 0.5
             qpr train runs/mine pairs.tsv --set data.negatives=negatives.tsv \\
                 --set batch.hard_negatives=128
    """
    from qpr_jax.index.negatives import FIELDS, Rules, find_negatives
    from qpr_jax.reranking.cross_encoder import read_cross_encoder
    from qpr_jax.retriever import Retriever

    if options["from_rank"] > options["to_rank"]:
        raise click.UsageError("--from-rank is above --to-rank")
    if options["max_score"] is not None and not (options["rerank"] or options["cross_encoder"]):
        raise click.UsageError("--max-score goes with --rerank or --cross-encoder")
    output = pathlib.Path(out).suffix.removeprefix(".")
    if output not in ("tsv", "jsonl"):
        raise UserError(f"expected a file .tsv or .jsonl, got {out}", setting="out")
    if pathlib.Path(out).resolve() == pathlib.Path(pairs).resolve():
        raise UserError(f"expected another file than that of the pairs, got {out}", setting="out")
    rerank, cross_encoder = options.pop("rerank"), options.pop("cross_encoder")
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
    if rerank and not retriever.stages.scores(retriever.store):
        raise UserError(f"{run}: has no scores of pairs", setting="rerank")
    counts: Counter[str] = Counter()
    found = find_negatives(
        labeled.questions,
        groups,
        queries,
        Rules(**{name: value for name, value in options.items() if value is not None}),
        encode=retriever.encode,
        find=retriever.store.search,
        rerank=functools.partial(retriever.stages.score_hits, retriever.store) if rerank else None,
        score=score,
        counts=counts,
    )
    with progress.bar("query", sum(map(len, queries))) as show, write_atomically(out, "w") as file:

        def rows() -> Iterator[dict[str, object]]:
            for some in found:
                yield from (negative.fields(labeled.questions) for negative in some)
                show(counts["queries"], "")

        header = FIELDS if score or rerank else FIELDS[:-1]
        file.writelines(cli.as_lines(rows(), output, header))
    log.info("%s: %s", out, _COUNTS.format_map(counts))
    return {"out": out, **counts}


def _read_queries(
    run: str, path: str, split: str | None, how: dict[str, Any]
) -> tuple[QuestionPairs, np.ndarray, list[np.ndarray]]:
    """Read the labeled pairs, the groups of their questions, and those with several texts."""
    from qpr_jax.data.clusters import transitive_clusters
    from qpr_jax.index.negatives import query_groups

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


@cli.command(stopped="the calibration is the old one or the new one")
@cli.argument("named", metavar="ENCODER", type=cli.PATH)
@cli.argument("verdicts", default="-")
@cli.option("--out", type=cli.FOLDER, help="New folder, instead of changing ENCODER.")
@cli.table_format("VERDICTS")
@cli.skip_bad_rows
def calibrate(named: str, verdicts: str, out: str | None, **how: Any) -> dict[str, Any]:
    """Fit the probabilities of found pairs to VERDICTS.

    VERDICTS has question1, question2 and is_duplicate (0 or 1) and, where known, weight (the number
    of found pairs that it stands for), as `qpr review` writes them. Without weights, they must be a
    random sample of the found pairs. They replace those of an earlier fit: give all in one file.
    ENCODER is changed, or copied to --out. Prints how well the probabilities fit before and after,
    by cross-validation.

    Example: qpr calibrate minilm verdicts.csv --out models/support
    """
    from qpr_jax.encoders.load import save_encoder
    from qpr_jax.index.run import run_encoder_folder
    from qpr_jax.index.vectors import pair_distances
    from qpr_jax.reranking.calibration import CALIBRATION, save_calibration
    from qpr_jax.reranking.stages import read_stages

    if out is not None:
        refuse_existing(out)
    elif not pathlib.Path(named).is_dir():
        what = f"expected the folder of an encoder to change, got the name {named!r}"
        raise UserError(what, remedy="name a folder for the calibrated copy with --out")
    encoder, stages = read_stages(named)
    given = read_question_pairs(verdicts, weighted=True, **how)
    with needs("`qpr calibrate`", ".[train]"):
        from qpr_jax.reranking.recalibration import recalibrate
    questions = given.questions
    vectors = encoder.encode(questions)
    first, second = given.pairs.T
    distances = pair_distances(vectors, first, second)
    features = stages.pair_features().of_pairs(questions, first, second, distances)
    stages.calibration, facts = recalibrate(encoder.identity, stages.calibration, given, features)
    if out is None:
        save_calibration(run_encoder_folder(named) / CALIBRATION, stages.calibration)
    else:
        save_encoder(out, encoder, also=stages.save)
    where = named if out is None else out
    log.info("%s: %s", where, _FITTED.format_map(facts))
    for name in ("before", "after"):
        if facts[name]:
            log.info("%s: %s", name, _FIT.format_map(facts[name]))
    if facts["after"]["brier"] >= facts["after"]["base_brier"]:
        log.warning(
            "the probabilities say less than the share of duplicates alone; judge found pairs, as "
            "`qpr review` shows them: likely pairs and made opposites are no sample of these"
        )
    return {"out": where, **facts}
