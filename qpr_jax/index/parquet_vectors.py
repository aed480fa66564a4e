"""Parquet files of questions with their vectors, part by part, in this process or on Spark.

    _encoding.json           the encoder and the parts: what a later call must match
    part-00012-00003.parquet the rows of row group 3 of file 12, and the column `vector`
    _SUCCESS                 empty; there once all parts are

A part appears when it is whole, so the same call resumes after a kill. On a cluster all machines
need qpr_jax, but not JAX, and the encoder and both folders at the same paths. Vectors are those of
one process to rounding: BLAS, by which the encoder's tables are made, adds in another order with
another number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.columns import Columns
from qpr_jax.data.quoted_tsv import short
from qpr_jax.data.tables import import_pyarrow
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import read_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, name_in_errors, read_object, write_atomically, write_json
from qpr_jax.index.run import run_encoder_folder

FORMAT = "qpr_jax Parquet vectors 1"
STATE, DONE, VECTOR = "_encoding.json", "_SUCCESS", "vector"
_BATCH = 16_384  # rows in memory at once
_ON_SPARK = 512  # questions that one thread encodes: Spark has a task for each core

Log = Callable[[str], object]


@dataclass(frozen=True)
class Part:
    """A row group of a file of questions, and the file for its rows with their vectors."""

    source: str
    group: int
    out: str


@dataclass(frozen=True)
class _Job:
    """What a worker must know. identity: of the encoder in the folder `run`."""

    run: str
    identity: str
    column: str
    skip_bad_rows: bool
    batch: int


class _Written(NamedTuple):
    """What a worker says of a part: its rows, or the error."""

    number: int
    rows: int
    what: str = ""
    remedy: str = ""


def encode_parquet(
    source: StrPath,
    out: StrPath,
    run: StrPath,
    *,
    text_column: str = "",
    skip_bad_rows: bool = False,
    spark: str = "",
    log: Log = print,
) -> int:
    """Write the rows of all Parquet files of a folder with their vectors; return how many.

    Args:
      source: the folder. Its files, in the order of their names, have the same columns.
      out: a folder; `vector` is a list of d float32. What a former call with the same questions
        and encoder wrote is kept; UserError where it has others.
      run: as of `index.run.run_encoder`.
      text_column: of the questions; if empty, that with a usual name (`data.columns.TEXT_NAMES`).
      skip_bad_rows: leave out rows without a question, instead of a UserError.
      spark: the master of a cluster, as of `spark_session.session`; if empty, this process encodes.
      log: gets a line when it resumes, and for every part.
    """
    out = pathlib.Path(out).absolute()
    folder = run_encoder_folder(run).absolute()
    encoder = read_encoder(folder)
    parts, column, digest = _parts(pathlib.Path(source).absolute(), out, text_column)
    job = _Job(str(folder), encoder.identity, column, skip_bad_rows, _ON_SPARK if spark else _BATCH)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock") as ours, name_in_errors(out):
        if not ours:
            raise UserError(f"{out}: another process is writing it", remedy="wait for its end")
        asked = {
            "format": FORMAT,
            "encoder": encoder.identity,
            "dimension": encoder.dimension,
            "column": column,
            "skip_bad_rows": skip_bad_rows,
            "questions": digest,
        }
        _begin(out, asked)
        left = [part for part in parts if not os.path.exists(part.out)]
        if len(left) < len(parts):
            log(f"{out}: resuming after {len(parts) - len(left)} of {len(parts)} parts")
        done = len(parts) - len(left)
        for part, rows in _on_spark(spark, left, job) if spark else _here(left, job, encoder):
            done += 1
            log(f"{os.path.basename(part.out)}: {rows:,} questions; {done} of {len(parts)} parts")
        with write_atomically(out / DONE):
            pass
    return sum(_metadata(part.out).num_rows for part in parts)


def _parts(source: pathlib.Path, out: pathlib.Path, column: str) -> tuple[list[Part], str, str]:
    """The parts of a folder, the column of the questions, and a hash of what the files hold."""
    files = sorted(
        path for path in source.rglob("*.parquet") if not path.name.startswith((".", "_"))
    )
    if not files:
        raise UserError(f"{source}: expected a folder of *.parquet files, found none")
    parts: list[Part] = []
    metadata = [*map(_metadata, files)]
    schema = metadata[0].schema.to_arrow_schema()
    digest = hashlib.sha256()
    for number, (path, found) in enumerate(zip(files, metadata, strict=True)):
        if not found.schema.to_arrow_schema().equals(schema):
            raise UserError(
                f"{path}: expected the columns of {files[0]}, with their types, got others",
                remedy="put files with other columns into another folder",
            )
        digest.update(f"{path.relative_to(source)} {path.stat().st_size}\n".encode())
        digest.update(_footer(path))
        for group in range(found.num_row_groups):
            name = out / f"part-{number:05d}-{group:05d}.parquet"
            parts.append(Part(str(path), group, str(name)))
    try:
        chosen = Columns(column, None).choose(schema.names).text
    except UserError as error:
        raise UserError(f"{files[0]}: {error.what}", remedy=error.remedy) from None
    if VECTOR in schema.names:
        raise UserError(
            f"{files[0]}: expected no column `{VECTOR}`, which is written, got one",
            remedy="rename it",
        )
    return parts, chosen, digest.hexdigest()


def _metadata(path: StrPath) -> Any:
    """The metadata of a Parquet file; UserError where it is none."""
    pyarrow = import_pyarrow(str(path))
    from pyarrow import parquet

    try:
        return parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path}: expected a Parquet file, got another or one cut off ({reason:.80})",
            remedy="restore or remove it",
        ) from None


def _footer(path: pathlib.Path) -> bytes:
    """The end of a Parquet file, with places and statistics of all columns: 64 KiB at most."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        return file.read()


def _begin(out: pathlib.Path, asked: dict[str, Any]) -> None:
    """Keep in the folder what is asked for; UserError where it was something else."""
    path = out / STATE
    for left in out.glob(".part-*"):  # of a killed writer
        left.unlink()
    if not path.exists():
        if any(not name.startswith(".") for name in os.listdir(out)):
            raise UserError(
                f"{out}: expected a new folder, or one of the same questions, got another",
                remedy="name another folder",
            )
        write_json(path, asked)
        return
    known = read_object(path)
    other = [name for name in asked if known.get(name) != asked[name]]
    if other:
        raise UserError(
            f"{out}: was begun with another {', '.join(other)}",
            remedy="name another folder, or remove this one to begin again",
        )


def _here(parts: list[Part], job: _Job, encoder: Encoder) -> Iterator[tuple[Part, int]]:
    """Write the parts in this process; each with its rows."""
    for part in parts:
        yield part, _write(part, job, encoder)


def _on_spark(master: str, parts: list[Part], job: _Job) -> Iterator[tuple[Part, int]]:
    """Write the parts on the workers of a cluster; each with its rows."""
    from qpr_jax.spark_session import Rows, arrow_map, session

    if not parts:
        return

    def write(numbers: Rows) -> Rows:
        for (number,) in numbers:
            try:
                yield _Written(number, _write(parts[number], job, _encoder(job)))
            except UserError as error:  # the driver raises it, without a traceback of Java
                yield _Written(number, 0, error.what, error.remedy)

    columns = "number bigint, rows bigint, what string, remedy string"
    with session(master, "qpr encode") as spark:
        numbers = spark.range(len(parts)).repartitionByRange(len(parts), "id")
        rows = numbers.mapInArrow(*arrow_map(write, columns))
        for written in itertools.starmap(_Written, rows.toLocalIterator(prefetchPartitions=True)):
            if written.what:
                raise UserError(written.what, remedy=written.remedy)
            yield parts[written.number], written.rows


@functools.lru_cache(maxsize=1)
def _encoder(job: _Job) -> Encoder:
    """The encoder, which a process of Spark reads once; UserError where the driver has another."""
    found = read_encoder(job.run)
    if found.identity != job.identity:
        raise UserError(
            f"{job.run}: expected encoder {job.identity[:12]}, as on the machine that began, got "
            f"{found.identity[:12]} on {os.uname().nodename}",
            remedy="copy the folder to all machines",
        )
    return found


def _write(part: Part, job: _Job, encoder: Encoder) -> int:
    """Write a part under a name of its own, sync and rename it; return its rows."""
    import pyarrow
    from pyarrow import parquet

    # Spark may run a task twice at once.
    hidden = pathlib.Path(part.out).with_name(
        f".{os.path.basename(part.out)}-{secrets.token_hex(4)}"
    )
    rows = at = 0
    with parquet.ParquetFile(part.source) as source, contextlib.ExitStack() as stack:
        kind = pyarrow.list_(pyarrow.float32(), encoder.dimension)
        schema = source.schema_arrow.append(pyarrow.field(VECTOR, kind, nullable=False))
        file = stack.enter_context(write_atomically(hidden))
        writer = stack.enter_context(parquet.ParquetWriter(file, schema))
        for batch in source.iter_batches(_BATCH, row_groups=[part.group]):
            texts = batch.column(job.column).to_pylist()
            good = [isinstance(text, str) and bool(text.strip()) for text in texts]
            if not all(good):
                if not job.skip_bad_rows:
                    first = good.index(False)
                    raise UserError(
                        f"{part.source}, row {at + first} of row group {part.group}: expected a "
                        f"question in `{job.column}`, got {short(texts[first])}",
                        remedy="correct the row, or leave it out with {skip_bad_rows}",
                    )
                batch = batch.filter(pyarrow.array(good))
                texts = [text for text, is_good in zip(texts, good, strict=True) if is_good]
            at += len(good)
            rows += len(texts)
            if texts:
                vectors = _encode(texts, encoder, job.batch)
                column = pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), type=kind)
                writer.write_batch(pyarrow.record_batch([*batch.columns, column], schema=schema))
    os.replace(hidden, part.out)
    return rows


def _encode(texts: list[str], encoder: Encoder, batch: int) -> np.ndarray:
    """The vectors of texts, float32 [n, d]; `batch` at a time, since more use more threads."""
    starts = range(0, len(texts), batch)
    return np.concatenate([encoder.encode(texts[start : start + batch]) for start in starts])
