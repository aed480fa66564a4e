"""What a user holds: a trained encoder and an index of questions, without JAX."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from qpr_jax.data.questions import as_entries
from qpr_jax.encoders.base import Encoder, accepted_identities
from qpr_jax.encoders.load import encoder_folder, is_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id
from qpr_jax.index.base import Check, Hit, Payload, StoredQuestion, stored_entries
from qpr_jax.index.built_questions import accept
from qpr_jax.index.documents import describe_fit, query_encoder
from qpr_jax.index.folder import (
    new_build,
    new_files,
    read_index,
    read_manifest,
    remove_leftovers,
    write_index,
    write_store,
)
from qpr_jax.index.milvus_server import is_address
from qpr_jax.index.question_index import QuestionIndex, build_vectors, index_in_memory, log_build
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.run import run_encoder, run_recipe
from qpr_jax.locks import WriteLock
from qpr_jax.reranking.opening import empty_index, open_encoders, open_index, save_documents
from qpr_jax.reranking.second_stage import SecondStages, read_stages
from qpr_jax.searcher import Parts, Searcher

__all__ = ["Hit", "Recipe", "Retriever", "run_encoder", "run_recipe"]

Log = Callable[[str], object]


class Retriever(Searcher):
    """Finds the indexed questions that mean the same as a query.

    Any number of threads may search and encode while one changes the questions. A retriever that
    was loaded or saved keeps its folder up to date: a change is on disk when the call returns, and
    a kill at any point leaves the questions before it or after it.

        retriever = Retriever.build(table)  # or Retriever.load("runs/quora_sdml")
        for hit in retriever.search(["how can i learn python quickly"], k=5)[0]:
            print(hit.distance, hit.id, hit.question)
    """

    def __init__(
        self,
        encoder: Encoder,
        index: QuestionIndex,
        folder: pathlib.Path | None = None,
        build: str = "",
        *,
        second_stages: SecondStages | None = None,
    ) -> None:
        """folder: where changes are kept, in files of `build`; in memory alone where None."""
        super().__init__(Parts(encoder, index, second_stages or SecondStages(encoder, {})))
        # A relative one would mean another after a change of the working directory.
        self._lock = WriteLock(folder.absolute() if folder else None)
        self._build = build
        self._clean = False  # whether leftovers in the folder were removed

    @classmethod
    def load(
        cls,
        run: StrPath,
        *,
        indexed: bool = False,
        cross_encoder: StrPath | None = None,
        half: bool = False,
    ) -> Retriever:
        """The encoder, its re-ranker and the index of a folder; UserError where one is damaged.

        Args:
          run: or the address of a collection, milvus://HOST:19530/NAME; or, unless it must be
            `indexed`, what has an encoder alone (see `encoders.load.encoder_folder`), to which
            questions are added, in memory until it is saved: a folder of `qpr publish` or its
            name, an address `hf://ORG/NAME`, `minilm`, `open_student`.
          indexed: whether there must be an index.
          cross_encoder: the folder of one, for `search` with `rerank="cross_encoder"`.
          half: encode in half precision, as of `encoders.load.read_encoder`.
        """
        if is_address(run):
            from qpr_jax.milvus_retriever import open_collection

            return open_collection(str(run), cross_encoder, half=half)
        if not indexed:
            run = encoder_folder(run)
            if is_encoder(run) and not pathlib.Path(run, "index").exists():
                encoder, stages = read_stages(run, cross_encoder, half=half)
                return cls(encoder, empty_index(encoder), second_stages=stages)
        encoder, stages, index, build = open_index(run, cross_encoder, half=half)
        return cls(encoder, index, pathlib.Path(run, "index"), build, second_stages=stages)

    @classmethod
    def build(
        cls,
        questions: Any,
        ids: Iterable[Id] | None = None,
        payload: bool | Iterable[Any] = True,
        *,
        run: StrPath | Encoder | None = None,
        documents_by: StrPath | None = None,
        cross_encoder: StrPath | None = None,
        recipe: Recipe | None = None,
        text_column: str | None = None,
        id_column: str | None = None,
        skip_bad_rows: bool = False,
        log: Log = lambda line: None,
    ) -> Retriever:
        """An index of one's own questions, in memory, with the encoder and re-rankers of `run`.

        Args:
          questions: strings; or a table of pandas, Polars, PyArrow or with an Arrow C stream; or
            mappings from names of columns to values.
          ids: distinct, one a question, numbers from 0 to 2^63 - 1 or strings of at most 1,024
            bytes; None: those of the table, else 0, 1, 2, ...
          payload: kept with a question and returned with a hit. Of a table: its other columns
            (True), none (False), or those of these names. Of strings: a mapping for each.
          run: as of `load`, or an `Encoder` of one's own; files stay as they are. None:
            `open_student`.
          cross_encoder: as of `load`.
          documents_by: another encoder, for the questions alone: the teacher of that of `run`.
          recipe: how to index; as the run says where None.
          text_column: of the questions; None: `question`, `text`, `query`, `title`, ...
          id_column: of the ids; None: `id`, `qid`, ..., if there is one; "": none.
          skip_bad_rows: leave out rows without a question or with a bad id, instead of an error.
          log: gets a line that says what is built, and a warning where its recall is low.
        """
        entries = as_entries(questions, ids, payload, text_column, id_column, skip_bad_rows)
        return cls.build_in(
            *(None, entries, run),
            documents_by=documents_by,
            cross_encoder=cross_encoder,
            recipe=recipe,
            where="`questions`, position",
            log=log,
        )

    @classmethod
    def build_in(
        cls,
        folder: StrPath | None,
        entries: Iterable[tuple[int, Id | None, str, Payload | None]],
        run: StrPath | Encoder | None = None,
        *,
        documents_by: StrPath | None = None,
        cross_encoder: StrPath | None = None,
        recipe: Recipe | None = None,
        where: str = "`entries`, line",
        log: Log = lambda line: None,
    ) -> Retriever:
        """An index in `folder` of more questions than memory holds; see `build`.

        Args:
          folder: gets index/ and, where it has none, the encoder; None: in memory. Or the address
            of a collection, as of `load`.
          entries: (line, id, question, payload), as of `data.questions.read_questions`: either
            all with distinct ids, or all with None, for 0, 1, 2, ...
          run: as of `build`, and so are `documents_by`, `cross_encoder`, `recipe` and `log`.
          where: what a UserError says before the line, as `tickets.csv, line`.
        """
        questions, check = stored_entries(entries, where)
        if is_address(folder):
            from qpr_jax.milvus_retriever import load_collection

            if documents_by is not None:
                raise UserError("a collection of Milvus has one encoder", setting="documents_by")
            source = str(folder), questions, run, cross_encoder
            return load_collection(*source, recipe=recipe, check=check, log=log)
        encoder, stages, empty = open_encoders(run, documents_by, cross_encoder, recipe)
        retriever = cls(encoder, empty, second_stages=stages)
        path = pathlib.Path(folder, "index") if folder is not None else None
        with retriever._lock.hold(path):
            retriever._rebuild(path, questions, log, check=check)
        if empty.documents and len(retriever):
            log(describe_fit(retriever.index, encoder.encode))
        return retriever

    def __repr__(self) -> str:
        where = self._lock.folder.parent if self._lock.folder else "memory"
        parts = f"{self.encoder!r}, {self.index.vectors!r}, {self.second_stages!r}"
        return f"<Retriever of {len(self):,} questions in {where}: {parts}>"

    @property
    def state(self) -> str:
        """Names the questions as this retriever sees them; each change gives another name."""
        return f"{self._build} {self.index.store.sequence}"

    def compact(self, log: Log = lambda line: None) -> None:
        """Build the index again from its present questions, with lists and codes made for them.

        Takes as long as building; searches go on, other changes wait.
        """
        with self.changing():
            self._rebuild(self._lock.folder, self.index.store, log)

    def save(self, folder: StrPath) -> None:
        """Write `folder`/export and `folder`/index, which `Retriever.load(folder)` reads.

        Later changes are kept there. The address of a collection, as of `load`, gets the questions
        as they are now; load it to change them there.
        """
        if is_address(folder):
            from qpr_jax.milvus_retriever import save_collection

            save_collection(str(folder), self)
            return
        where = pathlib.Path(folder, "index").absolute()
        with self._lock.hold(where):
            if self._lock.folder and where.resolve() == self._lock.folder.resolve():
                self._catch_up(where)
            index, build = self.index, new_build()
            if index.changed:
                self._rebuild(where, index.store, lambda line: None)
                return
            with new_files(where, build):
                store = write_store(where, index.store, build, index.next_id)
                facts = index.requested, index.encoder
                index = QuestionIndex(index.vectors, store, *facts, documents=index.documents)
                self._write(where, index, build)

    def _rebuild(
        self,
        folder: pathlib.Path | None,
        questions: Iterable[StoredQuestion],
        log: Log,
        *,
        check: Check = accept,
    ) -> None:
        """Index questions in place of the present ones, in `folder` if there is one."""
        old, build, by = self.index, new_build(), self.index.documents
        encoder = old.questions_encoder(self.encoder)
        if folder is None:
            self.index = index_in_memory(
                *(questions, encoder.encode, old.requested, encoder.identity, old.next_id),
                documents=by,
                log=log,
                check=check,
            )
            return
        folder = folder.absolute()
        with new_files(folder, build):
            store = write_store(folder, questions, build, old.next_id, check)
            vectors = build_vectors(encoder.encode, store, old.requested, folder=folder)
            log_build(vectors, old.requested, log)
            facts = old.requested, encoder.identity
            self._write(folder, QuestionIndex(vectors, store, *facts, documents=by), build)

    def _write(self, folder: pathlib.Path, index: QuestionIndex, build: str) -> None:
        """Write the index to its folder, with its encoders beside it, and keep changes there."""
        if self.second_stages.models:
            index.keep_statistics()
        # Where this retriever came from, another may have put a newer re-ranker.
        replace = folder != self._lock.folder
        name = self.second_stages.save(folder.parent, build, replace=replace)
        index.documents = save_documents(folder.parent, index.documents)
        write_index(folder, index, build, name, self.encoder.identity)
        self.index, self._build = index, build
        self._lock.folder = folder

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold off other changes, `add` and `remove` too, on top of those of other processes."""
        with self._lock.hold():
            if self._lock.folder:
                self._catch_up(self._lock.folder)
            yield

    def _catch_up(self, folder: pathlib.Path) -> None:
        if not self._clean:
            remove_leftovers(folder)
            self._clean = True
        found, ours = read_manifest(folder), (self._build, self.index.encoder)
        accepted = accepted_identities(self.encoder)
        same = (found["build"], found["encoder"]) == ours and query_encoder(found) in accepted
        if same and not self.index.stale:
            self.index.catch_up()
        else:
            self.index, self._build = read_index(folder, encoder=accepted)
