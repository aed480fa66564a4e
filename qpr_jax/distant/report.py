"""What a person judges clusters by: counts, a histogram, the largest, a sample with verdicts."""

from __future__ import annotations

import html
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax.data.splits import SPLITS
from qpr_jax.data.tables import read_rows
from qpr_jax.distant.method import Cluster
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically

LARGEST = 20  # clusters of each kind that a report shows
SAMPLE = 200  # clusters for verdicts, as in the paper's spot check
SAMPLE_COLUMNS = ("verdict", "answer", "size", "coherence", "questions")
VERDICTS = {"1": 1, "yes": 1, "y": 1, "true": 1, "0": 0, "no": 0, "n": 0, "false": 0}
_BINS = 20
_REMEDY = "fill in a sample.tsv of `qpr clusters`, and keep it tab-separated UTF-8"


def histogram(coherences: np.ndarray, sizes: np.ndarray) -> list[dict[str, Any]]:
    """How many clusters and questions there are of each range of coherence."""
    bins = np.minimum((coherences * _BINS).astype(np.int64), _BINS - 1)
    clusters = np.bincount(bins, minlength=_BINS)
    questions = np.bincount(bins, sizes, minlength=_BINS).astype(np.int64)
    return [
        {"from": i / _BINS, "to": (i + 1) / _BINS, "clusters": int(c), "questions": int(q)}
        for i, (c, q) in enumerate(zip(clusters, questions, strict=True))
    ]


def write_sample(path: pathlib.Path, sample: Sequence[Cluster]) -> None:
    """Write clusters as TSV with an empty column `verdict`: 1 or yes, 0 or no."""
    with write_atomically(path, "w") as file:
        file.write("\t".join(SAMPLE_COLUMNS) + "\n")
        for cluster in sample:
            shown = " | ".join(cluster.shown)
            file.write(f"\t{cluster.answer}\t{cluster.size}\t{cluster.coherence:.4f}\t{shown}\n")


def judged(path: str) -> dict[str, Any]:
    """The share of the judged clusters that are coherent, with Wilson's 95 % interval."""
    verdicts: list[int] = []
    blank = 0
    for line, fields in read_rows(path, ["verdict"], format="tsv", remedy=_REMEDY):
        if isinstance(fields, str):
            raise UserError(f"{path}, line {line}: {fields}; mend it")
        verdict = str(fields["verdict"]).strip().lower()
        if not verdict:
            blank += 1
        elif verdict in VERDICTS:
            verdicts.append(VERDICTS[verdict])
        else:
            raise UserError(
                f"{path}, line {line}: expected a `verdict` 1 or yes, 0 or no, or nothing, got "
                f"{verdict!r:.40}; mend it"
            )
    if not verdicts:
        raise UserError(
            f"{path}: expected verdicts, got {blank} blank ones; fill in the column `verdict`"
        )
    low, high = wilson(sum(verdicts), len(verdicts))
    return {
        "judged": len(verdicts),
        "not_judged": blank,
        "coherent": sum(verdicts),
        "accuracy": sum(verdicts) / len(verdicts),
        "low": low,
        "high": high,
    }


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a share of so many trials, by Wilson's score."""
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = (
        z
        / (1 + z * z / trials)
        * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    )
    return max(0.0, middle - half), min(1.0, middle + half)


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .2rem .6rem;
border-bottom: 1px solid #8884; vertical-align: top } .number { text-align: right }
.bar { background: #48c; height: 1em } ul { margin: 0; padding-left: 1.2em }
:root { color-scheme: light dark }
"""


def write_page(path: pathlib.Path, report: dict[str, Any]) -> None:
    """Write the report as a page that loads nothing."""
    method = report["method"]
    counts = [(name, value) for name, value in report.items() if isinstance(value, int)]
    most = max(row["clusters"] for row in report["histogram"]) or 1
    histogram_rows = [
        f'<tr><td>{row["from"]:.2f} to {row["to"]:.2f}<td class="number">{row["clusters"]:,}'
        f'<td class="number">{row["questions"]:,}<td style="width: 50%"><div class="bar" '
        f'style="width: {100 * row["clusters"] / most:.1f}%"></div></tr>'
        for row in report["histogram"]
    ]
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><title>Clusters of questions answered alike</title>',
        f"<style>{_STYLE}</style>",
        "<h1>Clusters of questions answered alike</h1>",
        f"<p>Coherence: {method['coherence']}, clusters below {method['least']:g} removed; at most "
        f"{method['pairs_of_a_cluster']:,} pairs of a cluster; seed {method['seed']}.</p>",
        _table(("", "count"), [(n.replace("_", " "), f"{v:,}") for n, v in counts]),
        "<h2>Splits</h2>",
        _table(
            ("", "clusters", "questions", "pairs"),
            [(split, *(f"{n:,}" for n in report["splits"][split].values())) for split in SPLITS],
        ),
        "<h2>Coherence</h2>",
        "<table><tr><th>coherence<th>clusters<th>questions<th></tr>",
        *histogram_rows,
        "</table>",
    ]
    for title, name in (
        ("Largest removed", "largest_removed"),
        ("Largest kept", "largest_kept"),
        ("A random sample of those kept", "sample"),
    ):
        parts += [f"<h2>{title}</h2>", "<table><tr><th>answer<th>size<th>coherence<th>questions"]
        for cluster in report[name]:
            questions = "".join(f"<li>{html.escape(text)}" for text in cluster["questions"])
            parts.append(
                f'<tr><td>{html.escape(cluster["answer"])}<td class="number">{cluster["size"]:,}'
                f'<td class="number">{cluster["coherence"]:.3f}<td><ul>{questions}</ul>'
            )
        parts.append("</table>")
    with write_atomically(path, "w") as file:
        file.write("\n".join(parts) + "\n")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = ["".join(f"<th>{name}" for name in head)]
    cells += [
        f"<td>{html.escape(first)}" + "".join(f'<td class="number">{value}' for value in others)
        for first, *others in rows
    ]
    return "<table>" + "".join(f"<tr>{row}" for row in cells) + "</table>"
