"""What holds on a table that nothing was fitted to: distances alone, and what ships.

    python -m experiments.transfer [--encoders minilm open_student] [--tables FOLDER]
        [--sources FOLDER] [--training-texts FILE] [--results DIR]

Each table of `transfer_tables.py` is scored by the distance alone, whose bounds are fitted to the
other tables, and by what ships: average precision of all pairs, H@1 and MRR of queries, and the
ROC AUC of "has an answer" by the score of the first hit. An interval has 95 %, by a bootstrap over
groups. With --training-texts a text of a table that stands there is an error.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from experiments.pages import table_lines, write_page
from experiments.pair_evidence import Evidence
from experiments.transfer_fit import fit_plain
from experiments.transfer_scores import (
    Area,
    Difference,
    Figure,
    Mean,
    balanced_accuracy,
    best_bound,
    calibration_error,
    called,
    difference,
    precisions,
)
from experiments.transfer_tables import Table, add_options, in_training, read_tables
from qpr_jax.cli.program import run_program
from qpr_jax.duplicates.pairs import SWEPT, THRESHOLD
from qpr_jax.duplicates.search import find_duplicates
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.index.base import CLOSE
from qpr_jax.reranking.plain import PlainModel, probability, save_plain
from qpr_jax.retriever import Retriever, read_encoder

log = logging.getLogger("qpr_jax")

ENCODERS = ("minilm", "open_student")
DEPTH = 10  # hits of a query
ROUNDING = 1e-6  # of float32 distances, which changes no figure
LARGE, LEAST = 300, 0.02  # a table of so many queries loses at most this
MEAN_LEAST = -0.01  # of the mean difference: the lower end of its interval
RULED = ("average precision", "H@1", "ROC AUC")
COMPARED = (*RULED, "MRR")
BOUNDED = ("precision", "recall", "f1", "close")
NEAR = "contrasts found"
LEAST_SCORE = 0.05  # pairs with a lower one are not ordered


class PairScores(NamedTuple):
    """What a scorer says of all pairs of a table: [P] each."""

    order: np.ndarray  # float, higher is more alike
    counts: np.ndarray  # bool, is a duplicate by default
    probabilities: np.ndarray | None = None


class HitScores(NamedTuple):
    """What a scorer says of queries and their hits."""

    rows: np.ndarray  # int64 [q, DEPTH], positions in `Table.indexed`, best first
    scores: np.ndarray  # float [q], of the first hit
    close: np.ndarray  # bool [q], whether it is shown as an answer


class Scorer(Protocol):
    """Scores the pairs and the queries of a table."""

    def pairs(self, evidence: Evidence) -> PairScores:
        """Score all pairs."""

    def hits(self, evidence: Evidence) -> HitScores:
        """Search with all queries."""


# Fits a scorer to tables, of which the one that is scored is left out.
Fit = Callable[[Sequence[Evidence]], Scorer]


class ByDistance:
    """The cosine, and bounds on it."""

    def __init__(self, fitted: Sequence[Evidence]) -> None:
        pairs = [e.of_pairs(e.cosines) for e in fitted]
        self.pair_bound = best_bound(pairs, [e.same for e in fitted], "f1")
        first = [e.to_queries.max(axis=1) for e in fitted]
        self.hit_bound = best_bound(first, [e.table.answers >= 0 for e in fitted], "accuracy")

    def pairs(self, evidence: Evidence) -> PairScores:
        """Score all pairs."""
        cosines = evidence.of_pairs(evidence.cosines)
        return PairScores(cosines, cosines >= self.pair_bound)

    def hits(self, evidence: Evidence) -> HitScores:
        """Search with all queries."""
        return first_hits(evidence.to_queries, self.hit_bound)


def first_hits(scores: np.ndarray, bound: float) -> HitScores:
    """Return the best hits by scores [q, k]."""
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
    best = scores.max(axis=1)
    return HitScores(rows, best, best >= bound)


class ByModel:
    """A plain model of pairs."""

    def __init__(self, model: PlainModel) -> None:
        self.model = model

    def pairs(self, evidence: Evidence) -> PairScores:
        """Score all pairs; guards are of near pairs alone."""
        spreads = evidence.spreads(self.model, evidence.first, evidence.second)
        logits = self.model.without_guards(evidence.distances, spreads)
        near = evidence.near
        logits[near] = self.model.with_guards(
            evidence.near_guards, evidence.distances[near], spreads[near]
        )
        found = probability(logits)
        return PairScores(logits, found >= THRESHOLD, found)

    def hits(self, evidence: Evidence) -> HitScores:
        """Search with all queries."""
        cosines = np.take_along_axis(evidence.to_queries, evidence.hits, axis=1)
        guards = evidence.hit_guards.reshape(cosines.size, -1)
        logits = self.model.with_guards(guards, 2 - 2 * cosines.ravel(), None)
        found = first_hits(probability(logits).reshape(cosines.shape), CLOSE)
        return found._replace(rows=np.take_along_axis(evidence.hits, found.rows, axis=1))


class Shipped:
    """What a user gets of an encoder; nothing is fitted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pairs(self, evidence: Evidence) -> PairScores:
        """Find duplicates; pairs that are not found have the score 0."""
        found = find_duplicates(evidence.table.texts, encoder=self.name, threshold=LEAST_SCORE)
        scores = np.zeros(evidence.cosines.shape)
        for pair in found.pairs:
            ends = int(pair.id1), int(pair.id2)
            scores[ends] = scores[ends[::-1]] = pair.score
        shown = evidence.of_pairs(scores)
        order = shown + 1e-9 * evidence.of_pairs(evidence.cosines)
        return PairScores(order, shown >= THRESHOLD, shown)

    def hits(self, evidence: Evidence) -> HitScores:
        """Search with all queries."""
        table = evidence.table
        retriever = Retriever.build([table.texts[i] for i in table.indexed], encoder=self.name)
        found = retriever.search(table.queries, DEPTH)
        rows = np.array([[hit.id for hit in hits] for hits in found], np.int64)
        scores = np.array([hits[0].score for hits in found], np.float64)
        return HitScores(rows, scores, np.array([bool(hits[0].close) for hits in found]))


def by_fit(encoder: Encoder) -> Fit:
    """Return what fits a model of pairs of an encoder."""
    return lambda tables: ByModel(fit_plain(encoder.identity, tables))


def write_model(path: pathlib.Path, tables: Sequence[Table], name: str) -> None:
    """Fit a model to all tables and write it.

    Its precisions are those of each table left out: their first and third quartile.
    """
    encoder = read_encoder(name)
    evidence = [Evidence(table, encoder) for table in tables]
    fit, found = by_fit(encoder), []
    for one in evidence:
        scored = fit([e for e in evidence if e is not one]).pairs(one)
        assert scored.probabilities is not None
        counts = [scored.probabilities >= bound for bound in SWEPT]
        found.append([called(count, one.same)["precision"] for count in counts])
    model = fit_plain(encoder.identity, evidence)
    for bound, low, high in zip(SWEPT, *np.percentile(found, [25, 75], axis=0), strict=True):
        model.precisions[f"{bound:g}"] = round(float(low), 2), round(float(high), 2)
    save_plain(path / name, model)
    log.info("%s: %s", path / name, model)


def evaluate(evidence: Evidence, scorer: Scorer) -> dict[str, Figure | float]:
    """Score a table."""
    table, same = evidence.table, evidence.same
    pairs, hits = scorer.pairs(evidence), scorer.hits(evidence)
    owners = table.groups[evidence.first[same]]
    found: dict[str, Figure | float] = {
        "average precision": Mean(precisions(pairs.order, same), owners)
    }
    found |= called(pairs.counts, same)
    if pairs.probabilities is not None:
        near = evidence.candidates
        found["calibration error"] = calibration_error(pairs.probabilities[near], same[near])
    if len(table.contrasts):
        low, high = table.contrasts.T  # places in np.triu_indices
        rows = low * (2 * len(table.texts) - low - 1) // 2 + high - low - 1
        found[NEAR] = float(pairs.counts[rows].mean())
    answered = table.answers >= 0
    right = np.take_along_axis(evidence.answers, hits.rows, axis=1)[answered]
    groups = table.answers[answered]
    ranks = np.where(right.any(axis=1), 1 / (1 + right.argmax(axis=1)), 0)
    found["H@1"] = Mean(right[:, 0].astype(np.float64), groups)
    found["MRR"] = Mean(ranks, groups)
    clusters = np.where(answered, table.answers, -1 - np.arange(len(answered)))
    found["ROC AUC"] = Area(hits.scores, answered, clusters)
    found["close"] = balanced_accuracy(hits.close, answered)
    return found


def leave_one_out(evidence: Sequence[Evidence], fit: Fit) -> list[dict[str, Figure | float]]:
    """Score each table by a scorer that is fitted to the others."""
    return [evaluate(one, fit([e for e in evidence if e is not one])) for one in evidence]


def _compared(figures: Mapping[str, Figure | float], name: str) -> Figure:
    figure = figures[name]
    assert not isinstance(figure, float), name
    return figure


class Verdict(NamedTuple):
    """A figure by a scorer and by the distance alone, on all tables."""

    tables: list[Difference]
    mean: Difference
    harmless: bool


def judge(
    tables: Sequence[Table],
    ours: Sequence[Mapping[str, Figure | float]],
    theirs: Sequence[Mapping[str, Figure | float]],
    name: str,
) -> Verdict:
    """Apply the rule "no harm on a table that was left out" to one figure."""
    one, other = ([_compared(figures, name) for figures in side] for side in (ours, theirs))
    each = [difference([a], [b]) for a, b in zip(one, other, strict=True)]
    mean = difference(one, other)
    loses = any(d.high < -ROUNDING for d in each) or any(
        d.mean < -LEAST and len(t.queries) >= LARGE for d, t in zip(each, tables, strict=True)
    )
    return Verdict(each, mean, mean.low > MEAN_LEAST and not loses)


class Measured(NamedTuple):
    """The figures of an encoder on all tables, by the distance alone and by a scorer."""

    tables: list[Table]
    distance: list[dict[str, Figure | float]]
    scorer: list[dict[str, Figure | float]]


def measure(tables: Sequence[Table], name: str, *, fit: bool = False) -> Measured:
    """Score the tables by an encoder; `fit`: by models fitted to the others, not by what ships."""
    encoder = read_encoder(name)
    evidence = [Evidence(table, encoder) for table in tables]
    alone = leave_one_out(evidence, ByDistance)
    if fit:
        return Measured([*tables], alone, leave_one_out(evidence, by_fit(encoder)))
    return Measured([*tables], alone, [evaluate(one, Shipped(name)) for one in evidence])


def lines(name: str, found: Measured) -> list[str]:
    """Format the figures of an encoder as tables of Markdown."""
    page = []
    for figure in COMPARED:
        verdict = judge(found.tables, found.scorer, found.distance, figure)
        rows = [
            [table.name, f"{_value(a[figure]):.3f}", f"{_value(b[figure]):.3f}", _shown(gain)]
            for table, a, b, gain in zip(*found, verdict.tables, strict=True)
        ]
        means = [np.mean([_value(one[figure]) for one in side]) for side in found[1:]]
        rows.append(["mean", *(f"{mean:.3f}" for mean in means), _shown(verdict.mean)])
        page += [f"### {figure}, `{name}`", ""]
        page += table_lines(["table", "distance", "score", "difference"], rows)
        if figure in RULED:
            page += ["No harm." if verdict.harmless else "Harm: it stays off by default.", ""]
    rows = []
    for table, alone, ours in zip(*found, strict=True):
        cells = [f"{alone[key]:.2f}; {ours[key]:.2f}" for key in BOUNDED]
        more = [f"{ours[key]:.3f}" if key in ours else "" for key in ("calibration error", NEAR)]
        rows.append([table.name, *cells, *more])
    page += [f"### Defaults, `{name}`: a bound on the distance; on the score", ""]
    return page + table_lines(["table", *BOUNDED, "calibration error", NEAR], rows)


def _value(figure: Figure | float) -> float:
    return figure if isinstance(figure, float) else figure.figure


def _shown(gain: Difference) -> str:
    return f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"


def check_training(tables: Sequence[Table], path: pathlib.Path) -> None:
    """Raise a UserError if a text of a table stands in a file of training texts, one a line."""
    with path.open(encoding="utf-8") as file:
        training = file.read().splitlines()
    for table in tables:
        if seen := in_training(table, training):
            what = f"{path}: expected no text of the table {table.name}, got {len(seen):,}"
            raise UserError(f"{what}, such as {seen[0]!r:.60}", remedy="leave them out")


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--encoders", nargs="+", default=ENCODERS)
    parser.add_argument("--training-texts", type=pathlib.Path, help="one a line")
    parser.add_argument("--fit", action="store_true", help="score by the model of transfer_fit")
    parser.add_argument("--write", type=pathlib.Path, help="folder of models fitted to all tables")
    parser.add_argument("--results", type=pathlib.Path, default="runs/transfer", help="of the page")
    add_options(parser)
    options = parser.parse_args()
    tables = read_tables(options)
    if options.training_texts:
        check_training(tables, options.training_texts)
    page = []
    for name in options.encoders if options.write else ():
        write_model(options.write, tables, name)
    for name in options.encoders:
        log.info("%s: scoring %s tables", name, len(tables))
        page += lines(name, measure(tables, name, fit=options.fit))
    options.results.mkdir(parents=True, exist_ok=True)
    write_page(options.results, "Tables that were left out", page)
    log.info("see %s", options.results / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
