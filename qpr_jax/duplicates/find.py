"""`find_duplicates`: all duplicates of a table in one call."""

from __future__ import annotations

import array
import contextlib
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qpr_jax.data.questions import Entry, as_entries
from qpr_jax.duplicates.cells import require_column
from qpr_jax.duplicates.choice import Choice, choose
from qpr_jax.duplicates.groups import DEFAULT, Linkage, share_of
from qpr_jax.duplicates.keep import column_of
from qpr_jax.duplicates.old_vectors import fill_from_index
from qpr_jax.duplicates.result import Duplicates
from qpr_jax.duplicates.rows import ADDING, Rows, forget_rows, kept_rows, read_rows
from qpr_jax.duplicates.search import Found, Settings, search_duplicates
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.packaged import default_folder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_object, write_json
from qpr_jax.ids import Id, number_entries, repeated_id
from qpr_jax.index.base import Check, StoredQuestion
from qpr_jax.index.built_questions import accept
from qpr_jax.reranking.base import Rerank
from qpr_jax.reranking.opening import stages_of_questions
from qpr_jax.reranking.second_stage import SecondStages, read_stages
from qpr_jax.retriever import Retriever
from qpr_jax.text.base import as_texts

MEMORY = 2 << 30  # bytes, on top of what rows take
_ADDED = 16_384  # rows that are added to an index at once
_WEIGHED = 10_000  # texts that are indexed to explain a pair

Log = Callable[[str], object]


@dataclass(frozen=True)
class Source:
    """Rows of a table, and what a UserError says before their line, as `tickets.csv, line`."""

    entries: Iterable[Entry]
    where: str


@dataclass(frozen=True)
class Search:
    """A search for duplicates that is ready to read its rows.

    Attributes:
      run_folder: of the encoder.
      index: the retriever that new rows are compared with and added to; None without.
      within: the column of the blocks; None: one block.
    """

    encoder: Encoder
    stages: SecondStages
    settings: Settings
    run_folder: StrPath
    index: Retriever | None = None
    within: str | None = None

    def read(self, folder: pathlib.Path, table: Source, other: Source | None = None) -> Rows:
        """Write the rows to a folder; those of the index with them."""
        folder.mkdir(parents=True, exist_ok=True)
        is_first = kept_rows(folder) is None
        entries: Iterable[Entry] = table.entries
        others: Iterable[StoredQuestion] = ()
        check_others: Check = accept
        known_by: Literal["id", "text"] | None = None
        states = [""]
        if self.index is not None:
            first, entries = _peek(table.entries)
            by_text = first is not None and first.id is None
            known_by = "text" if by_text else "id"
            if by_text:
                entries = _numbered(entries, self.index.index.next_id)
            others = self.index.index.store
            states = [self.index.state]
            if self._count_added(folder) is not None:
                states.append(read_object(folder / ADDING)["state"])
        if other is not None:
            others, check_others = _check(other)
        questions, check = _check(Source(entries, table.where))
        rows = read_rows(
            *(folder, questions, others),
            check=check,
            check_others=check_others,
            within=self.within,
            apart=self.settings.compare == "across",
            known_by=known_by,
            states=states,
        )
        if rows.table_rows and (column := column_of(self.settings.keep)):
            if is_first and column not in rows.kinds:  # else vectors may be there, to be used again
                forget_rows(folder)
            require_column(column, rows.kinds, "keep")
        return rows

    def run(self, folder: pathlib.Path, rows: Rows) -> Found:
        """Search; a run that was killed goes on where it was in `folder`."""
        fill = None
        if self.index is not None:
            fill = functools.partial(fill_from_index, rows, self.index.index)
        return search_duplicates(rows, self.encoder, self.stages, self.settings, folder, fill)

    def add_new(self, folder: pathlib.Path, rows: Rows) -> int:
        """Add the rows that the index lacks to it; how many these are.

        UserError where another program changed the index after they were read.
        """
        if self.index is None:
            return 0
        new = rows.searched
        done = self._count_added(folder)
        if done is None:
            store, done = self.index.index.store, 0
            facts = {"state": self.index.state, "rows": store.rows, "sequence": store.sequence}
            write_json(folder / ADDING, facts)
        for start in range(done, len(new), _ADDED):
            ids, texts, payloads = rows.columns(new[start : start + _ADDED])
            self.index.add(texts, ids, payloads, state=self.index.state)
        return len(new)

    def _count_added(self, folder: pathlib.Path) -> int | None:
        """How many rows of a folder were added to the index by a run that was killed.

        None where no run came as far, or where the index was changed by others before all rows
        were there.
        """
        begun, rows = read_object(folder / ADDING), kept_rows(folder)
        if self.index is None or rows is None or not begun:
            return None
        store, new, first = self.index.index.store, rows.searched, begun["rows"]
        is_same = self.index.state.split()[0] == begun["state"].split()[0]
        # Each row that was added is one change; others may have removed rows, too.
        if not is_same or store.sequence - begun["sequence"] != store.rows - first:
            return None
        done = min(store.rows - first, len(new))
        for start in range(0, done, _ADDED):
            own = np.arange(start, min(start + _ADDED, done))
            if store.fields(first + own) != rows.fields(new[own]):
                return None
        return done

    def explainer(self, rows: Rows) -> Retriever:
        """A retriever whose word weights are those of the rows, or of some of many."""
        if self.index is not None:
            return Retriever(self.encoder, self.index.index, second_stages=self.stages)
        step = -(-len(rows.first) // _WEIGHED)
        texts = rows.texts_of(np.arange(0, len(rows.first), max(1, step)))
        return Retriever.build(texts, run=self.run_folder)


def open_search(
    *,
    choice: Choice,
    run: StrPath | None = None,
    across: bool = False,
    incremental: StrPath | None = None,
    within: str | None = None,
    groups: Linkage | None = None,
    keep: str = "first",
    rerank: Rerank = None,
    memory: int = MEMORY,
) -> Search:
    """Check the arguments of `find_duplicates` and load the encoder; `across`: with `against`."""
    column_of(keep)
    if groups is not None:
        share_of(groups)
    if across and incremental is not None:
        raise UserError(
            "expected `against` or `incremental`, got both",
            remedy="compare with one of them, then with the other",
        )
    index = None
    if incremental is not None:
        if run is not None:
            raise UserError(
                "expected no run with an index, which has its own encoder",
                setting="run",
                remedy="leave {run} out",
            )
        if not pathlib.Path(incremental, "index").is_dir():
            raise UserError(
                f"expected the folder of an index, found none at {incremental}",
                setting="incremental",
                remedy="make one with `qpr index`",
            )
        source = incremental
        index = Retriever.load(incremental, indexed=True)
        # All is compared by the encoder of the questions, and its distances alone.
        own = stages_of_questions(index.index)
        encoder, stages = own or (index.encoder, index.second_stages)
    else:
        source = run or default_folder()
        encoder, stages = read_stages(source)
    if choice.by_probability:
        stages.require_calibration()
    partial = across or index is not None
    settings = Settings(
        choice,
        groups or ("closure" if partial else DEFAULT),
        keep,
        rerank,
        memory,
        "across" if across else "new" if index is not None else "all",
    )
    return Search(encoder, stages, settings, source, index, within)


def find_duplicates(
    questions: Any,
    ids: Iterable[Id] | None = None,
    payload: bool | Iterable[Any] = True,
    *,
    run: StrPath | None = None,
    threshold: float | None = None,
    max_distance: float | None = None,
    precision: float | None = None,
    pairs: int | None = None,
    against: Any = None,
    incremental: StrPath | None = None,
    within: str | None = None,
    groups: Linkage | None = None,
    keep: str = "first",
    rerank: Rerank = None,
    memory: int = MEMORY,
    folder: StrPath | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    skip_bad_rows: bool = False,
    log: Log = lambda line: None,
) -> Duplicates:
    """Find the pairs of rows that mean the same, and the groups that they form.

    One of `threshold`, `max_distance`, `precision` and `pairs` says which pairs count; none means
    a threshold of 0.5. Rows with equal texts are duplicates always, and texts that differ in case,
    blanks and final mark only have probability 1. The result depends on no order
    of the rows, except which of them is the first.

    Args:
      questions: as of `Retriever.build`, and so are `ids`, `payload`, `text_column`, `id_column`
        and `skip_bad_rows`.
      run: the encoder, as of `Retriever.load`; None: that of `incremental`, or `open_student`.
      threshold: the least probability that a pair of the run's corpus means the same.
      max_distance: the largest squared distance of the encoder.
      precision: the lowest threshold at which the mean probability of the pairs is at least this.
      pairs: the number of closest pairs of different texts.
      against: other questions, as `questions`; only pairs of one of each are found.
      incremental: the folder of an index. Rows that it lacks are compared with it and with each
        other, then added to it, so that the next call compares only what is new.
      within: a column; only rows with the same value in it are compared, 1, 1.0 and "1" being the
        same. A row without a value is compared with nothing.
      groups: "complete", "bridges" or "closure" (`duplicates.groups`); None: complete, or closure
        with `against` or `incremental`, where not all pairs of a group are compared.
      keep: the row of a group that stays: "first", "longest", "central" (nearest to the mean), or
        "max:COLUMN", the greatest of a column. A row of `against` or of the index comes before.
      rerank: False: probabilities of distances alone. "light": those of the run's light re-ranker,
        which None means, too, where probabilities choose and the run has one.
      memory: bytes to use on top of about 150 for each row, and of the result.
      folder: for temporary files, with which a call that was killed goes on; None: a new one.
      log: gets a line about what was found.
    """
    across = against is not None
    search = open_search(
        run=run,
        choice=choose(threshold, max_distance, precision, pairs),
        across=across,
        incremental=incremental,
        within=within,
        groups=groups,
        keep=keep,
        rerank=rerank,
        memory=memory,
    )
    payload = _with_needed(payload, within, keep)
    columns = (text_column, id_column, skip_bad_rows)
    table = Source(as_entries(questions, ids, payload, *columns), "`questions`, position")
    other = None
    if across:
        entries = as_entries(against, None, payload, *columns, name="against")
        other = Source(entries, "`against`, position")
    with contextlib.ExitStack() as stack:
        if folder is None:
            where = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            where = pathlib.Path(folder)
        rows = search.read(where, table, other)
        found = Duplicates(search.run(where, rows), search.explainer)
        search.add_new(where, rows)
        if incremental is not None:
            forget_rows(where)
    log(repr(found).partition("\n")[0].strip("<>"))
    return found


def needed_columns(within: str | None, keep: str) -> list[str]:
    """The columns that the blocks and the rule read."""
    return [*filter(None, (within, column_of(keep)))]


def _with_needed(payload: Any, within: str | None, keep: str) -> Any:
    """The columns to keep, with those that are needed."""
    needed = needed_columns(within, keep)
    if payload is True or not needed:
        return payload
    if isinstance(payload, bool | None):
        return needed
    given = [payload] if isinstance(payload, str) else [*payload]
    plain = all(isinstance(name, str) for name in given)
    return [*given, *needed] if plain else given


def _check(source: Source) -> tuple[Iterator[StoredQuestion], Check]:
    """The questions of a source, and the check of their ids; none at all are right, too."""
    lines = array.array("q")

    def questions() -> Iterator[StoredQuestion]:
        for value, question, payload in number_entries(source.entries, lines, source.where):
            (text,) = as_texts([question], f"{source.where} {lines[-1]}")
            yield StoredQuestion(value, text, payload)

    def check(count: int, repeated: tuple[int, Id] | None) -> None:
        if repeated is not None:
            raise repeated_id(repeated[1], lines[repeated[0]], source.where)

    return questions(), check


def _peek(entries: Iterable[Entry]) -> tuple[Entry | None, Iterable[Entry]]:
    """The first entry, None if there is none, and all of them."""
    rest = iter(entries)
    start = [*itertools.islice(rest, 1)]
    return (start[0] if start else None), itertools.chain(start, rest)


def _numbered(entries: Iterable[Entry], first: int) -> Iterator[Entry]:
    """Entries without ids, with numbers from `first` on."""
    return (entry._replace(id=first + i) for i, entry in enumerate(entries))
