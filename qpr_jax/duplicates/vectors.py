"""The vectors of entries, in a file that a run which was killed goes on with."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable

import numpy as np

from qpr_jax import progress
from qpr_jax.duplicates.rows import Rows
from qpr_jax.encoders.base import Encoder
from qpr_jax.files import read_object, write_json

_FILE, _STATE = "vectors.f32", "vectors.json"
_PART = 16_384  # entries that are encoded between two writes


Fill = Callable[[np.ndarray], np.ndarray]


def encode_entries(
    rows: Rows, encoder: Encoder, folder: pathlib.Path, fill: Fill | None = None
) -> np.ndarray:
    """The vectors of all entries, float32 [E, d], mapped from a file of `folder`.

    A file of the same texts and the same encoder is used as far as it goes.

    fill: sets vectors that are known in an array of all; returns for which, bool [E].
    """
    count, dimension = len(rows.first), encoder.dimension
    if not count:
        return np.zeros((0, dimension), np.float32)
    identity = _identity(rows, encoder)
    state = read_object(folder / _STATE)
    path = folder / _FILE
    shape = (count, dimension)
    is_whole = path.is_file() and path.stat().st_size == 4 * count * dimension
    done = state.get("done", 0) if state.get("identity") == identity and is_whole else 0
    if not done:  # before the file is emptied, else a kill here leaves the old number of vectors
        write_json(folder / _STATE, {"identity": identity, "done": 0})
    vectors = np.memmap(path, np.float32, "r+" if done else "w+", shape=shape)
    known = np.zeros(count, bool)
    if fill is not None and done < count:
        known = fill(vectors)
    with progress.bar("encoded", count, start=done, shown=count > _PART) as show:
        for start in range(done, count, _PART):
            stop = min(start + _PART, count)
            new = start + np.flatnonzero(~known[start:stop])
            if len(new):
                vectors[new] = encoder.encode(rows.texts_of(new))
            vectors.flush()
            write_json(folder / _STATE, {"identity": identity, "done": stop})
            show(stop, "")
    return np.memmap(path, np.float32, "r", shape=shape)


def _identity(rows: Rows, encoder: Encoder) -> str:
    """A hash of what the vectors depend on."""
    return hashlib.sha256(f"{rows.identity} {encoder.identity}".encode()).hexdigest()
