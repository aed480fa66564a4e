"""What a review of found pairs tells after 30, 100 and 300 verdicts, in simulated draws.

    python -m benchmarks.review --run runs/quora_sdml

Pairs of the test questions of a Quora run with their 20 nearest among them, each once; a verdict
says whether both questions are in one cluster. (Among all questions no distance has a precision of
.81: Quora labels few of the pairs that lie so near.) Probabilities are fitted on the pairs of the
validation questions, and then made wrong: a review must not rely on them. Printed are, over all
draws, the shares in which the estimated precision at the chosen threshold lies within .1, .05 and
.03 (after 30, 100 and 300 verdicts) of the true one, and in which its 90 % interval covers that;
the mean width of the interval; the mean of the true precision, and its standard deviation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np

from experiments.configs import quora_sdml
from qpr_jax.data.clusters import in_one_cluster
from qpr_jax.data.sources import find_quora
from qpr_jax.data.splits import SPLITS
from qpr_jax.duplicates.sampling import choose_threshold, make_strata, rank_strata
from qpr_jax.index.exact import exact_top_k
from qpr_jax.reranking.isotonic import calibrate
from qpr_jax.retriever import run_encoder
from qpr_jax.training.dataset import load_dataset

NEAREST = 20
EPSILON = 1e-9  # all pairs may have been judged
WITHIN = {30: 0.1, 100: 0.05, 300: 0.03}  # verdicts -> error of the precision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="runs/quora_sdml")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--precisions", type=float, nargs="+", default=[0.8, 0.85, 0.9])
    arguments = parser.parse_args()
    probabilities, labels = pairs_of_test(arguments.run)
    print("| probabilities | precision asked | verdicts | within | covered | width | true | sd |")
    print("|---" * 8 + "|")
    found: dict[tuple[float, int], list[tuple[float, ...]]] = {}
    for name, wrong in distortions().items():
        for asked in arguments.precisions:
            drawn = [*draws(wrong(probabilities), labels, asked, arguments.draws)]
            for verdicts, rows in zip(WITHIN, np.swapaxes(drawn, 0, 1), strict=True):
                estimate, low, high, true = rows.T
                within = np.abs(estimate - true) <= WITHIN[verdicts]
                covered = (low - EPSILON <= true) & (true <= high + EPSILON)
                shares = within.mean(), covered.mean()
                numbers = (*shares, (high - low).mean(), true.mean(), true.std())
                cells = " | ".join(f"{number:.3f}" for number in numbers)
                print(f"| {name} | {asked:g} | {verdicts} | {cells} |", flush=True)
                found.setdefault((asked, verdicts), []).append(numbers)
    print("\n| asked | verdicts | within | with wrong | covers | with wrong | width |")
    print("|---" * 7 + "|")
    for (asked, verdicts), rows in found.items():
        (within, covered, width, *_), *wrong_rows = rows
        of_wrong = np.transpose(wrong_rows)
        cells = f"{within:.2f} | {span(of_wrong[0])} | {covered:.2f} | {span(of_wrong[1])}"
        print(f"| {asked:g} | {verdicts} | {cells} | {width:.3f} |")


def span(shares: np.ndarray) -> str:
    """The least and the greatest share."""
    ends = dict.fromkeys(f"{share:.2f}" for share in (shares.min(), shares.max()))
    return " to ".join(ends)


def pairs_of_test(run: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities float64 [P] of found pairs of test questions, and labels bool [P]."""
    dataset = load_dataset(quora_sdml.get_config(), find_quora())
    vectors = run_encoder(run).encode(dataset.data.questions)
    found = {}
    for name in ("validation", "test"):
        queries = np.flatnonzero(dataset.splits.split_of == SPLITS.index(name))
        distances, rows = exact_top_k(vectors[queries], vectors[queries], NEAREST + 1)
        pairs = np.stack(np.broadcast_arrays(queries[:, None], queries[rows]), axis=2)
        pairs = pairs.reshape(-1, 2)
        other = pairs[:, 0] != pairs[:, 1]
        pairs, first = np.unique(np.sort(pairs[other], axis=1), axis=0, return_index=True)
        labels = in_one_cluster(dataset.clusters, pairs)
        found[name] = -distances.ravel()[other][first].astype(np.float64), labels
    points = calibrate(*found["validation"])
    nearness, labels = found["test"]
    print(f"{len(labels):,} pairs of test questions, {labels.mean():.3f} of them duplicates\n")
    return np.interp(nearness, *points), labels


def distortions() -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Ways to make probabilities wrong: their logits times a number, plus another."""
    changes = {"as fitted": (1, 0), "logits + 1": (1, 1), "logits - 1": (1, -1)}
    changes |= {"logits times .5": (0.5, 0), "logits times 2": (2, 0)}

    def change(scale: float, shift: float) -> Callable[[np.ndarray], np.ndarray]:
        def apply(probabilities: np.ndarray) -> np.ndarray:
            inside = np.clip(probabilities, 1e-6, 1 - 1e-6)
            return 1 / (1 + np.exp(-(scale * np.log(inside / (1 - inside)) + shift)))

        return apply

    return {name: change(*numbers) for name, numbers in changes.items()}


def draws(
    probabilities: np.ndarray, labels: np.ndarray, asked: float, count: int
) -> Iterator[list[tuple[float, float, float, float]]]:
    """For each draw, after each number of verdicts: estimate, its interval, and the truth."""
    strata = make_strata(probabilities)
    stratum = strata.of(probabilities)
    order = np.argsort(-probabilities)
    ordered, true = -probabilities[order], np.cumsum(labels[order]) / np.arange(1, len(order) + 1)
    for seed in range(count):
        shuffled = np.random.default_rng(seed).permutation(len(labels))
        waiting = [iter(shuffled[stratum[shuffled] == h]) for h in range(len(strata.sizes))]
        counts = np.zeros((2, len(strata.sizes)), np.int64)
        rows = []
        for given in range(1, max(WITHIN) + 1):
            chosen = rank_strata(strata, counts[1], counts[0], asked)[0]
            counts[int(labels[next(waiting[chosen])]), chosen] += 1
            if given in WITHIN:
                found = choose_threshold(strata, counts[1], counts[0], asked)
                last = np.searchsorted(ordered, -found.threshold, side="right") - 1
                rows.append((found.precision, found.low, found.high, float(true[last])))
        yield rows


if __name__ == "__main__":
    main()
