"""The share of close pairs that the search by lists misses, and its own estimate of it.

    python -m benchmarks.missed_pairs --run runs/quora_sdml --folder /tmp/missed

Encodes generated questions (those of Quora with words of others at their ends, all distinct) and
finds their pairs by lists. Then --sampled of them are compared with all, exactly; of these pairs
the lists miss the share that is printed before the estimate.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import time

import numpy as np

from benchmarks.costs import write_questions
from experiments.measuring import positive
from qpr_jax.data.questions import read_questions
from qpr_jax.index.pair_search import FoundPairs, find_pairs
from qpr_jax.retriever import run_encoder

_CHUNK = 65_536
_MEMORY = 2 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="Folder of the encoder.")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="For files; new.")
    parser.add_argument("--count", type=positive, default=2_000_000)
    parser.add_argument("--sampled", type=positive, default=20_000)
    parser.add_argument("--distances", type=float, nargs="+", default=[0.5, 1.5])
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    write_questions(given.folder / "questions.tsv", given.count)
    vectors = encode(given.run, given.folder)
    rng = np.random.default_rng(0)
    is_new = np.zeros(len(vectors), bool)
    is_new[rng.permutation(len(vectors))[: given.sampled]] = True
    print("| distance | pairs | missed | by estimate | s, by lists |\n|---|---|---|---|---|")
    for distance in given.distances:
        start = time.perf_counter()
        found = find_pairs(vectors, distance, given.folder / "lists", memory=_MEMORY)
        seconds = time.perf_counter() - start
        how = {"memory": _MEMORY, "is_new": is_new, "compare": "new", "exact": True}
        exact = find_pairs(vectors, distance, given.folder / "exact", **how)
        missed = 1 - count_new(found, is_new) / max(1, exact.count)
        cells = f"{missed:.4f} | {found.missed:.4f} | {seconds:.0f}"
        print(f"| {distance:g} | {found.count:,} | {cells} |", flush=True)
    shutil.rmtree(given.folder)


def encode(run: str, folder: pathlib.Path) -> np.ndarray:
    """The vectors of the distinct questions, in a file."""
    entries = read_questions(str(folder / "questions.tsv"))
    questions = sorted({entry.question for entry in entries})
    encoder = run_encoder(run)
    shape = (len(questions), encoder.dimension)
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, shape)
    for start in range(0, len(questions), _CHUNK):
        vectors[start : start + _CHUNK] = encoder.encode(questions[start : start + _CHUNK])
    return vectors


def count_new(found: FoundPairs, is_new: np.ndarray) -> int:
    """How many pairs have a question of the sample."""
    return sum(int((is_new[part.first] | is_new[part.second]).sum()) for part in found.parts())


if __name__ == "__main__":
    main()
