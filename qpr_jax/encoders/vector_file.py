"""Vectors of many questions in a .npy file, written in parts: the same call resumes after a kill.

The rows so far are in a hidden file beside it, their number and the hash of their questions in a
second one.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import numpy as np

from qpr_jax.errors import UserError, counted
from qpr_jax.files import StrPath, locked, name_in_errors, read_object, write_json

log = logging.getLogger(__name__)

CHUNK = 16_384  # questions in memory at once


def encode_to_file(
    path: StrPath,
    questions: Iterable[Any],
    encode: Callable[[Sequence[Any]], np.ndarray],
    *,
    dimension: int,
    encoder: str,
    chunk: int = CHUNK,
) -> int:
    """Write the vectors of questions, float32 [n, dimension], to a .npy file, and return n.

    The next call with the same questions and encoder resumes what a kill left beside `path`; a
    UserError refuses others.

    encoder: the fingerprint of the encoder.
    """
    path = pathlib.Path(path).resolve()
    if path.suffix != ".npy":
        raise UserError(f"{path}: expected a name that ends in .npy", remedy="name another file")
    part, state, lock = (
        path.with_name(f".{path.name}.{end}") for end in ("part", "state.json", "lock")
    )
    stream, start = iter(questions), len(npy_header((0, dimension), "float32"))
    first = [*itertools.islice(stream, chunk)]  # unreadable questions fail before a file is made
    stream = itertools.chain(first, stream)
    # The file stays: without it two processes could hold the lock.
    with locked(lock, busy=f"{path}: another process is writing it"):
        written = read_object(state)
        rows, digest = written.get("rows", 0), hashlib.sha256(encoder.encode())
        if not part.exists() or part.stat().st_size < start + rows * 4 * dimension:
            rows = 0
        with name_in_errors(part), open(part, "r+b" if rows else "w+b") as file:
            for question in itertools.islice(stream, rows):
                digest.update(json.dumps(question).encode())
            if rows and digest.hexdigest() != written["sha256"]:
                what = f"{part}: was started with other questions or another encoder"
                raise UserError(what, remedy="remove the file to start again")
            if rows:
                log.info("%s: resuming after %s", path, counted(rows, "question"))
            file.truncate(start + rows * 4 * dimension)
            file.seek(0, os.SEEK_END)
            while some := [*itertools.islice(stream, chunk)]:
                file.write(np.ascontiguousarray(encode(some), np.float32).tobytes())
                sync(file)
                rows += len(some)
                for question in some:
                    digest.update(json.dumps(question).encode())
                write_json(state, {"rows": rows, "sha256": digest.hexdigest()})
            file.seek(0)
            file.write(npy_header((rows, dimension), "float32"))
            sync(file)
        os.replace(part, path)
        state.unlink(missing_ok=True)
    return rows


def npy_header(shape: tuple[int, int], kind: str) -> bytes:
    """Return how a .npy file of such numbers begins; its size does not depend on the rows."""
    file = io.BytesIO()
    facts = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, facts)
    return file.getvalue()


def sync(file: IO[bytes]) -> None:
    """Wait until what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())
