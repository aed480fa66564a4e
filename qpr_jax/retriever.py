"""What a user holds: a trained encoder and an index of questions, without JAX."""

from __future__ import annotations

import array
import contextlib
import operator
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import encoder_folder, is_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import check_ids, number_entries, refuse_repeated
from qpr_jax.index.base import Hit, StoredQuestion, stored_questions
from qpr_jax.index.folder import (
    new_build,
    new_files,
    read_index,
    read_manifest,
    remove_leftovers,
    write_index,
    write_store,
)
from qpr_jax.index.format4 import read_old_index
from qpr_jax.index.question_index import (
    QuestionIndex,
    build_index,
    build_vectors,
    index_in_memory,
    log_build,
)
from qpr_jax.index.recipe import Recipe, check_recipe
from qpr_jax.index.run import index_manifest, run_encoder, run_recipe
from qpr_jax.locks import WriteLock
from qpr_jax.reranking.base import Rerank
from qpr_jax.reranking.second_stage import SecondStages, read_stages
from qpr_jax.reranking.stage import Explanation
from qpr_jax.text.base import as_texts

__all__ = ["Hit", "Recipe", "Retriever", "run_encoder", "run_recipe", "upgrade_index"]

Log = Callable[[str], object]


class Retriever:
    """Finds the indexed questions that mean the same as a query.

    Any number of threads may search and encode while one changes the questions. A retriever that
    was loaded or saved keeps its folder up to date: a change is on disk when the call returns, and
    a kill at any point leaves the questions before it or after it.

        retriever = Retriever.load("runs/quora_sdml")
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
        self.encoder, self.index = encoder, index
        self.second_stages = second_stages or SecondStages(encoder, {})
        # A relative one would mean another after a change of the working directory.
        self._lock = WriteLock(folder.absolute() if folder else None)
        self._build = build
        self._clean = False  # whether leftovers in the folder were removed

    @classmethod
    def load(
        cls, run: StrPath, *, indexed: bool = False, cross_encoder: StrPath | None = None
    ) -> Retriever:
        """The encoder, its re-ranker and the index of a folder; UserError where one is damaged.

        Args:
          run: or, unless it must be `indexed`, what has an encoder alone, to which questions are
            added, in memory until it is saved: a folder that `qpr publish` made, the name of one
            in `$QPR_MODELS` or the cache, an address `hf://ORG/NAME` (see
            `encoders.load.encoder_folder`), `minilm`.
          indexed: whether there must be an index.
          cross_encoder: the folder of one, for `search` with `rerank="cross_encoder"`.
        """
        if not indexed:
            run = encoder_folder(run)
            if is_encoder(run) and not pathlib.Path(run, "index").exists():
                encoder, stages = read_stages(run, cross_encoder)
                return cls(encoder, _empty_index(encoder), second_stages=stages)
        folder = pathlib.Path(run, "index")
        while True:
            before = index_manifest(run)
            try:
                encoder, stages = read_stages(run, cross_encoder)
                if not folder.is_dir():
                    raise UserError(
                        f"{run} has no index/",
                        setting="run",
                        remedy="finish the run (the same command resumes it), or make an index "
                        "with `qpr index` or `Retriever.build`",
                    )
                index, build = read_index(folder, encoder=encoder.identity)
            except UserError:
                # Another process may have put the index of another encoder there.
                if index_manifest(run) == before:
                    raise
            else:
                return cls(encoder, index, folder, build, second_stages=stages)

    @classmethod
    def build(
        cls,
        questions: Sequence[str],
        ids: Sequence[int] | None = None,
        *,
        run: StrPath,
        cross_encoder: StrPath | None = None,
        recipe: Recipe | None = None,
        log: Log = lambda line: None,
    ) -> Retriever:
        """An index of one's own questions, in memory, with the encoder and re-rankers of `run`.

        Args:
          questions: one or more strings.
          ids: distinct, 0 to 2^63 - 1, one a question; 0, 1, 2, ... where None.
          run, cross_encoder: as of `load`; their files stay as they are.
          recipe: how to index; as the run says where None.
          log: gets a line that says what is built, and a warning where its recall is low.
        """
        encoder, stages = read_stages(run, cross_encoder)
        index = build_index(
            encoder.encode,
            as_texts(questions),
            ids,
            recipe=recipe or run_recipe(encoder),
            encoder=encoder.identity,
            log=log,
        )
        return cls(encoder, index, second_stages=stages)

    @classmethod
    def build_in(
        cls,
        folder: StrPath,
        entries: Iterable[tuple[int, int | None, str]],
        *,
        run: StrPath,
        cross_encoder: StrPath | None = None,
        recipe: Recipe | None = None,
        source: str = "questions",
        log: Log = lambda line: None,
    ) -> Retriever:
        """An index in `folder` of more questions than memory holds; see `build`.

        Args:
          folder: gets index/ and, where it has none, the encoder.
          entries: (line, id, question), as of `data.tables.read_questions`: either all with
            distinct ids, or all with None, for 0, 1, 2, ...
          run, cross_encoder, recipe, log: as of `build`.
          source: the name of the input, which a UserError names beside the line.
        """
        encoder, stages = read_stages(run, cross_encoder)
        recipe = recipe or run_recipe(encoder)
        check_recipe(recipe, encoder.dimension)
        where, lines = pathlib.Path(folder, "index"), array.array("q")

        def check(ids: np.ndarray) -> None:
            refuse_repeated(ids, lines, source)
            if not len(ids):
                raise UserError(f"{source}: expected questions to index, got none")

        questions = stored_questions(number_entries(entries, lines, source), lines, source)
        retriever = cls(encoder, _empty_index(encoder, recipe), second_stages=stages)
        with retriever._lock.hold(where):
            retriever._rebuild(where, questions, log, check=check)
        return retriever

    def search(
        self, queries: Sequence[str], k: int = 5, *, rerank: Rerank = None
    ) -> list[list[Hit]]:
        """Find the `k` best questions of each query, best first; all if there are fewer.

        rerank: the re-ranker of the first hits: "light" or "cross_encoder"; False: none, so that
          hits are sorted by distance; None: light, if there is one.
        """
        try:
            count = operator.index(k)
        except TypeError:
            raise UserError(f"`k`: expected a whole number, got {k!r}") from None
        if count < 1:
            raise UserError(f"`k`: expected 1 or more, got {k}")
        texts, index = as_texts(queries, "queries"), self.index
        stage = self.second_stages.stage(rerank, index)
        vectors = self.encoder.encode(texts)
        return stage.search(texts, vectors, count) if stage else index.find(vectors, count)

    def explain(
        self, text: str, other: str | None = None, *, id: int | None = None, rerank: Rerank = None
    ) -> Explanation:
        """What the stages of a search for `text` think of another text, or of a question by `id`.

        It is looked at among the hits of the search, as if it were one of them.
        """
        return self.second_stages.explain(rerank, self.index, text, other, id)

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
            numbers: list[int] = check_ids(ids, len(questions), self.index.next_id).tolist()
            if numbers:
                vectors = self.encoder.encode(questions)
                self.index.put([*map(StoredQuestion, numbers, questions)], vectors)
            return numbers

    def remove(self, ids: Iterable[int], *, ignore_missing: bool = False) -> int:
        """Remove the questions of these ids; UserError, and no change, where one is not there.

        ignore_missing: pass over those that are not there instead. Returns how many are removed.
        """
        given = list(ids)
        with self._changing():
            checked = check_ids(given, len(given), 0)
            missing = self.index.missing(checked)
            if ignore_missing:
                checked = np.setdiff1d(checked, missing)
            elif missing:
                others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
                raise UserError(
                    f"`ids`: expected ids of indexed questions, got {missing[0]}{others} that no "
                    "question has",
                    remedy="leave them out",
                )
            if len(checked):
                self.index.remove(checked)
            return len(checked)

    def compact(self, log: Log = lambda line: None) -> None:
        """Build the index again from its present questions, with lists and codes made for them.

        Takes as long as building; searches go on, other changes wait.
        """
        with self._changing():
            self._rebuild(self._lock.folder, self.index.store, log)

    def save(self, folder: StrPath) -> None:
        """Write `folder`/export and `folder`/index, which `Retriever.load(folder)` reads.

        Later changes are kept there.
        """
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
                index = QuestionIndex(index.vectors, store, index.requested, index.encoder)
                self._write(where, index, build)

    def _rebuild(
        self,
        folder: pathlib.Path | None,
        questions: Iterable[StoredQuestion],
        log: Log,
        *,
        check: Callable[[np.ndarray], object] = len,
    ) -> None:
        """Index questions in place of the present ones, in `folder` if there is one."""
        old, build = self.index, new_build()
        if folder is None:
            self.index = index_in_memory(
                questions, self.encoder.encode, old.requested, old.encoder, old.next_id, log
            )
            return
        folder = folder.absolute()
        with new_files(folder, build):
            store = write_store(folder, questions, build, old.next_id, check)
            vectors = build_vectors(self.encoder.encode, store, old.requested, folder=folder)
            log_build(vectors, old.requested, log)
            self._write(folder, QuestionIndex(vectors, store, old.requested, old.encoder), build)

    def _write(self, folder: pathlib.Path, index: QuestionIndex, build: str) -> None:
        """Write the index to its folder, with the encoder beside it, and keep changes there."""
        if self.second_stages.models:
            index.keep_statistics()
        # Where this retriever came from, another may have put a newer re-ranker.
        replace = folder != self._lock.folder
        name = self.second_stages.save(folder.parent, build, replace=replace)
        write_index(folder, index, build, name)
        self.index, self._build = index, build
        self._lock.folder = folder

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time, on top of what other processes have changed in the folder."""
        with self._lock.hold():
            if self._lock.folder:
                self._catch_up(self._lock.folder)
            yield

    def _catch_up(self, folder: pathlib.Path) -> None:
        if not self._clean:
            remove_leftovers(folder)
            self._clean = True
        if read_manifest(folder)["build"] == self._build and not self.index.stale:
            self.index.catch_up()
        else:
            self.index, self._build = read_index(folder, encoder=self.encoder.identity)


def upgrade_index(run: StrPath, log: Log = lambda line: None) -> bool:
    """Build the index of a folder again where it is of the format before; whether it was."""
    folder = pathlib.Path(run, "index")
    old = read_old_index(folder)
    if old is None:
        return False
    encoder, stages = read_stages(run)
    empty = index_in_memory([], encoder.encode, old.requested, encoder.identity, old.next_id)
    retriever = Retriever(encoder, empty, second_stages=stages)
    with retriever._lock.hold(folder):
        if (old := read_old_index(folder)) is not None:  # else another process was faster
            retriever._rebuild(folder, old.questions(), log)
    return True


def _empty_index(encoder: Encoder, recipe: Recipe | None = None) -> QuestionIndex:
    return index_in_memory([], encoder.encode, recipe or run_recipe(encoder), encoder.identity)
