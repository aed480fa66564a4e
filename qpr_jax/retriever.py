"""What a user holds: a trained encoder and an index of questions, without JAX."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import operator
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import (
    contains_encoder,
    encoder_folder,
    is_encoder,
    read_encoder,
    save_encoder,
)
from qpr_jax.encoders.sentence_transformers import CONFIG, WEIGHTS
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, StrPath, read_object
from qpr_jax.index.faiss_index import Recipe, check_recipe
from qpr_jax.index.folder import (
    Store,
    TextsWriter,
    new_build,
    nothing_left,
    only_writer,
    read_store,
    write_store,
)
from qpr_jax.index.question_index import (
    Found as Hit,
)
from qpr_jax.index.question_index import (
    QuestionIndex,
    build_index,
    build_rows,
    checked_ids,
    numbered,
    refuse_repeated,
    tell,
)
from qpr_jax.index.question_store import texts_of
from qpr_jax.text.base import as_texts

__all__ = ["Hit", "Retriever"]


class Retriever:
    """Finds the indexed questions that mean the same as a query.

    Any number of threads may search and encode while one changes the questions. A retriever that
    was loaded or saved keeps its folder up to date: a change is on disk when the call returns, and
    a kill at any point leaves the questions before it or after it.

        retriever = Retriever.load("runs/quora_sdml")
        for hit in retriever.search(["how can i learn python quickly"], k=5)[0]:
            print(hit.distance, hit.id, hit.question)
    """

    def __init__(self, encoder: Encoder, index: QuestionIndex, store: Store | None = None) -> None:
        """store: where changes are kept; nowhere where None."""
        self.encoder, self.index = encoder, index
        self._store = store
        self._writer = threading.Lock()

    @classmethod
    def load(cls, run: StrPath, *, indexed: bool = False) -> Retriever:
        """The encoder and index of a folder; UserError where one is missing or damaged.

        run: or, unless it must be `indexed`, what has an encoder alone, to which questions are
          added, in memory until it is saved: a folder that `qpr publish` made, the name of one in
          `$QPR_MODELS` or the cache, an address `hf://ORG/NAME` (see
          `encoders.load.encoder_folder`), `minilm`.
        """
        if not indexed:
            run = encoder_folder(run)
            if is_encoder(run) and not pathlib.Path(run, "index").exists():
                return cls._empty(read_encoder(run))
        folder = pathlib.Path(run, "index")
        while True:
            before = _manifest_of(run)
            try:
                encoder = run_encoder(run)
                if not folder.is_dir():
                    raise UserError(
                        f"`run`: {run} has no index/; finish the run (the same command resumes "
                        "it), or make an index with `qpr index` or `Retriever.build`"
                    )
                index, manifest = read_store(folder, encoder.encode, encoder=encoder.identity)
            except UserError:
                # Another process may have put the index of another encoder there.
                if _manifest_of(run) == before:
                    raise
            else:
                return cls(encoder, index, Store(folder, manifest))

    @classmethod
    def _empty(cls, encoder: Encoder) -> Retriever:
        recipe = run_recipe(encoder)
        rows = build_rows(encoder.encode, texts_of([]), np.zeros(0, np.int64), recipe)
        return cls(encoder, QuestionIndex(rows, recipe, encoder.identity))

    @classmethod
    def build(
        cls,
        questions: Sequence[str],
        ids: Sequence[int] | None = None,
        *,
        run: StrPath,
        recipe: Recipe | None = None,
        log: Callable[[str], object] = lambda line: None,
    ) -> Retriever:
        """An index of one's own questions, in memory, with the encoder of `run`.

        Args:
          questions: one or more strings.
          ids: distinct, 0 to 2^63 - 1, one a question; 0, 1, 2, ... where None.
          run: what has an encoder, which stays as it is; see `load`.
          recipe: how to index; as the run says where None.
          log: is told what is built, and its recall where that is low.
        """
        encoder = run_encoder(run)
        index = build_index(
            encoder.encode,
            as_texts(questions),
            ids,
            recipe=recipe or run_recipe(encoder),
            encoder=encoder.identity,
            log=log,
        )
        return cls(encoder, index)

    @classmethod
    def build_in(
        cls,
        folder: StrPath,
        entries: Iterable[tuple[int, int | None, str]],
        *,
        run: StrPath,
        recipe: Recipe | None = None,
        source: str = "questions",
        log: Callable[[str], object] = lambda line: None,
    ) -> Retriever:
        """An index in `folder` of more questions than memory holds; see `build`.

        entries: (line, id, question), as of `data.questions.read_questions`: either all with
        distinct ids, or all with None, for 0, 1, 2, ...; a UserError names `source` and the line.
        """
        encoder = run_encoder(run)
        recipe = recipe or run_recipe(encoder)
        check_recipe(recipe, encoder.dimension)
        where = pathlib.Path(folder, "index")
        with only_writer(where), nothing_left(where):
            build, lines = new_build(), array.array("q")
            texts, ids = TextsWriter(where, build).write(numbered(entries, lines, source))
            refuse_repeated(ids, lines, source)
            if not len(ids):
                raise UserError(f"{source}: expected questions to index, got none")
            rows = build_rows(encoder.encode, texts, ids, recipe, shards=where)
            tell(rows, recipe, log)
            index = QuestionIndex(rows, recipe, encoder.identity)
            return cls(encoder, index, _write(where, encoder, index, build))

    def search(self, queries: Sequence[str], k: int = 5) -> list[list[Hit]]:
        """For each query its `k` nearest questions, nearest first; all where there are fewer."""
        try:
            wanted = operator.index(k)
        except TypeError:
            raise UserError(f"`k`: expected a whole number, got {k!r}") from None
        if wanted < 1:
            raise UserError(f"`k`: expected 1 or more, got {k}")
        return self.index.find(self.encoder.encode(as_texts(queries, "queries")), wanted)

    def encode(self, queries: Sequence[str]) -> np.ndarray:
        """Vectors of any strings, float32 [n, d]."""
        return self.encoder.encode(as_texts(queries, "queries"))

    def __len__(self) -> int:
        """How many questions can be found."""
        return len(self.index)

    def add(self, questions: Sequence[str], ids: Sequence[int] | None = None) -> list[int]:
        """Add questions; one whose id is there replaces the old one. Returns the ids.

        ids: distinct, 0 to 2^63 - 1, one a question; where None, numbers that no question has had.
        """
        questions = as_texts(questions)
        with self._changing():
            checked = checked_ids(ids, len(questions), self.index.next_id)
            vectors = self.encoder.encode(questions)
            listed: list[int] = checked.tolist()
            if listed:
                next_id = max(self.index.next_id, 1 + max(listed))
                with self._on_disk(listed, questions, next_id):
                    self.index.put(checked, questions, vectors)
            return listed

    def remove(self, ids: Iterable[int], *, ignore_missing: bool = False) -> int:
        """Remove the questions of these ids; UserError, and no change, where one is not there.

        ignore_missing: pass over those that are not there instead. Returns how many are removed.
        """
        given = list(ids)
        with self._changing():
            checked = checked_ids(given, len(given), 0)
            missing = self.index.missing(checked)
            if ignore_missing:
                checked = np.setdiff1d(checked, missing)
            elif missing:
                raise UserError(
                    f"`ids`: expected ids of indexed questions, got {missing[0]}"
                    + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
                    + " that none has; leave them out"
                )
            if len(checked):
                with self._on_disk(checked.tolist(), None, self.index.next_id):
                    self.index.remove(checked)
            return len(checked)

    def compact(self, log: Callable[[str], object] = lambda line: None) -> None:
        """Index anew what is there now, with lists and codes made for it.

        Takes as long as building; searches go on, other changes wait.
        """
        with self._changing():
            self._compact(self._store.folder if self._store else None, log)

    def save(self, folder: StrPath) -> None:
        """Write `folder`/export and `folder`/index, which `Retriever.load(folder)` reads.

        Later changes are kept there.
        """
        where = pathlib.Path(folder, "index")
        with self._writer, only_writer(where):
            if self._store and where.resolve() == self._store.folder.resolve():
                self.index = self._store.catch_up(self.index, self.encoder.encode)
            rows = self.index.rows
            if rows.changed:
                self._compact(where, lambda line: None)
                return
            build = new_build()
            texts, ids = TextsWriter(where, build).write(iter(self.index))
            self.index.replace(dataclasses.replace(rows, texts=texts, ids=ids))
            self._store = _write(where, self.encoder, self.index, build)

    def _compact(self, folder: pathlib.Path | None, log: Callable[[str], object]) -> None:
        index = self.index
        entries = iter(index)
        build = new_build()
        if folder:
            texts, ids = TextsWriter(folder, build).write(entries)
        else:
            listed = list(entries)
            texts = texts_of([question for _, question in listed])
            ids = np.array([value for value, _ in listed], np.int64)
        rows = build_rows(self.encoder.encode, texts, ids, index.wanted, shards=folder)
        tell(rows, index.wanted, log)
        if folder:
            fresh = QuestionIndex(rows, index.wanted, index.encoder, index.next_id)
            self._store = _write(folder, self.encoder, fresh, build)
        index.replace(rows)

    def _on_disk(
        self, ids: Sequence[int], questions: Sequence[str] | None, next_id: int
    ) -> contextlib.AbstractContextManager[None]:
        """The block's change is on disk before the block is entered, if there is a folder."""
        if self._store is None:
            return contextlib.nullcontext()
        return self._store.change(ids, questions, next_id)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time, on top of what other processes have changed in the folder."""
        with self._writer:
            if self._store is None:
                yield
                return
            with only_writer(self._store.folder):
                self.index = self._store.catch_up(self.index, self.encoder.encode)
                yield


def _write(where: pathlib.Path, encoder: Encoder, index: QuestionIndex, build: str) -> Store:
    """Write the index to its folder, and the encoder beside it unless it is there.

    An encoder of another index is not touched before the new index stands.
    """
    taken = _manifest_of(where.parent).get("encoder", encoder.identity) != encoder.identity
    name = "export"
    if taken and not contains_encoder(where.parent / name, encoder):
        name = f"export-{build}"
    save_encoder(where.parent / name, encoder)
    index.encoder = encoder.identity
    store = Store(where, write_store(where, index, build, name))
    for old in where.parent.glob("export-" + "[0-9a-f]" * 16):
        if old.name != name:
            shutil.rmtree(old)
    return store


def run_recipe(encoder: Encoder, **given: Any) -> Recipe:
    """How the run of an encoder indexes, but for what is given."""
    fields = [field.name for field in dataclasses.fields(Recipe)]
    settings = encoder.settings
    known = {n: settings[f"index.{n}"] for n in fields if f"index.{n}" in settings}
    default = Recipe()
    for name, value in known.items():
        if type(value) is not type(getattr(default, name)):
            raise UserError(f"settings of the encoder: `index.{name}`: got {value!r}; remake it")
    return Recipe(**(known | given))


def run_encoder(run: StrPath) -> Encoder:
    """The encoder of a run, or of what `encoders.load.encoder_folder` finds."""
    asked, run = run, encoder_folder(run)
    if not pathlib.Path(run).is_dir():
        raise UserError(
            f"`run`: expected the folder of a run, found none at {run}, nor a model of this name "
            "in $QPR_MODELS or ~/.cache/qpr_jax/models; train one with python -m "
            f"experiments.main --config=quora_sdml --workdir={run}"
        )
    if is_encoder(run):
        return read_encoder(run)
    named = _manifest_of(run).get("export")
    folder = pathlib.Path(run, pathlib.PurePath(named).name if isinstance(named, str) else "export")
    if folder.is_dir():
        return read_encoder(folder)
    if pathlib.Path(run, "run.json").is_file():
        raise UserError(
            f"`run`: {run} has no export/; finish the run (the same command resumes it)"
        )
    raise UserError(
        f"`run`: {asked}: expected a run, or a whole encoder ({WEIGHTS}, with {CONFIG} or with the "
        f"{MANIFEST} of `qpr publish`), found neither; name another folder, or fetch it again"
    )


def _manifest_of(run: StrPath) -> dict[str, Any]:
    """The manifest of a folder's index, empty where there is none."""
    return read_object(pathlib.Path(run, "index", MANIFEST))
