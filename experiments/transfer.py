"""What holds on a table that nothing was fitted to: distances alone, and what ships.

    python -m experiments.transfer [--encoders minilm open_student] [--tables FOLDER]
        [--sources FOLDER] [--training-texts FILE] [--change two] [--results DIR]

Each table of `transfer_tables.py` is scored by the distance alone, whose bounds are fitted to the
other tables, and by what ships: average precision of all pairs, H@1 and MRR of queries, and the
ROC AUC of "has an answer" by the score of the first hit. An interval has 95 %, by a bootstrap over
groups. With --training-texts a text of a table that stands there is an error. With --change the
queries have typing errors (`query_changes.py`).
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from experiments.pages import table_lines, write_page
from experiments.pair_evidence import Evidence
from experiments.query_changes import change_queries
from experiments.transfer_fit import fit_plain
from experiments.transfer_scores import (
    Difference,
    Figure,
    area_figure,
    balanced_accuracy,
    best_bound,
    called,
    difference,
    mean_figure,
    precisions,
)
from experiments.transfer_tables import Table, add_options, in_training, read_tables
from qpr_jax.cli.program import run_program
from qpr_jax.duplicates.pairs import SWEPT, THRESHOLD
from qpr_jax.duplicates.search import find_duplicates
from qpr_jax.errors import UserError
from qpr_jax.evaluation.scores import reliability
from qpr_jax.index.protocol import CLOSE
from qpr_jax.locations import read_encoder
from qpr_jax.pair_model.plain import PlainModel, general_model, probability, save_plain
from qpr_jax.retriever import Retriever

log = logging.getLogger("qpr_jax")

ENCODERS = ("minilm", "open_student")
DEPTH = 10  # hits of a query
ROUNDING = 1e-6  # of float32 distances, which changes no figure
LARGE, LEAST = 300, 0.02  # a table of so many queries loses at most this
MEAN_LEAST = -0.01  # of the mean difference: the lower end of its interval
RULED = ("average precision", "H@1", "ROC AUC")
COMPARED = (*RULED, "MRR")
BOUNDED = ("precision", "recall", "f1", "close")
MORE = ("calibration error", "contrasts found")  # of the score alone
LEAST_SCORE = 0.05  # pairs with a lower one are not ordered


class Scored(NamedTuple):
    """What a scorer says of a table: of all pairs [P], and of queries and their hits."""

    order: np.ndarray  # float [P], higher is more alike
    counts: np.ndarray  # bool [P], is a duplicate by default
    probabilities: np.ndarray | None  # [P]
    hits: np.ndarray  # int64 [q, DEPTH], positions in `Table.indexed`, best first
    best: np.ndarray  # float [q], the scores of first hits
    close: np.ndarray  # bool [q], whether they are shown as answers


Scorer = Callable[[Evidence], Scored]
# Fits a scorer to tables, of which the one that is scored is left out.
Fit = Callable[[Sequence[Evidence]], Scorer]
# The figures of a table by name: those of COMPARED, and numbers.
Figures = Mapping[str, Any]


def first_hits(scores: np.ndarray, bound: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `hits`, `best` and `close` of scores [q, k]."""
    best = scores.max(axis=1)
    return np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH], best, best >= bound


def by_distance(fitted: Sequence[Evidence]) -> Scorer:
    """Score by the cosine, and bounds on it."""
    least = best_bound([e.cosines for e in fitted], [e.same for e in fitted], "f1")
    first, answered = zip(
        *((e.to_queries.max(axis=1), e.table.answers >= 0) for e in fitted), strict=True
    )
    close = best_bound(first, answered, "accuracy")
    return lambda e: Scored(e.cosines, e.cosines >= least, None, *first_hits(e.to_queries, close))


def by_model(model: PlainModel) -> Scorer:
    """Score by a plain model of pairs; words are of near pairs alone."""

    def score(e: Evidence) -> Scored:
        distances, near = 2 - 2 * e.cosines, e.near
        spreads = model.spreads(e.neighbors)
        spreads = (spreads[e.first] + spreads[e.second]) / 2
        logits = model.without_words(distances, spreads)
        logits[near] = model.with_words(e.near_words, distances[near], spreads[near])
        found = probability(logits)
        cosines = np.take_along_axis(e.to_queries, e.hits, axis=1)
        words = e.hit_words.reshape(cosines.size, -1)
        of_hits = probability(model.with_words(words, 2 - 2 * cosines.ravel(), None))
        hits, best, close = first_hits(of_hits.reshape(cosines.shape), CLOSE)
        hits = np.take_along_axis(e.hits, hits, axis=1)
        return Scored(logits, found >= THRESHOLD, found, hits, best, close)

    return score


def shipped(name: str) -> Scorer:
    """Score by what a user gets of an encoder; pairs that are not found have the score 0."""

    def score(e: Evidence) -> Scored:
        table, scores = e.table, np.zeros(len(e.cosines))
        pairs = find_duplicates(table.texts, encoder=name, threshold=LEAST_SCORE).pairs
        ends = np.array([sorted((int(p.id1), int(p.id2))) for p in pairs], np.int64)
        scores[e.places(ends.reshape(-1, 2))] = [p.score for p in pairs]
        retriever = Retriever.build([table.texts[i] for i in table.indexed], encoder=name)
        found = retriever.search(table.queries, DEPTH)
        return Scored(
            scores + 1e-9 * e.cosines,
            scores >= THRESHOLD,
            scores,
            np.array([[hit.id for hit in hits] for hits in found], np.int64),
            np.array([hits[0].score for hits in found], np.float64),
            np.array([bool(hits[0].close) for hits in found]),
        )

    return score


def evaluate(e: Evidence, scored: Scored) -> Figures:
    """Compute the figures of a table."""
    table, same = e.table, e.same
    found: dict[str, Any] = called(scored.counts, same)
    owners = table.groups[e.first[same]]
    found["average precision"] = mean_figure(precisions(scored.order, same), owners)
    if scored.probabilities is not None:
        near = scored.probabilities[e.candidates]
        found["calibration error"] = reliability(near, same[e.candidates], bins=10)["ece"]
    if len(table.contrasts):
        found["contrasts found"] = scored.counts[e.places(table.contrasts)].mean()
    answered = table.answers >= 0
    right = np.take_along_axis(e.answers, scored.hits, axis=1)[answered]
    groups = table.answers[answered]
    ranks = np.where(right.any(axis=1), 1 / (1 + right.argmax(axis=1)), 0)
    found["H@1"] = mean_figure(right[:, 0].astype(np.float64), groups)
    found["MRR"] = mean_figure(ranks, groups)
    clusters = np.where(answered, table.answers, -1 - np.arange(len(answered)))
    found["ROC AUC"] = area_figure(scored.best, answered, clusters)
    found["close"] = balanced_accuracy(scored.close, answered)
    return found


def leave_one_out(evidence: Sequence[Evidence], fit: Fit) -> list[Scored]:
    """Score each table by a scorer that is fitted to the others."""
    return [fit([e for e in evidence if e is not one])(one) for one in evidence]


def judge(
    tables: Sequence[Table], ours: Sequence[Figure], theirs: Sequence[Figure]
) -> tuple[list[Difference], bool]:
    """Compare a figure of a scorer with that of the distance alone.

    Returns:
      The differences of the tables, then their mean; and whether the rule "no harm on a table that
      was left out" holds.
    """
    each = [difference([a], [b]) for a, b in zip(ours, theirs, strict=True)]
    mean = difference(ours, theirs)
    loses = any(
        d.high < -ROUNDING or (d.mean < -LEAST and len(t.queries) >= LARGE)
        for d, t in zip(each, tables, strict=True)
    )
    return [*each, mean], mean.low > MEAN_LEAST and not loses


def lines(
    name: str, tables: Sequence[Table], alone: Sequence[Figures], ours: Sequence[Figures]
) -> list[str]:
    """Format the figures by the distance alone and by a scorer as tables of Markdown."""
    page = []
    names = [*(table.name for table in tables), "mean"]
    for title in COMPARED:
        theirs, mine = ([figures[title] for figures in side] for side in (alone, ours))
        gains, harmless = judge(tables, mine, theirs)
        values = [[figure.value for figure in side] for side in (theirs, mine)]
        columns = [
            names,
            *([f"{value:.3f}" for value in [*side, float(np.mean(side))]] for side in values),
            [f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" for gain in gains],
        ]
        page += [f"### {title}, `{name}`", ""]
        head = ["table", "distance", "score", "difference"]
        page += table_lines(head, zip(*columns, strict=True))
        if title in RULED:
            page += ["No harm." if harmless else "Harm: it stays off by default.", ""]
    rows = []
    for table, first, second in zip(tables, alone, ours, strict=True):
        cells = [f"{first[key]:.2f}; {second[key]:.2f}" for key in BOUNDED]
        cells += [f"{second[key]:.3f}" if key in second else "" for key in MORE]
        rows.append([table.name, *cells])
    page += [f"### Defaults, `{name}`: a bound on the distance; on the score", ""]
    return page + table_lines(["table", *BOUNDED, *MORE], rows)


def write_model(path: pathlib.Path, name: str, evidence: Sequence[Evidence]) -> None:
    """Write the model that ships with an encoder, and log the weights that the tables have.

    Its precisions are those of each table, by a fit to the others: their first and third quartile.
    """
    found = []
    for one, scored in zip(evidence, leave_one_out(evidence, fitted_score), strict=True):
        assert scored.probabilities is not None
        counts = [scored.probabilities >= bound for bound in SWEPT]
        found.append([called(count, one.same)["precision"] for count in counts])
    model = general_model(evidence[0].encoder)
    for bound, low, high in zip(SWEPT, *np.percentile(found, [25, 75], axis=0), strict=True):
        model.precisions[f"{bound:g}"] = round(float(low), 2), round(float(high), 2)
    save_plain(path / name, model)
    log.info("%s: %s; fitted: %s", path / name, model, fit_plain(evidence))


def fitted_score(fitted: Sequence[Evidence]) -> Scorer:
    """Score by a model that is fitted to tables."""
    return by_model(fit_plain(fitted))


def check_training(tables: Sequence[Table], path: pathlib.Path) -> None:
    """Raise a UserError if a text of a table stands in a file of training texts, one a line."""
    training = path.read_text(encoding="utf-8").splitlines()
    for table in tables:
        if seen := in_training(table, training):
            what = f"{path}: expected no text of the table {table.name}, got {len(seen):,}"
            raise UserError(f"{what}, such as {seen[0]!r:.60}", remedy="leave them out")


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--encoders", nargs="+", default=ENCODERS)
    parser.add_argument("--training-texts", type=pathlib.Path, help="one a line")
    parser.add_argument("--change", choices=("neighbor", "drop", "swap", "two"))
    parser.add_argument("--fit", action="store_true", help="score by the model of transfer_fit")
    parser.add_argument("--write", type=pathlib.Path, help="folder of the models that ship")
    parser.add_argument("--results", type=pathlib.Path, default="runs/transfer", help="of the page")
    add_options(parser)
    options = parser.parse_args()
    tables = read_tables(options)
    if name := options.change:
        tables = [
            replace(t, queries=change_queries(name, t.queries, [], len(t.queries)).texts)
            for t in tables
        ]
    if options.training_texts:
        check_training(tables, options.training_texts)
    page = []
    for name in options.encoders:
        log.info("%s: scoring %s tables", name, len(tables))
        encoder = read_encoder(name)
        evidence = [Evidence(table, encoder) for table in tables]
        if options.write:
            write_model(options.write, name, evidence)
        alone, fits = (leave_one_out(evidence, fit) for fit in (by_distance, fitted_score))
        scored = (alone, fits if options.fit else [*map(shipped(name), evidence)])
        page += lines(name, tables, *([*map(evaluate, evidence, side)] for side in scored))
    options.results.mkdir(parents=True, exist_ok=True)
    write_page(options.results, "Tables that were left out", page)
    log.info("see %s", options.results / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
