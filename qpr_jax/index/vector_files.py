"""The files of vectors and of their codes."""

from __future__ import annotations

import errno
import io
import os
import pathlib
from collections.abc import Iterator

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import name_in_errors
from qpr_jax.index.questions import damaged


def write_vectors(
    path: pathlib.Path, parts: Iterator[np.ndarray], count: int, dimension: int, precision: str
) -> np.ndarray:
    """Write the vectors of all parts and return them memory-mapped, [count, dimension]."""
    shape, done = (count, dimension), 0
    with open(path, "wb") as file:
        file.write(_header(shape, precision))
        for part in parts:
            if part.shape[1:] != (dimension,) or not np.isfinite(part).all():
                raise UserError(
                    f"expected finite vectors of {dimension} numbers from the encoder, got others"
                )
            file.write(np.ascontiguousarray(part, precision).tobytes())
            done += len(part)
        file.flush()
        os.fsync(file.fileno())
    if done != count:
        raise UserError(f"expected {count:,} vectors from the encoder, got {done:,}")
    return read_vectors(path, shape, precision)


def read_vectors(path: pathlib.Path, shape: tuple[int, int], precision: str) -> np.ndarray:
    """Map a file of `write_vectors`; UserError unless it has this shape and precision."""
    if not shape[0]:
        return np.zeros(shape, precision)
    header = _header(shape, precision)
    with open(path, "rb") as file:
        if file.read(len(header)) != header:
            raise damaged(path, f"expected vectors {precision} {list(shape)}, got others")
    size = len(header) + np.dtype(precision).itemsize * shape[0] * shape[1]
    if path.stat().st_size != size:
        raise damaged(path, f"expected {size:,} bytes, got {path.stat().st_size:,}")
    return np.memmap(path, precision, "r", len(header), shape).view(np.ndarray)


def write_codes(path: pathlib.Path, codes: faiss.Index) -> None:
    """Write the codes; OSError, which names the file, if the disk is full."""
    failed: list[OSError] = []
    with name_in_errors(path), open(path, "wb") as file:

        def write(data: bytes) -> int:
            try:
                return file.write(data)
            except OSError as error:
                failed.append(error)
                return 0

        try:
            # FAISS itself does not raise what closing its file finds.
            faiss.write_index(codes, faiss.PyCallbackIOWriter(write))
        except RuntimeError as error:
            raise failed[0] if failed else OSError(errno.EIO, "cannot write", path) from error
        if failed:
            raise failed[0]
        file.flush()
        os.fsync(file.fileno())


def read_codes(path: pathlib.Path, count: int, width: int) -> faiss.Index:
    """Read a file of `write_codes`; UserError unless it has `count` codes of this width."""
    try:
        codes = faiss.read_index(str(path))
    except (RuntimeError, MemoryError, OverflowError, ValueError) as error:
        raise damaged(path, str(error).splitlines()[0]) from None
    known = isinstance(codes, faiss.IndexIVF | faiss.IndexHNSW)
    if not known or codes.ntotal != count or codes.d != width or not codes.is_trained:
        raise damaged(path, f"expected codes of {count:,} vectors, got others")
    return codes


def _header(shape: tuple[int, int], precision: str) -> bytes:
    """Return how a file of NumPy begins."""
    file = io.BytesIO()
    facts = {"descr": np.dtype(precision).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, facts)
    return file.getvalue()
