"""Vectors of many questions in files, written in parts: the same call resumes after a kill.

`encode_to_file` writes a .npy file. The rows so far are in a hidden file beside it, their number
and the hash of their questions in a second one.

`encode_parquet` writes a folder of Parquet files, in this process or on Spark:

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
import hashlib
import itertools
import json
import logging
import os
import pathlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax import progress
from qpr_jax.data.columns import Columns, table_files
from qpr_jax.data.decoding import import_pyarrow
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import load_encoder
from qpr_jax.errors import UserError, short
from qpr_jax.files import StrPath, locked, name_in_errors, read_object, write_atomically, write_json
from qpr_jax.index.build import npy_header
from qpr_jax.index.run import run_encoder_folder
from qpr_jax.integrations.spark import map_numbers, open_session, raise_error

log = logging.getLogger(__name__)

FORMAT = "qpr_jax Parquet vectors 1"
STATE, DONE, VECTOR = "_encoding.json", "_SUCCESS", "vector"
CHUNK = 16_384  # questions in memory at once
_SOURCE = b"qpr_jax.source"  # in the metadata of a part
_ON_SPARK = 512  # questions that one thread encodes: Spark has a task for each core


def encode_to_file(
    path: StrPath,
    questions: Iterable[str],
    encode: Callable[[Sequence[str]], np.ndarray],
    *,
    dimension: int,
    encoder: str,
    chunk: int = CHUNK,
) -> int:
    """Write the vectors of questions, float32 [n, dimension], to a .npy file, and return n.

    The next call with the same questions and encoder resumes what a kill left beside `path`; a
    UserError refuses others.

    encoder: the identity of the encoder.
    """
    path = pathlib.Path(path).resolve()
    if path.suffix != ".npy":
        raise UserError(f"{path}: expected a name that ends in .npy", remedy="name another file")
    part, state, lock = (
        path.with_name(f".{path.name}.{end}") for end in ("part", "state.json", "lock")
    )
    stream, start = iter(questions), len(npy_header((0, dimension), "float32"))
    first = [*itertools.islice(stream, chunk)]  # unreadable questions fail before a file is made
    # The file stays: without it two processes could hold the lock.
    with locked(lock, busy=f"{path}: another process is writing it"):
        known = read_object(state)
        done = known.get("rows", 0)
        if not part.exists() or part.stat().st_size < start + done * 4 * dimension:
            done = 0
        if done:
            log.info("%s: resuming after %s questions", path, f"{done:,}")
        with name_in_errors(part), open(part, "r+b" if done else "w+b") as file:
            file.truncate(start + done * 4 * dimension)
            file.seek(0, os.SEEK_END)
            digest, rows, some = hashlib.sha256(encoder.encode()), 0, first
            while some:
                digest.update(json.dumps(some).encode())
                rows += len(some)
                facts = {"rows": rows, "sha256": digest.hexdigest()}
                if rows - len(some) < done < rows or (rows == done and facts != known):
                    break
                if rows > done:
                    file.write(np.ascontiguousarray(encode(some), np.float32).tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                    write_json(state, facts)
                some = [*itertools.islice(stream, chunk)]
            if some or rows < done:
                what = f"{part}: was started with other questions or another encoder"
                raise UserError(what, remedy="remove the file to start again")
            file.seek(0)
            file.write(npy_header((rows, dimension), "float32"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        state.unlink(missing_ok=True)
    return rows


class Part(NamedTuple):
    """A row group of a file of questions, and a file for its vectors."""

    source: str
    group: int
    rows: int
    state: str  # the size and the time of the source
    out: str


class _Job(NamedTuple):
    """What a worker must know."""

    folder: str  # of the encoder
    identity: str
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
      encoder: as in `index.run.read_encoder`.
      text_column: of the questions; if empty, that with a usual name (`data.columns.TEXT_NAMES`).
      skip_bad_rows: leave out rows without a question, instead of a UserError.
      spark: the master, as of `integrations.spark.open_session`; if empty, this process encodes.
    """
    out = pathlib.Path(out).absolute()
    folder = run_encoder_folder(encoder).absolute()
    loaded = load_encoder(folder)
    parts, column = _parts(pathlib.Path(source).absolute(), out, text_column)
    job = _Job(str(folder), loaded.identity, column, skip_bad_rows, _ON_SPARK if spark else CHUNK)
    busy = f"{out}: another process is writing it"
    with locked(out / ".lock", busy=busy), name_in_errors(out):
        asked = {"format": FORMAT, "encoder": loaded.identity, "dimension": loaded.dimension}
        _begin(out, asked | {"column": column, "skip_bad_rows": skip_bad_rows}, parts)
        left = [part for part in parts if not _is_written(part)]
        if 0 < len(left) < len(parts):
            log.info("%s: resuming after %d of %d parts", out, len(parts) - len(left), len(parts))
        done = sum(part.rows for part in parts) - sum(part.rows for part in left)
        here = itertools.chain.from_iterable(_write(part, job, loaded) for part in left)
        written = _on_spark(spark, left, job) if spark else here
        with progress.bar("encoded", sum(part.rows for part in parts), start=done) as show:
            for rows in written:
                done += rows
                show(done, "")
        with write_atomically(out / DONE):
            pass
    return sum(_metadata(part.out).num_rows for part in parts)


def _parts(source: pathlib.Path, out: pathlib.Path, column: str) -> tuple[list[Part], str]:
    """Return the parts of a folder, and the column of the questions."""
    files = [*map(pathlib.Path, table_files([source], format="parquet"))]
    parts: list[Part] = []
    metadata = [*map(_metadata, files)]
    schema = metadata[0].schema.to_arrow_schema()
    for number, (path, found) in enumerate(zip(files, metadata, strict=True)):
        if not found.schema.to_arrow_schema().equals(schema):
            what = f"{path}: expected the columns of {files[0]}, with their types, got others"
            raise UserError(what, remedy="put files with other columns into another folder")
        state = f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for group in range(found.num_row_groups):
            name = out / f"part-{number:05d}-{group:05d}.parquet"
            rows = found.row_group(group).num_rows
            parts.append(Part(str(path), group, rows, state, str(name)))
    chosen = Columns(column, None).choose(schema.names, str(files[0])).text
    if VECTOR in schema.names:
        what = f"{files[0]}: the column `{VECTOR}` is there already"
        raise UserError(what, remedy="rename it")
    return parts, chosen


def _is_written(part: Part) -> bool:
    known = _metadata(part.out).metadata if os.path.exists(part.out) else None
    return (known or {}).get(_SOURCE) == part.state.encode()


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


def _begin(out: pathlib.Path, asked: dict[str, Any], parts: Sequence[Part]) -> None:
    """Write what is asked for into the folder; UserError if it was begun with something else."""
    path = out / STATE
    if not path.exists():
        if any(not name.startswith(".") for name in os.listdir(out)):
            what = f"{out}: expected a new folder, or one of the same questions, got another"
            raise UserError(what, remedy="name another folder")
        write_json(path, asked)
    known = read_object(path)
    other = [name for name in asked if known.get(name) != asked[name]]
    if other:
        what = f"{out}: was begun with another {', '.join(other)}"
        raise UserError(what, remedy="name another folder, or remove this one to begin again")
    (out / DONE).unlink(missing_ok=True)
    names = {os.path.basename(part.out) for part in parts}
    for left in (*out.glob(".part-*"), *out.glob("part-*.parquet")):
        if left.name not in names:  # of a killed writer, or of rows that are gone
            left.unlink()


def _on_spark(master: str, parts: list[Part], job: _Job) -> Iterator[int]:
    """Write the parts on the workers of a cluster, and yield the number of rows of each."""
    if not parts:
        return

    def write(number: int) -> list[tuple[int]]:
        return [(sum(_write(parts[number], job, _encoder(job))),)]

    with open_session(master, "qpr encode") as session:
        rows = map_numbers(session, len(parts), write, "rows bigint")
        for written, what, remedy in rows.toLocalIterator(prefetchPartitions=True):
            raise_error(what, remedy)
            yield written


@functools.lru_cache(maxsize=1)
def _encoder(job: _Job) -> Encoder:
    """Read the encoder once a process of Spark; UserError if the driver has another."""
    found = load_encoder(job.folder)
    if found.identity != job.identity:
        what = f"expected encoder {job.identity[:12]}, as on the machine that began, got "
        what += f"{found.identity[:12]} on {os.uname().nodename}"
        raise UserError(f"{job.folder}: {what}", remedy="copy the folder to all machines")
    return found


def _write(part: Part, job: _Job, encoder: Encoder) -> Iterator[int]:
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
        kept = {**(schema.metadata or {}), _SOURCE: part.state.encode()}
        file = stack.enter_context(write_atomically(hidden))
        writer = stack.enter_context(parquet.ParquetWriter(file, schema.with_metadata(kept)))
        for batch in source.iter_batches(CHUNK, row_groups=[part.group]):
            texts = batch.column(job.column).to_pylist()
            good = [isinstance(text, str) and bool(text.strip()) for text in texts]
            if not all(good):
                if not job.skip_bad_rows:
                    first = good.index(False)
                    where = f"{part.source}, row {at + first} of row group {part.group}"
                    what = f"expected a question in `{job.column}`, got {short(texts[first])}"
                    raise UserError(f"{where}: {what}", remedy="correct the row, or skip bad rows")
                batch = batch.filter(pyarrow.array(good))
                texts = [text for text, is_good in zip(texts, good, strict=True) if is_good]
            at += len(good)
            if texts:
                starts = range(0, len(texts), job.batch)
                some = [encoder.encode(texts[start : start + job.batch]) for start in starts]
                vectors = np.concatenate(some)
                column = pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), type=kind)
                columns = [*batch.columns, column]
                writer.write_batch(pyarrow.record_batch(columns, schema=writer.schema))
            yield len(good)
    os.replace(hidden, part.out)
