"""All close pairs of the same vectors: this package, FAISS, semhash and sentence-transformers.

    python -m venv other && other/bin/pip install sentence-transformers semhash
    python -m benchmarks.duplicates --run RUN --other-python other/bin/python [--questions 20000]

Encodes the distinct questions of the Quora file with the encoder of a run, and searches vectors of
length 1 for all pairs with a cosine of at least --cosine. Every search has a process of its own;
seconds are from vectors to pairs, CPU seconds those of all threads. "Found" is the share of the
exact pairs. semhash has its default index; paraphrase_mining its default 100 neighbors of each, and
five times as many pairs as questions. The floor is the time of the float32 products of all pairs of
whole vectors, at the best rate of NumPy on this machine at that moment.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

CHILD = "--child"
FAISS_TILE, FAISS_SLICE = 8192, 1024
EXACT = "ours, exact"


def ours(vectors: np.ndarray, distance: float, exact: bool) -> np.ndarray:
    """Pairs int64 [P, 2] by `find_pairs`."""
    from qpr_jax.index.pair_search import find_pairs

    with tempfile.TemporaryDirectory() as folder:
        found = find_pairs(vectors, distance, folder, memory=4 << 30, exact=exact)
        parts = [np.stack([part.first, part.second], axis=1) for part in found.parts()]
        print(f"missed, by estimate: {found.missed:.3f}", file=sys.stderr)
    return np.concatenate([np.zeros((0, 2), np.int64), *parts])


def faiss_tiles(vectors: np.ndarray, distance: float) -> np.ndarray:
    """Pairs by range searches of flat indexes of a few thousand vectors."""
    import faiss

    pairs = []
    for start in range(0, len(vectors), FAISS_TILE):
        tile = faiss.IndexFlatL2(vectors.shape[1])
        tile.add(vectors[start : start + FAISS_TILE])
        for other in range(start, len(vectors), FAISS_SLICE):
            limits, _, first = tile.range_search(vectors[other : other + FAISS_SLICE], distance)
            second = other + np.repeat(np.arange(len(limits) - 1), np.diff(limits).astype(int))
            first += start
            pairs.append(np.stack([first, second], axis=1)[first < second])
    return np.concatenate(pairs)


def semhash(vectors: np.ndarray, distance: float) -> np.ndarray:
    """Pairs of the neighbors that semhash removes duplicates by; its texts are numbers."""
    from semhash import SemHash

    names = [str(number) for number in range(len(vectors))]
    index = SemHash.from_embeddings(vectors, names, model=None).index
    found = index.query_threshold(vectors, threshold=1 - distance / 2)
    second = np.repeat(np.arange(len(vectors)), [len(rows) for rows, _ in found])
    first = np.concatenate([rows for rows, _ in found]).astype(np.int64)
    pairs = np.sort(np.stack([first, second], axis=1), axis=1)
    return np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)


def paraphrase_mining(vectors: np.ndarray, distance: float) -> np.ndarray:
    """Pairs of sentence-transformers, which returns the best, however far apart."""
    import torch
    from sentence_transformers.util import paraphrase_mining_embeddings

    found = paraphrase_mining_embeddings(torch.from_numpy(vectors), max_pairs=5 * len(vectors))
    least = 1 - distance / 2
    return np.sort(np.array([pair[1:] for pair in found if pair[0] >= least], np.int64), axis=1)


SEARCHES = {
    EXACT: lambda vectors, distance: ours(vectors, distance, True),
    "ours, by lists": lambda vectors, distance: ours(vectors, distance, False),
    "FAISS range_search": faiss_tiles,
    "semhash": semhash,
    "sentence-transformers": paraphrase_mining,
}
OTHERS = ("semhash", "sentence-transformers")  # those of the other interpreter


def child(name: str, folder: str, distance: str) -> int:
    """Run one search; write its pairs and print its seconds."""
    vectors = np.load(pathlib.Path(folder, "vectors.npy"))
    search = SEARCHES[name]
    search(vectors[:2000], float(distance))  # compiles and starts threads
    start, cpu = time.perf_counter(), time.process_time()
    pairs = search(vectors, float(distance))
    seconds = (time.perf_counter() - start, time.process_time() - cpu)
    np.save(pathlib.Path(folder, "pairs.npy"), pairs)
    print(json.dumps(seconds))
    return 0


def product_rate(dimension: int) -> float:
    """Operations a second of float32 products on all cores."""
    left = np.random.default_rng(0).standard_normal((4096, dimension), np.float32)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        left @ left.T
        times.append(time.perf_counter() - start)
    return 2 * 4096**2 * dimension / min(times)


def unit_vectors(run: str, count: int | None) -> np.ndarray:
    """The vectors of distinct Quora questions, sorted, as rows of length 1."""
    from qpr_jax.data.quora import read_quora
    from qpr_jax.data.sources import find_quora
    from qpr_jax.encoders.base import encode_in_parts
    from qpr_jax.retriever import run_encoder

    questions = sorted({*read_quora(find_quora("")).questions})
    if count is not None:
        chosen = np.random.default_rng(0).permutation(len(questions))[:count]
        questions = [questions[row] for row in np.sort(chosen)]
    encoder = run_encoder(run)
    vectors = encode_in_parts(
        encoder.encode, lambda part: questions[part], len(questions), encoder.dimension
    )
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def share_of(pairs: np.ndarray, exact: np.ndarray, count: int) -> float:
    """The share of the exact pairs that are among others."""
    numbers, expected = (each[:, 0] * count + each[:, 1] for each in (pairs, exact))
    return float(np.isin(expected, numbers).mean()) if len(expected) else 1.0


def main() -> int:
    given = parse()
    distance = 2 - 2 * given.cosine
    vectors = unit_vectors(given.run, given.questions)
    count, dimension = vectors.shape
    rate = product_rate(dimension)
    print(f"{count:,} vectors of {dimension}, cosine at least {given.cosine}")
    print(f"floor: {count**2 * dimension / rate:.1f} s at {rate / 1e9:.0f} GFLOP/s\n")
    print("| | s | CPU s | pairs | found |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        np.save(pathlib.Path(folder, "vectors.npy"), vectors.astype(np.float32))
        exact = np.zeros((0, 2), np.int64)
        for name in SEARCHES:
            python = given.other_python if name in OTHERS else sys.executable
            if name in given.without or not python:
                continue
            command = [python, "-m", "benchmarks.duplicates", CHILD, name, folder, str(distance)]
            environment = os.environ | {"HF_HUB_OFFLINE": "1"}
            done = subprocess.run(command, stdout=subprocess.PIPE, env=environment)
            if done.returncode:
                print(f"| {name} | failed; see above | | | |", flush=True)
                continue
            seconds, cpu = json.loads(done.stdout.splitlines()[-1])
            pairs = np.load(pathlib.Path(folder, "pairs.npy"))
            if name == EXACT:
                exact = pairs
            found = f"{len(pairs):,} | {share_of(pairs, exact, count):.3f}"
            print(f"| {name} | {seconds:.1f} | {cpu:.1f} | {found} |", flush=True)
    return 0


def parse() -> argparse.Namespace:
    from experiments.measuring import positive

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="minilm", help="The encoder's folder or name.")
    parser.add_argument("--other-python", default="", help="With semhash, sentence-transformers.")
    parser.add_argument("--questions", type=positive, help="As many of them; all by default.")
    parser.add_argument("--cosine", type=float, default=0.9)
    parser.add_argument("--without", nargs="*", default=[], choices=[*SEARCHES][1:])
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        sys.exit(child(*sys.argv[2:]))
    from qpr_jax.cli.program import run_program

    sys.exit(run_program(main))
