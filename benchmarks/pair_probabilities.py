"""Probabilities of found pairs on test questions: how true they are, and what the re-ranker adds.

    python -m benchmarks.pair_probabilities RUN

RUN is a finished run with a re-ranker and a calibration. All pairs up to its reach are found among
all its questions; those of test questions, which nothing was fitted to, are scored by distance and
by the re-ranker, against clusters. Prints Markdown: calibration error, Brier score, F1, precision
asked for and found, wrong joins by how the two texts differ, times, and what verdicts correct:
probabilities that are made wrong are fitted to clusters in place of people (`qpr calibrate`).
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.tables import table_lines
from qpr_jax.cli.program import run_program
from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.splits import SPLITS, read_pairs, read_split
from qpr_jax.evaluation.reliability import reliability
from qpr_jax.index.pair_files import Pairs, join_pairs
from qpr_jax.index.pair_search import find_pairs
from qpr_jax.reranking.light import LIGHT
from qpr_jax.reranking.pairs import PairReranker
from qpr_jax.reranking.recalibration import fit_map
from qpr_jax.retriever import Retriever
from qpr_jax.text.differences import (
    names_differ,
    negation_differs,
    numbers_differ,
    order_differs,
)
from qpr_jax.training.pair_calibration import (
    PRECISIONS,
    pair_weights,
    same_cluster,
    score_probabilities,
    true_pairs,
)

_MEMORY = 1 << 30
_VERDICTS, _DRAWS = (100, 300, 1500), 20
# What makes probabilities wrong: changes of their logits.
WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda x: x,
    "+ 1": lambda x: x + 1,
    "- 1": lambda x: x - 1,
    "* .5": lambda x: 0.5 * x,
    "* 2": lambda x: 2 * x,
}
# How two joined texts differ -> whether they do.
KINDS: dict[str, Callable[[str, str], bool]] = {
    "numbers (in 2015, in 2016)": numbers_differ,
    "negation (can, cannot)": negation_differs,
    "names": names_differ,
    "word order alone": order_differs,
    "any": lambda first, second: True,
}


class Tested(NamedTuple):
    """Pairs of test questions with one another and with all others.

    texts: Q texts. pairs: P pairs of rows. same: bool [P], of one cluster. weights: float64 [P], as
    of `pair_weights`. total: the weight of all true pairs. by: probabilities, float64 [P], by
    distance and by the re-ranker.
    """

    texts: list[str]
    pairs: Pairs
    same: np.ndarray
    weights: np.ndarray
    total: float
    by: dict[str, np.ndarray]


def read_tested(run: str) -> Tested:
    """Find the pairs of a run, and compute the probabilities of those of its test questions."""
    retriever = Retriever.load(run, indexed=True)
    known = retriever.second_stages.require_calibration()
    ids, texts = zip(*retriever.index, strict=True)
    row_of = {value: row for row, value in enumerate(ids)}
    linked = np.concatenate([read_pairs(run, split) for split in SPLITS])
    links = np.array([[row_of[a], row_of[b]] for a, b in linked.tolist()])
    clusters = transitive_clusters(len(texts), links)
    queries = np.array([row_of[value] for value in read_split(run, "test").tolist()])
    vectors = retriever.encoder.encode(list(texts))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = find_pairs(vectors, known.reach, folder, memory=_MEMORY)
        pairs = join_pairs([*found.parts()])
    seconds = time.perf_counter() - start
    print(f"{len(pairs.first):,} pairs of {len(texts):,} questions found in {seconds:.0f} s;")
    weights = pair_weights(clusters, queries, pairs)
    tested = weights > 0
    model = retriever.second_stages.models[LIGHT]
    statistics = retriever.index.keep_statistics()
    start = time.perf_counter()
    raw = PairReranker(model, retriever.encoder, statistics, texts).score(pairs)
    seconds = time.perf_counter() - start
    print(f"re-ranked in {seconds:.0f} s, {len(raw) / seconds:,.0f} pairs/s.\n")
    by = {
        "distance": known.probabilities(pairs.distances[tested]),
        "re-ranker": known.light_probabilities(raw[tested]),
    }
    own = pairs.where(tested)
    total = true_pairs(clusters, queries)
    return Tested([*texts], own, same_cluster(clusters, own), weights[tested], total, by)


def score_lines(tested: Tested) -> list[str]:
    """A table of the scores."""
    head = ["by", "calibration error", "Brier", "base rate's", "best F1", "F1 at .5"]
    head += [f"precision {asked:g}: found, recall" for asked in PRECISIONS]
    rows = []
    for name, p in tested.by.items():
        of: dict[str, Any] = score_probabilities(p, tested.same, tested.weights, tested.total)
        cells = [f"{of[score]:.4f}" for score in ("ece", "brier", "base_brier")]
        cells += [f"{of['best_f1']:.3f}", f"{of['half']['f1']:.3f}"]
        for asked in PRECISIONS:
            at = of["precision"].get(f"{asked:g}")
            cells.append(f"{at['found']:.3f}, {at['recall']:.3f}" if at else "none")
        rows.append([name, *cells])
    return table_lines(head, rows)


def join_lines(tested: Tested) -> list[str]:
    """A table of wrong and right joins by how the two texts differ.

    By distance and by the re-ranker, at the threshold .5 and where the other has the recall of
    distance at its best F1.
    """
    order = np.argsort(-tested.by["distance"], kind="stable")
    right = np.cumsum((tested.weights * tested.same)[order])
    f1 = 2 * right / (np.cumsum(tested.weights[order]) + tested.total)
    recall = float(right[f1.argmax()])
    joined = {f"{name}, .5": p >= 0.5 for name, p in tested.by.items()}
    for name, p in tested.by.items():
        joined[f"{name}, recall {recall / tested.total:.2f}"] = _at_recall(tested, p, recall)
    rows = []
    first, second = tested.pairs.first.tolist(), tested.pairs.second.tolist()
    for kind, differs in KINDS.items():
        cells = []
        for taken in joined.values():
            some = np.flatnonzero(taken)
            chosen = [differs(tested.texts[first[i]], tested.texts[second[i]]) for i in some]
            same = tested.same[some[np.array(chosen, bool)]]
            cells.append(f"{(~same).sum():,}, {same.sum():,}")
        rows.append([kind, *cells])
    return table_lines(["differ in", *joined], rows)


def _at_recall(tested: Tested, p: np.ndarray, recall: float) -> np.ndarray:
    """The most probable pairs that have this weight of true ones, bool [P]."""
    order = np.argsort(-p, kind="stable")
    right = np.cumsum((tested.weights * tested.same)[order])
    taken = np.zeros(len(p), bool)
    taken[order[: np.searchsorted(right, recall * (1 - 1e-9)) + 1]] = True
    return taken


def verdict_lines(tested: Tested) -> list[str]:
    """A table of the calibration error after fits to verdicts, drawn by sqrt(p (1 - p))."""
    true, rows = np.clip(tested.by["re-ranker"], 1e-4, 1 - 1e-4), []
    logits, same, weights = np.log(true / (1 - true)), tested.same, tested.weights
    rng = np.random.default_rng(0)
    for name, change in WRONG.items():
        wrong = 1 / (1 + np.exp(-change(logits)))
        share = weights * np.sqrt(wrong * (1 - wrong) + 1e-4)
        share /= share.sum()
        cells = [f"{reliability(wrong, same, weights)['ece']:.3f}"]
        for count in _VERDICTS:
            errors = []
            for _ in range(_DRAWS):
                drawn = rng.choice(len(same), count, p=share)
                fitted = fit_map(wrong[drawn], same[drawn], weights[drawn] / share[drawn])
                errors.append(reliability(fitted(wrong), same, weights)["ece"])
            cells.append(f"{np.mean(errors):.3f}")
        rows.append([name, *cells])
    return table_lines(["logit", "before", *(f"{n:,} verdicts" for n in _VERDICTS)], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    args = parser.parse_args()
    tested = read_tested(str(args.run))
    print("\n".join(score_lines(tested)), end="\n\n")
    print("Joined pairs of test questions: of different clusters, of one.\n")
    print("\n".join(join_lines(tested)))
    print(f"\nCalibration error of the re-ranker, mean of {_DRAWS} draws of verdicts.\n")
    print("\n".join(verdict_lines(tested)))
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
