"""Questions a second of the encoders of several runs, in turns, on the questions of the first.

python -m benchmarks.encoder_cost --runs runs/quora_sdml runs/quora_best
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time

import numpy as np

from qpr_jax.encoders.exported import read_export
from qpr_jax.retrieval.index import read_index

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", type=pathlib.Path, required=True)
    runs = parser.parse_args().runs
    questions = read_index(runs[0] / "index").questions
    encoders = {run: read_export(run / "export") for run in runs}
    words = {run: encoder.vocabulary.word_ids(questions)[0] for run, encoder in encoders.items()}
    whole: dict[pathlib.Path, list[float]] = {run: [] for run in runs}
    from_ids: dict[pathlib.Path, list[float]] = {run: [] for run in runs}
    for _ in range(ROUNDS):
        for run, encoder in encoders.items():
            start = time.perf_counter()
            encoder.encode(questions)
            middle = time.perf_counter()
            encoder.encode_words(words[run])
            whole[run].append(middle - start)
            from_ids[run].append(time.perf_counter() - middle)
    print(f"{len(questions):,} questions, {os.cpu_count()} cores")
    plain, plain_ids = (float(np.median(times[runs[0]])) for times in (whole, from_ids))
    for run in runs:
        seconds, ids = float(np.median(whole[run])), float(np.median(from_ids[run]))
        print(
            f"{run}: {len(questions) / seconds:,.0f} questions/s from strings, "
            f"{seconds / plain:.2f} times the first run's time; "
            f"{len(questions) / ids:,.0f} from word ids, {ids / plain_ids:.2f} times"
        )


if __name__ == "__main__":
    main()
