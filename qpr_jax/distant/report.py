"""How a person judges clusters: a histogram, a sample for verdicts, and its accuracy."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable
from typing import Any

from qpr_jax.data.tables import read_values
from qpr_jax.distant.method import Cluster
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically

SAMPLE = 200  # clusters in the sample for verdicts, as in the paper's spot check
SAMPLE_COLUMNS = ("verdict", "answer", "size", "coherence", "questions")
_YES, _NO = ("1", "yes", "y", "true"), ("0", "no", "n", "false")
_BINS = 20
_SHOWN = 10  # questions of a cluster
_REMEDY = "fill in a sample.tsv of `qpr clusters`, and keep it tab-separated UTF-8"


def histogram(clusters: Iterable[Cluster]) -> list[dict[str, Any]]:
    """Count the clusters and their questions in equal ranges of coherence."""
    bins = [{"clusters": 0, "questions": 0} for _ in range(_BINS)]
    for cluster in clusters:
        found = bins[min(int(cluster.coherence * _BINS), _BINS - 1)]
        found["clusters"] += 1
        found["questions"] += len(cluster.questions)
    return [{"from": i / _BINS, "to": (i + 1) / _BINS, **row} for i, row in enumerate(bins)]


def write_sample(path: pathlib.Path, sample: Iterable[Cluster]) -> None:
    """Write clusters as TSV with an empty column `verdict`, for 1 or yes, 0 or no."""
    with write_atomically(path, "w") as file:
        file.write("\t".join(SAMPLE_COLUMNS) + "\n")
        for answer, questions, coherence in sample:
            shown = " | ".join(questions[:: -(-len(questions) // _SHOWN)])
            file.write(f"\t{answer}\t{len(questions)}\t{coherence:.4f}\t{shown}\n")


def score_verdicts(path: str) -> dict[str, Any]:
    """Return the share of judged clusters that are coherent, with Wilson's 95 % interval."""

    def parse(verdict: object) -> str | None:
        word = str(verdict).strip().lower()
        return word if word in ("", *_YES, *_NO) else None

    columns, expected = ["verdict"], "a `verdict` 1 or yes, 0 or no, or nothing"
    rows = read_values(path, columns, parse, expected=expected, format="tsv", remedy=_REMEDY)
    given = [word for _, word in rows]
    verdicts = [word in _YES for word in given if word]
    if not verdicts:
        what = f"{path}: expected verdicts, got {len(given)} blank ones"
        raise UserError(what, remedy="fill in the column `verdict`")
    low, high = wilson(sum(verdicts), len(verdicts))
    return {
        "judged": len(verdicts),
        "not_judged": len(given) - len(verdicts),
        "coherent": sum(verdicts),
        "accuracy": sum(verdicts) / len(verdicts),
        "low": low,
        "high": high,
    }


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's score interval of a share."""
    share, scale = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    root = math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    half = z / scale * root
    return max(0.0, middle - half), min(1.0, middle + half)
