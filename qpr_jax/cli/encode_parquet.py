"""Vectors of a folder of Parquet files, written in this process or on Spark.

    _encoding.json           the encoder and the settings: what a later call must match
    part-00012-00003.parquet the rows of row group 3 of file 12, and the column `vector`
    _SUCCESS                 empty; there once all parts are

A part appears when it is whole and has the size and time of its source, so a later call writes the
parts that are missing or whose source has changed. On a cluster all machines need qpr_jax, but not
JAX, and the encoder and both folders at the same paths.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import pathlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.columns import SKIP, Columns
from qpr_jax.data.decoding import table_files
from qpr_jax.data.spark import map_numbers, open_session, raise_error
from qpr_jax.data.typed_rows import import_pyarrow
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import load_encoder
from qpr_jax.errors import UserError, short
from qpr_jax.files import StrPath, locked, name_in_errors, read_object, write_atomically, write_json
from qpr_jax.locations import run_encoder_folder
from qpr_jax.running import progress

log = logging.getLogger(__name__)

FORMAT = "qpr_jax Parquet vectors 1"
STATE, DONE, VECTOR = "_encoding.json", "_SUCCESS", "vector"
_SOURCE = b"qpr_jax.source"  # in the metadata of a part
_ROWS, _ON_SPARK = 16_384, 512  # that are encoded at once; Spark has a task for each core


class _Part(NamedTuple):
    """A row group of a file of questions, and a file for its vectors."""

    source: str
    group: int
    rows: int
    state: str  # the size and the time of the source
    out: str

    def is_written(self) -> bool:
        """Return whether the file has the vectors of the present source."""
        metadata = _metadata(self.out).metadata if os.path.exists(self.out) else None
        return (metadata or {}).get(_SOURCE) == self.state.encode()


class _Job(NamedTuple):
    """What a worker must know."""

    folder: str  # of the encoder
    fingerprint: str
    column: str
    skip_bad_rows: bool
    batch: int


def encode_parquet(
    source: StrPath,
    out: StrPath,
    encoder: StrPath,
    *,
    text_column: str = "",
    skip_bad_rows: bool = False,
    spark: str = "",
) -> int:
    """Write the rows of all Parquet files of a folder with their vectors; return how many.

    Args:
      source: the folder. Its files, in the order of their names, have the same columns.
      out: a folder; `vector` is a list of d float32. Parts that a former call wrote are kept where
        the source is the same; UserError if it had another encoder or other settings.
      encoder: as in `locations.read_encoder`.
      text_column: of the questions; if empty, that with a usual name (`kinds.TEXT_NAMES`).
      skip_bad_rows: leave out rows without a question, instead of a UserError.
      spark: the master, as of `data.spark.open_session`; if empty, this process encodes.
    """
    out = pathlib.Path(out).absolute()
    folder = run_encoder_folder(encoder).absolute()
    loaded = load_encoder(folder)
    parts, column = _list_parts(pathlib.Path(source).absolute(), out, text_column)
    batch = _ON_SPARK if spark else _ROWS
    job = _Job(str(folder), loaded.fingerprint, column, skip_bad_rows, batch)
    busy = f"{out}: another process is writing it"
    with locked(out / ".lock", busy=busy), name_in_errors(out):
        asked = {"format": FORMAT, "encoder": loaded.fingerprint, "dimension": loaded.dimension}
        _begin(out, asked | {"column": column, "skip_bad_rows": skip_bad_rows}, parts)
        left = [part for part in parts if not part.is_written()]
        if 0 < len(left) < len(parts):
            log.info("%s: resuming after %d of %d parts", out, len(parts) - len(left), len(parts))
        total = sum(part.rows for part in parts)
        done = total - sum(part.rows for part in left)
        here = itertools.chain.from_iterable(_write(part, job, loaded) for part in left)
        with progress("encoded", total, start=done) as show:
            for rows in _write_on_spark(spark, left, job) if spark else here:
                done += rows
                show(done, "")
        with write_atomically(out / DONE):
            pass
    return sum(_metadata(part.out).num_rows for part in parts)


def _list_parts(source: pathlib.Path, out: pathlib.Path, column: str) -> tuple[list[_Part], str]:
    """Return the parts of a folder, and the column of the questions."""
    files = [*map(pathlib.Path, table_files([source], format="parquet"))]
    parts = []
    schema = _metadata(files[0]).schema.to_arrow_schema()
    for number, path in enumerate(files):
        metadata = _metadata(path)
        if not metadata.schema.to_arrow_schema().equals(schema):
            what = f"{path}: expected the columns of {files[0]}, with their types, got others"
            raise UserError(what, remedy="put files with other columns into another folder")
        state = f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for group in range(metadata.num_row_groups):
            name = out / f"part-{number:05d}-{group:05d}.parquet"
            rows = metadata.row_group(group).num_rows
            parts.append(_Part(str(path), group, rows, state, str(name)))
    chosen = Columns(column, None).choose(schema.names, str(files[0])).text
    if VECTOR in schema.names:
        what = f"{files[0]}: the column `{VECTOR}` is there already"
        raise UserError(what, remedy="rename it")
    return parts, chosen


def _metadata(path: StrPath) -> Any:
    """Return the metadata of a Parquet file; UserError for another file."""
    pyarrow = import_pyarrow(str(path))
    from pyarrow import parquet

    try:
        return parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        what = f"{path}: expected a Parquet file, got another or one cut off ({reason:.80})"
        raise UserError(what, remedy="restore it, or name a folder of Parquet files") from None


def _begin(out: pathlib.Path, asked: dict[str, Any], parts: Sequence[_Part]) -> None:
    """Write what is asked for into the folder; UserError if it was begun with something else."""
    path = out / STATE
    if not path.exists():
        if any(not name.startswith(".") for name in os.listdir(out)):
            what = f"{out}: expected a new folder, or one of the same questions, got another"
            raise UserError(what, remedy="name another folder")
        write_json(path, asked)
    begun = read_object(path)
    if other := [name for name in asked if begun.get(name) != asked[name]]:
        what = f"{out}: was begun with another {', '.join(other)}"
        raise UserError(what, remedy="name another folder, or remove this one to begin again")
    (out / DONE).unlink(missing_ok=True)
    names = {os.path.basename(part.out) for part in parts}
    for left in (*out.glob(".part-*"), *out.glob("part-*.parquet")):
        if left.name not in names:  # of a killed writer, or of rows that are gone
            left.unlink()


def _write_on_spark(master: str, parts: list[_Part], job: _Job) -> Iterator[int]:
    """Write the parts on the workers of a cluster, and yield the number of rows of each."""

    def write(number: int) -> list[tuple[int]]:
        return [(sum(_write(parts[number], job, _read_encoder(job))),)]

    if parts:
        with open_session(master, "qpr encode") as session:
            rows = map_numbers(session, len(parts), write, "rows bigint")
            for written, what, remedy in rows.toLocalIterator(prefetchPartitions=True):
                raise_error(what, remedy)
                yield written


@functools.lru_cache(maxsize=1)
def _read_encoder(job: _Job) -> Encoder:
    """Read the encoder once a process of Spark; UserError if the driver has another."""
    encoder = load_encoder(job.folder)
    if encoder.fingerprint != job.fingerprint:
        what = f"expected encoder {job.fingerprint[:12]}, as on the machine that began, got "
        what += f"{encoder.fingerprint[:12]} on {os.uname().nodename}"
        raise UserError(f"{job.folder}: {what}", remedy="copy the folder to all machines")
    return encoder


def _write(part: _Part, job: _Job, encoder: Encoder) -> Iterator[int]:
    """Write a part under a name of its own, sync and rename it; yield the rows of each batch."""
    import pyarrow
    from pyarrow import parquet

    # Spark may run a task twice at once.
    name = f".{os.path.basename(part.out)}-{secrets.token_hex(4)}"
    hidden = pathlib.Path(part.out).with_name(name)
    at = 0
    with parquet.ParquetFile(part.source) as source, contextlib.ExitStack() as stack:
        kind = pyarrow.list_(pyarrow.float32(), encoder.dimension)
        schema = source.schema_arrow.append(pyarrow.field(VECTOR, kind, nullable=False))
        metadata = {**(schema.metadata or {}), _SOURCE: part.state.encode()}
        file = stack.enter_context(write_atomically(hidden))
        writer = stack.enter_context(parquet.ParquetWriter(file, schema.with_metadata(metadata)))
        for batch in source.iter_batches(_ROWS, row_groups=[part.group]):
            texts = batch.column(job.column).to_pylist()
            good = [isinstance(text, str) and bool(text.strip()) for text in texts]
            if not all(good) and not job.skip_bad_rows:
                first = good.index(False)
                where = f"{part.source}, row {at + first} of row group {part.group}"
                what = f"expected a question in `{job.column}`, got {short(texts[first])}"
                raise UserError(f"{where}: {what}", remedy=f"correct it, or {SKIP}")
            at += len(good)
            batch = batch.filter(pyarrow.array(good))
            if len(batch):
                texts = batch.column(job.column).to_pylist()
                starts = range(0, len(texts), job.batch)
                some = [encoder.encode(texts[start : start + job.batch]) for start in starts]
                numbers = np.concatenate(some).ravel()
                column = pyarrow.FixedSizeListArray.from_arrays(numbers, type=kind)
                columns = [*batch.columns, column]
                writer.write_batch(pyarrow.record_batch(columns, schema=writer.schema))
            yield len(good)
    os.replace(hidden, part.out)
