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
from typing import IO

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, name_in_errors, read_object, write_json

CHUNK = 16_384  # questions that are encoded, and written, at once
_HEADER = 128  # bytes
_MAGIC = b"\x93NUMPY"


def encode_to_file(
    path: StrPath,
    questions: Iterable[str],
    encode: Callable[[Sequence[str]], np.ndarray],
    *,
    dimension: int,
    encoder: str,
    log: Callable[[str], object] = print,
    chunk: int = CHUNK,
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
      chunk: questions between two checkpoints.
    """
    path = pathlib.Path(path).resolve()
    _refuse_other_file(path)
    part, state, lock = (
        path.with_name(f".{path.name}.{end}") for end in ("part", "state.json", "lock")
    )
    chunks = _chunks(questions, chunk)
    first = next(chunks, [])  # fails before anything is written if the questions are unreadable
    with locked(lock) as ours:  # the file stays: without it two processes could hold the lock
        if not ours:
            raise UserError(f"{path}: another process is writing it", remedy="wait for its end")
        known = read_object(state)
        done = known.get("rows", 0)
        if not part.exists() or part.stat().st_size < _HEADER + done * 4 * dimension:
            done = 0
        if done and known["encoder"] != encoder:
            raise _started_with(part, "another encoder")
        if done:
            log(f"{path}: resuming after {done:,} questions")
        with name_in_errors(part), open(part, "r+b" if done else "w+b") as file:
            file.truncate(_HEADER + done * 4 * dimension)
            file.seek(0, os.SEEK_END)
            digest, rows = hashlib.sha256(), 0
            for some in itertools.chain([first], chunks):
                digest.update(json.dumps(some).encode())
                before, rows = rows, rows + len(some)
                facts = {"rows": rows, "sha256": digest.hexdigest(), "encoder": encoder}
                if before < done < rows or (0 < done == rows and facts != known):
                    raise _started_with(part, "other questions")
                if rows > done:
                    file.write(np.ascontiguousarray(encode(some), "<f4").tobytes())
                    _sync(file)
                    write_json(state, facts)
            if rows < done:
                raise _started_with(part, "other questions")
            file.seek(0)
            file.write(_header(rows, dimension))
            _sync(file)
        os.replace(part, path)
        state.unlink(missing_ok=True)
    return rows


def _chunks(questions: Iterable[str], size: int) -> Iterator[list[str]]:
    stream = iter(questions)
    while some := [*itertools.islice(stream, size)]:
        yield some


def _started_with(part: pathlib.Path, what: str) -> UserError:
    return UserError(f"{part}: was started with {what}", remedy="remove the file to start again")


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _refuse_other_file(path: pathlib.Path) -> None:
    if not path.exists():
        return
    if path.is_file():
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) in (b"", _MAGIC):
                return
    what = f"{path}: expected a .npy file to replace, got something else"
    raise UserError(what, remedy="name another file")


def _header(rows: int, dimension: int) -> bytes:
    """The header of a .npy file (version 1.0), of a size that does not depend on the rows."""
    facts = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)}
    text = repr(facts).ljust(_HEADER - 11) + "\n"
    return _MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")
