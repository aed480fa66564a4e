"""`FolderStore`: the questions and vectors of an index in a folder, which processes share."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pathlib
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from qpr_jax import kinds
from qpr_jax.data.entries import Id
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError, counted
from qpr_jax.files import StrPath, folder_lock
from qpr_jax.index.build import (
    INDEX,
    Encode,
    exporter,
    found_nothing,
    read_build,
    refuse_part,
    verify_build,
    write_build,
)
from qpr_jax.index.changes import NONE
from qpr_jax.index.protocol import (
    DamagedError,
    Hit,
    IndexConfig,
    Question,
    SaveEncoder,
    check_encoder,
    damaged,
)
from qpr_jax.index.questions import (
    LARGEST_COUNTER,
    LOCK,
    State,
    as_hit,
    question_json,
    signature_of,
    stored_key,
)
from qpr_jax.index.vectors import Live, check_vectors
from qpr_jax.text.cleaning import Cleaner

log = logging.getLogger("qpr_jax")


class FolderStore:
    """The `Store` of a folder.

    Any number of threads search while one, which holds the lock of the folder, changes it: a search
    sees a change whole or not at all. Another process's changes are seen by the next search. A
    change is on disk when the call returns, and a kill leaves the questions before it or after it.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, path: StrPath, *, encoder: str = "", temporary: bool = False) -> None:
        """Open a folder; UserError if it is damaged.

        encoder: fingerprint that the encoder of the vectors must have; "": any.
        temporary: the folder is removed with the store.
        """
        self.path, self.temporary = pathlib.Path(path).absolute(), temporary
        self._expected, self._stale = encoder, False
        self._refused: tuple[int, ...] | None = None  # signature of a damaged build
        self._take(self._opened().apply())
        if temporary:
            weakref.finalize(self, _remove, self.path, os.getpid())

    @classmethod
    def open(cls, location: StrPath) -> Self:
        """See `Store`; the location is the folder that index/ lies in."""
        path = pathlib.Path(location)
        if not (path / INDEX).is_dir():
            refuse_part(path)
            kinds.refuse_kind(path, kinds.INDEX)
            raise found_nothing(location, kinds.INDEX)
        return cls(path / INDEX)

    @classmethod
    def build(
        cls,
        location: StrPath,
        questions: Iterable[Question],
        encoder: Encoder,
        index_config: IndexConfig,
        encoder_name: str,
        save_encoder: SaveEncoder,
    ) -> Self:
        """See `Store`; the folder gets index/ and, if it has none, the encoder."""
        path = None
        facts: dict[str, Any] = {"encoder": encoder.fingerprint, "dimension": encoder.dimension}
        if location:
            folder = pathlib.Path(location)
            refuse_part(folder)
            path, facts["export"] = folder / INDEX, exporter(folder, encoder, save_encoder)
        return cls.create(path, questions, encoder.encode, index_config, **facts)

    @classmethod
    def create(
        cls,
        path: StrPath | None,
        questions: Iterable[Question],
        encode: Encode,
        index_config: IndexConfig,
        *,
        encoder: str,
        **options: Any,
    ) -> Self:
        """Index questions in the folder `path` itself; None: in a temporary one.

        Other arguments as of `write_build`.
        """
        temporary = path is None
        folder = pathlib.Path(tempfile.mkdtemp(prefix="qpr-") if path is None else path)
        try:
            with folder_lock(folder):
                write_build(folder, questions, encode, index_config, encoder=encoder, **options)
            return cls(folder, encoder=encoder, temporary=temporary)
        except BaseException:
            if temporary:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def __repr__(self) -> str:
        where = "memory" if self.temporary else self.path
        return f"<FolderStore: {counted(len(self), 'question')} in {where}, {self.vectors.factory}>"

    @property
    def location(self) -> str:
        """The folder that its index/ lies in; "" if it is temporary."""
        return "" if self.temporary else str(self.path.parent)

    @property
    def encoder_name(self) -> str:
        """Its location, which has the encoder, too."""
        return self.location

    def require(self, encoder: str) -> None:
        """See `Store`."""
        check_encoder(self.path, self.encoder, encoder)
        self._expected = encoder

    @property
    def version(self) -> str:
        """Name of the present questions: that of the build, and of its changes."""
        state = self._fresh()
        return f"{state.manifest['build']} {state.mark[8:20].hex()}"

    def facts(self) -> dict[str, Any]:
        """See `Store`."""
        verify_build(self.path)
        self._state.changes.read()
        sizes = [file.stat().st_size for file in self.path.iterdir() if file.is_file()]
        return {
            "store": "folder",
            "built_as": self.vectors.factory,
            "recall@10": round(self._state.manifest["recall@10"], 4),
            "removed": len(self.vectors) // self.index_config.texts - len(self),
            "added": self.vectors.added // self.index_config.texts,
            "index_bytes": sum(sizes),
        }

    def __len__(self) -> int:
        state = self._fresh()
        return state.live.present // state.texts

    def search(self, vectors: np.ndarray, k: int) -> list[list[Hit]]:
        """See `Store`."""
        check_vectors(vectors, (len(vectors), self.dimension), "float32", "`vectors`")
        state = self._fresh()
        step = state.texts
        size = min(k * step, state.live.present)  # at least k questions have so many texts
        if size < 1:
            return [[] for _ in vectors]
        distances, rows = state.vectors.search(vectors, size, state.live)
        found = state.questions([row - row % step for row in rows.ravel().tolist() if row >= 0])
        columns, results = (None, *state.vectors.index_config.text_columns), []
        for near in zip(rows.tolist(), distances.tolist(), strict=True):
            hits: dict[int, Hit] = {}
            for row, distance in zip(*near, strict=True):
                first = row - row % step
                if row >= 0 and first not in hits:
                    hits[first] = as_hit(found[first], distance, columns[row - first])
            results.append([*hits.values()][:k])
        return results

    def add(self, questions: Sequence[Question], vectors: np.ndarray) -> None:
        """See `Store`."""
        if not len(questions):
            return
        with self.changing():
            state, step = self._state, self._state.texts
            shape = len(questions) * step, self.dimension
            check_vectors(vectors, shape, self.index_config.vectors, "`vectors`")
            replaced = state.rows_of(question.id for question in questions)
            rows = range(at := state.live.rows, at + step * len(questions), step)
            vectors = vectors.reshape(len(questions), -1)
            added = zip(rows, map(question_json, questions), vectors, strict=True)
            state.changes.write(replaced.values(), added)
            self._refresh()

    def remove(self, ids: Sequence[Id]) -> int:
        """See `Store`."""
        with self.changing():
            state = self._state
            removed = state.rows_of(ids)
            if removed:
                state.changes.write(removed.values(), [])
                self._refresh()
            return len(removed)

    def get(self, ids: Sequence[Id]) -> list[Question | None]:
        """See `Store`."""
        state = self._fresh()
        rows = state.rows_of(ids)
        found = state.questions([*rows.values()])
        return [found[rows[key]] if key in rows else None for key in map(stored_key, ids)]

    def questions(self) -> Iterator[Question]:
        """See `Store`."""
        for _, some in self._fresh().blocks():
            yield from some

    def blocks(self) -> Iterator[tuple[list[Question], np.ndarray]]:
        """Yield the questions with their vectors, some at a time."""
        state = self._fresh()
        for rows, some in state.blocks():
            yield some, state.vectors.take(rows)

    def new_ids(self, count: int) -> list[Id]:
        """See `Store`: the next numbers; random ones when the counter comes to its end."""
        first = self._fresh().next_id
        if first + count <= LARGEST_COUNTER:
            return [*range(first, first + count)]
        return [LARGEST_COUNTER + secrets.randbelow(2**62) for _ in range(count)]

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """See `Store`; PermissionError at once if the folder cannot be written."""
        if not os.access(self.path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
        with folder_lock(self.path):
            self._refresh()
            yield

    def compact(self) -> None:
        """Build again from the present questions and vectors; searches go on meanwhile."""
        with self.changing():
            self._write(self.path, lambda build: str(self._state.manifest["export"]))
            self._refresh()

    def copy_to(self, location: StrPath, encoder: Encoder, save_encoder: SaveEncoder) -> Self:
        """Write the present questions and vectors to another folder, as `build` does."""
        folder = pathlib.Path(location)
        with self.changing(), folder_lock(folder / INDEX):
            self._write(folder / INDEX, exporter(folder, encoder, save_encoder))
        return type(self)(folder / INDEX, encoder=self._expected)

    def _write(self, folder: pathlib.Path, export: Callable[[str], str]) -> None:
        state, at = self._state, 0
        mask = state.live.mask
        rows = np.arange(state.live.rows) if mask is None else np.flatnonzero(mask)

        def next_vectors(texts: list[str]) -> np.ndarray:
            nonlocal at
            at += len(texts)
            return state.vectors.take(rows[at - len(texts) : at])

        write_build(
            folder,
            (question for _, some in state.blocks() for question in some),
            next_vectors,
            self.index_config,
            encoder=self.encoder,
            dimension=self.dimension,
            codes=None if state.mark != NONE else state.vectors,
            next_id=state.next_id,
            cleaner=self.cleaner,
            export=export,
        )

    def _fresh(self) -> State:
        """Return the state with the changes of others; a damaged build is logged, and not taken."""
        state, signature = self._state, signature_of(self.path)
        replaced = self._stale or signature not in (state.signature, self._refused)
        if replaced or os.pread(state.changes.descriptor, len(state.mark), 0) != state.mark:
            try:
                self._refresh()
            except DamagedError as error:
                if self._stale or not signature:
                    raise
                log.error("%s; until then the index before it answers", error)
                self._refused = signature
        return self._state

    def _refresh(self) -> None:
        """Take in a newer build, and all changes."""
        with LOCK:  # for which a fork waits
            state = self._state
            if self._stale or signature_of(self.path) != state.signature:
                state = self._opened()
            self._stale = True  # until all of it is done
            self._take(state.apply())
            self._stale = False

    def _opened(self) -> State:
        """Open the present build as it was before all changes."""
        while True:
            signature = signature_of(self.path)
            try:
                manifest, built, changes, vectors = read_build(self.path)
            except (UserError, FileNotFoundError) as error:
                if signature_of(self.path) != signature:
                    continue  # another process replaced the build
                if isinstance(error, UserError):
                    raise DamagedError(error.what, remedy=error.remedy) from None
                raise damaged(error.filename, "the file is missing") from None
            check_encoder(self.path, manifest["encoder"], self._expected)
            live, next_id = Live(len(vectors), len(vectors)), manifest["next_id"]
            return State(manifest, signature, built, changes, vectors, [], {}, live, NONE, next_id)

    def _take(self, state: State) -> None:
        self._state = state
        self.vectors = state.vectors  # by row, without regard to what was removed
        self.index_config = state.vectors.index_config
        self.encoder = str(state.manifest["encoder"])
        self.dimension = int(state.manifest["dimension"])
        self.cleaner = Cleaner(state.manifest["shared"])


def _remove(path: pathlib.Path, process: int) -> None:
    if process == os.getpid():  # a child has the same finalizer
        shutil.rmtree(path, ignore_errors=True)
