"""The cost of a question in the encoders of several runs, in turns, on the questions of the first.

python -m benchmarks.encoder_cost --runs runs/quora_sdml runs/quora_best

All questions at once, from strings and from word ids, and one question at a time, from strings.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time

import numpy as np

from qpr_jax.console import told_in_one_line
from qpr_jax.encoders.exported import read_export
from qpr_jax.retriever import Retriever

ROUNDS, SINGLE = 5, 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", type=pathlib.Path, required=True)
    runs = parser.parse_args().runs
    questions = [question for _, question in Retriever.load(runs[0]).index]
    encoders = {run: read_export(run / "export") for run in runs}
    words = {run: encoder.vocabulary.word_ids(questions)[0] for run, encoder in encoders.items()}
    times: dict[pathlib.Path, list[tuple[float, ...]]] = {run: [] for run in runs}
    for _ in range(ROUNDS):
        for run, encoder in encoders.items():
            laps = [time.perf_counter()]
            encoder.encode(questions)
            laps.append(time.perf_counter())
            encoder.encode_words(words[run])
            laps.append(time.perf_counter())
            for question in questions[:SINGLE]:
                encoder.encode([question])
            laps.append(time.perf_counter())
            times[run].append(tuple(np.diff(laps)))
    print(f"{len(questions):,} questions, {os.cpu_count()} cores")
    plain = np.median(times[runs[0]], axis=0)
    for run in runs:
        medians = np.median(times[run], axis=0)
        strings, ids = len(questions) / medians[:2]
        ratios = medians / plain
        print(
            f"{run}: {strings:,.0f} questions/s from strings, {ratios[0]:.2f} times the first "
            f"run's time; {ids:,.0f} from word ids, {ratios[1]:.2f} times; one question in "
            f"{1e3 * medians[2] / SINGLE:.3f} ms, {ratios[2]:.2f} times"
        )
    return 0


if __name__ == "__main__":
    sys.exit(told_in_one_line(main))
