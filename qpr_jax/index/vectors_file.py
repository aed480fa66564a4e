"""Vectors of many questions in one .npy file, written in a stream that can be taken up again."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, read_json, write_json

CHUNK = 16_384  # questions between two points from which it can be taken up
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
    """Write float32 [n, dimension], row i of question i, to `path`; n.

    What a kill leaves beside is taken up by the next call with the same questions and the same
    encoder (its identity); UserError where they are others. `path` appears when it is whole; what
    is there must be another such file.
    """
    path = pathlib.Path(path).resolve()
    _refuse_other_file(path)
    stream = iter(questions)
    first = [*itertools.islice(stream, 1)]  # which tells whether they can be read at all
    part, state, lock = (
        path.with_name(f".{path.name}.{end}") for end in ("part", "state.json", "lock")
    )
    with locked(lock) as ours:
        if not ours:
            raise UserError(f"{path}: another process is writing it; wait for its end")
        questions = itertools.chain(first, stream)
        rows = _write(path, part, state, questions, encode, dimension, encoder, log)
        os.replace(part, path)
        state.unlink(missing_ok=True)
        lock.unlink()
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
    """Write `part`, from where `state` says that it is whole; how many rows it has."""
    digest, rows, row_bytes = hashlib.sha256(), 0, 4 * dimension
    known = read_json(state) if state.exists() else {"rows": 0}
    if not isinstance(known, dict) or type(known.get("rows")) is not int:
        raise UserError(f"{state}: expected the state of an encoding; remove it to start anew")
    size = part.stat().st_size if part.exists() else 0
    if known["rows"] and size >= _HEADER + known["rows"] * row_bytes:
        if known.get("encoder") != encoder:
            raise UserError(f"{part}: begun with another encoder; remove it to start anew")
        log(f"{path}: going on after {known['rows']:,} questions")
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
                    raise UserError(f"{part}: begun with other questions; remove it to start anew")
                continue
            if rows - len(chunk) < known["rows"]:
                break
            file.write(np.ascontiguousarray(encode(chunk), "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
            write_json(state, {"rows": rows, "sha256": digest.hexdigest(), "encoder": encoder})
        if rows < known["rows"] or file.tell() != _HEADER + rows * row_bytes:
            raise UserError(f"{part}: begun with other questions; remove it to start anew")
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
    raise UserError(f"{path}: expected a .npy file to replace, got something else; name another")


def _chunks(questions: Iterable[str]) -> Iterable[list[str]]:
    stream = iter(questions)
    return iter(lambda: list(itertools.islice(stream, CHUNK)), [])


def _header(rows: int, dimension: int) -> bytes:
    """The header of a .npy file (version 1.0), of a size that does not depend on the rows."""
    facts = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)}
    text = repr(facts).ljust(_HEADER - 11) + "\n"
    return _MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")
