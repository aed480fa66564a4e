"""Vectors of many questions in one .npy file, written in a stream that can be resumed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, name_in_errors, read_json, write_json

CHUNK = 16_384  # questions per checkpoint
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
    """
    path = pathlib.Path(path).resolve()
    _refuse_other_file(path)
    stream = iter(questions)
    first = [*itertools.islice(stream, 1)]  # fails before anything is written if unreadable
    part, state, lock = (
        path.with_name(f".{path.name}.{end}") for end in ("part", "state.json", "lock")
    )
    with locked(lock) as ours:
        if not ours:
            raise UserError(f"{path}: another process is writing it", remedy="wait for its end")
        questions = itertools.chain(first, stream)
        with name_in_errors(part):
            rows = _write(path, part, state, questions, encode, dimension, encoder, log)
        os.replace(part, path)
        state.unlink(missing_ok=True)
        # Keep the lock file: deleting it would let two processes hold a lock at once.
    return rows


def _write(
    path: pathlib.Path,
    part: pathlib.Path,
    state: pathlib.Path,
    questions: Iterable[str],
    encode: Callable[[Sequence[str]], np.ndarray],
    dimension: int,
    encoder: str,
    log: Callable[[str], object],
) -> int:
    """Write `part` from where `state` says it is complete; return how many rows it has."""
    digest, rows, row_bytes = hashlib.sha256(), 0, 4 * dimension
    known = read_json(state) if state.exists() else {"rows": 0}
    if not isinstance(known, dict) or type(known.get("rows")) is not int:
        raise UserError(
            f"{state}: expected the state of an encoding, got something else",
            remedy="remove the file to start again",
        )
    size = part.stat().st_size if part.exists() else 0
    if known["rows"] and size >= _HEADER + known["rows"] * row_bytes:
        if known.get("encoder") != encoder:
            raise UserError(
                f"{part}: was started with another encoder", remedy="remove the file to start again"
            )
        log(f"{path}: resuming after {known['rows']:,} questions")
    else:
        known = {"rows": 0}
        state.unlink(missing_ok=True)
    with open(part, "r+b" if known["rows"] else "w+b") as file:
        file.truncate(_HEADER + known["rows"] * row_bytes)
        file.seek(0, os.SEEK_END)
        for chunk in _chunks(questions):
            for question in chunk:
                digest.update(json.dumps(question).encode())
            rows += len(chunk)
            if rows <= known["rows"]:
                if rows == known["rows"] and digest.hexdigest() != known.get("sha256"):
                    raise _other_questions(part)
                continue
            if rows - len(chunk) < known["rows"]:
                break
            file.write(np.ascontiguousarray(encode(chunk), "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
            write_json(state, {"rows": rows, "sha256": digest.hexdigest(), "encoder": encoder})
        if rows < known["rows"] or file.tell() != _HEADER + rows * row_bytes:
            raise _other_questions(part)
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
    raise UserError(
        f"{path}: expected a .npy file to replace, got something else", remedy="name another file"
    )


def _other_questions(part: pathlib.Path) -> UserError:
    return UserError(
        f"{part}: was started with other questions", remedy="remove the file to start again"
    )


def _chunks(questions: Iterable[str]) -> Iterable[list[str]]:
    stream = iter(questions)
    return iter(lambda: list(itertools.islice(stream, CHUNK)), [])


def _header(rows: int, dimension: int) -> bytes:
    """The header of a .npy file (version 1.0), of a size that does not depend on the rows."""
    facts = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)}
    text = repr(facts).ljust(_HEADER - 11) + "\n"
    return _MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")
