"""Random numbers of a training: each use of the seed is a stream of its own."""

from __future__ import annotations

import numpy as np

# Plain pairs use [seed, epoch], beside these streams.
CLUSTERS, CANDIDATES, DROPOUT, IMITATION, LABELED, TRANSLATIONS, GLOSSES, SPELLING = range(1, 9)


def random_of(seed: int, stream: int, number: int) -> np.random.Generator:
    """The random numbers of a step, an epoch or a pass, independent of any other stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, number)))
