"""Vectors of many questions in a .npy file, written in a stream that can be resumed.

The rows so far are in a hidden file beside it; a second one has their number and the hash of their
questions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, name_in_errors, read_object, write_json

CHUNK = 16_384  # questions that are encoded, and written, at once
_HEADER = 128  # bytes
_MAGIC = b"\x93NUMPY"

Log = Callable[[str], object]


def encode_to_file(
    path: StrPath,
    questions: Iterable[str],
    encode: Callable[[Sequence[str]], np.ndarray],
    *,
    dimension: int,
    encoder: str,
    log: Log = print,
    chunk: int = 0,
) -> int:
    """Write the vectors of questions, float32 [n, dimension], to `path`, and return n.

    The next call with the same questions and the same encoder (its identity) resumes what a kill
    left in the hidden files beside `path`; a UserError refuses others. `path` appears when it is
    complete; an existing file is replaced only if it is .npy.

    Args:
      path: the .npy file.
      questions: any number of strings.
      encode: questions to float32 [n, dimension].
      dimension: length of a vector.
      encoder: the identity of the encoder.
      log: gets a line when it resumes.
      chunk: questions between two checkpoints; 0: CHUNK.
    """
    path = pathlib.Path(path).resolve()
    _refuse_other_file(path)
    stream = iter(questions)
    first = [*itertools.islice(stream, 1)]  # fails before anything is written if unreadable
    chunks = _chunks(itertools.chain(first, stream), chunk or CHUNK)
    part, state, lock = (
        path.with_name(f".{path.name}.{end}") for end in ("part", "state.json", "lock")
    )
    with locked(lock) as ours:
        if not ours:
            raise UserError(f"{path}: another process is writing it", remedy="wait for its end")
        known = _known_rows(part, state, 4 * dimension, encoder)
        if known:
            log(f"{path}: resuming after {known['rows']:,} questions")
        with name_in_errors(part):
            rows = _write_rows(part, state, known, chunks, encode, dimension, encoder)
        os.replace(part, path)
        state.unlink(missing_ok=True)
        # Keep the lock file: deleting it would let two processes hold a lock at once.
    return rows


def _known_rows(
    part: pathlib.Path, state: pathlib.Path, row_bytes: int, encoder: str
) -> dict[str, Any]:
    """What a call that was killed has written; empty for nothing, UserError for another encoder."""
    known = read_object(state)
    rows = known.get("rows")
    size = part.stat().st_size if part.exists() else 0
    if type(rows) is not int or rows <= 0 or size < _HEADER + rows * row_bytes:
        return {}
    if known.get("encoder") != encoder:
        what = f"{part}: was started with another encoder"
        raise UserError(what, remedy="remove the file to start again")
    return known


def _write_rows(
    part: pathlib.Path,
    state: pathlib.Path,
    known: dict[str, Any],
    chunks: Iterable[list[str]],
    encode: Callable[[Sequence[str]], np.ndarray],
    dimension: int,
    encoder: str,
) -> int:
    """Write `part` from the rows on that are known; return how many rows it has."""
    digest, rows, before = hashlib.sha256(), 0, known.get("rows", 0)
    other = UserError(
        f"{part}: was started with other questions", remedy="remove the file to start again"
    )
    with open(part, "r+b" if known else "w+b") as file:
        file.truncate(_HEADER + before * 4 * dimension)
        file.seek(0, os.SEEK_END)
        for chunk in chunks:
            for question in chunk:
                digest.update(json.dumps(question).encode())
            rows += len(chunk)
            if rows <= before:
                if rows == before and digest.hexdigest() != known.get("sha256"):
                    raise other
                continue
            if rows - len(chunk) < before:
                raise other
            file.write(np.ascontiguousarray(encode(chunk), "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
            write_json(state, {"rows": rows, "sha256": digest.hexdigest(), "encoder": encoder})
        if rows < before:
            raise other
        file.seek(0)
        file.write(_header(rows, dimension))
        file.flush()
        os.fsync(file.fileno())
    return rows


def _refuse_other_file(path: pathlib.Path) -> None:
    if not path.exists():
        return
    if path.is_file():
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) in (b"", _MAGIC):
                return
    what = f"{path}: expected a .npy file to replace, got something else"
    raise UserError(what, remedy="name another file")


def _chunks(questions: Iterable[str], size: int) -> Iterator[list[str]]:
    stream = iter(questions)
    return iter(lambda: list(itertools.islice(stream, size)), [])


def _header(rows: int, dimension: int) -> bytes:
    """The header of a .npy file (version 1.0), of a size that does not depend on the rows."""
    facts = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)}
    text = repr(facts).ljust(_HEADER - 11) + "\n"
    return _MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")
