"""`find_duplicates`: all duplicates of a table in one call."""

from __future__ import annotations

import array
import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qpr_jax.data.columns import is_table
from qpr_jax.data.decoding import format_of
from qpr_jax.data.questions import NO_COLUMNS, Source, as_entries
from qpr_jax.duplicates.groups import (
    LINKAGES,
    Linkage,
    RowGroup,
    column_of,
    group_pairs,
    group_rows,
)
from qpr_jax.duplicates.result import Duplicates
from qpr_jax.duplicates.rows import (
    Rows,
    encode_entries,
    leave_out_known,
    make_rows,
    require_column,
    table_vectors,
)
from qpr_jax.duplicates.scores import Choice, Scores, choose, find_pairs
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.default import default_folder
from qpr_jax.encoders.language import say_unknown_words
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, first_repeated, repeated_id
from qpr_jax.index.base import Question, as_questions
from qpr_jax.reranking.model import read_encoder_and_model, require_model
from qpr_jax.retriever import Retriever
from qpr_jax.text.cleaning import Cleaner

log = logging.getLogger("qpr_jax")


@dataclass(frozen=True)
class Options:
    """The arguments of `find_duplicates` that do not say what is read or which pairs count."""

    encoder: StrPath | Encoder | None = None
    incremental: StrPath | Retriever | None = None
    replace: bool = False
    block_on: str | None = None
    ignore_numbers: bool = False
    clean: bool = True
    groups: Linkage | None = None
    keep: str = "first"
    memory: int | None = None


def with_encoder(options: Options, table: Source, other: Source | None) -> Options:
    """Name the encoder for the rows, if neither the options nor an index do."""
    if options.encoder is not None or options.incremental is not None:
        return options
    texts = [entry[2] for source in (table, other) if source for entry in source.entries]
    return replace(options, encoder=default_folder(texts, len(texts)))


def search(
    table: Source, other: Source | None, choice: Choice, options: Options
) -> tuple[Duplicates, Callable[[], int]]:
    """Find the duplicates of a table, as `find_duplicates`; `other`: what `against` gives.

    Returns:
      What was found, and a function that adds the rows that the index lacks to it and returns how
      many these are; UserError where the index was changed during the search.
    """
    has_others = options.incremental is not None or other is not None
    linkage = options.groups or ("closure" if has_others else "complete")
    if linkage not in LINKAGES:
        what = f"expected one of {', '.join(LINKAGES)}, got {linkage!r}"
        raise UserError(what, setting="groups")
    column = column_of(options.keep)
    index = None
    if options.incremental is None:
        assert options.encoder is not None  # see `with_encoder`
        encoder, model = read_encoder_and_model(options.encoder)
    else:
        if other is not None or options.encoder is not None:
            given = "encoder" if other is None else "against"
            what = f"an index is compared by itself, got {given}, too"
            raise UserError(what, setting="incremental", remedy="leave one of them out")
        index = _as_retriever(options.incremental)
        encoder, model = index.encoder, index.pair_model
    if choice.threshold is not None:
        require_model(model)
    version = ""
    if index is not None:
        with index.store.changing():  # fails here, not after the search, if it cannot be written
            version = index.store.version
    rows = _read_rows(table, other, index, options)
    say_unknown_words(encoder, rows.entry_texts)
    if rows.table_rows and column:
        require_column(column, rows.fields, "keep")
    known = index.store.blocks() if index is not None and len(rows) else ()
    encode_all = index is not None or model is not None  # whose densities are of all
    cleaner = Cleaner() if index is None else index.store.cleaner
    vectors = encode_entries(rows, encoder, known, cleaner=cleaner, every=encode_all)
    scores = find_pairs(rows, vectors, model, choice, memory=options.memory)

    def group(scores: Scores) -> list[RowGroup]:
        joined = group_pairs(rows.numbers, scores.pairs.first, scores.pairs.second, linkage)
        return group_rows(rows, joined, vectors, options.keep)

    found = Duplicates(rows, scores, group, table if index is None else table._replace(own=None))
    return found, functools.partial(_add_new, index, version, rows, vectors)


def find_duplicates(
    questions: Any,
    ids: Iterable[Id] | None = None,
    payload: bool | Iterable[Any] = True,
    *,
    encoder: StrPath | Encoder | None = None,
    threshold: float | None = None,
    max_distance: float | None = None,
    against: Any = None,
    incremental: StrPath | Retriever | None = None,
    replace: bool = False,
    block_on: str | None = None,
    ignore_numbers: bool = False,
    clean: bool = True,
    groups: Linkage | None = None,
    keep: str = "first",
    memory: int | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    skip_bad_rows: bool = False,
) -> Duplicates:
    """Find the pairs of rows that mean the same, and the groups that they form.

    Pairs count from `threshold` on and up to `max_distance`; neither means a threshold of 0.5. Rows
    with one folded text (`text.folding`) are always duplicates, with score 1. The result does not
    depend on the order of the rows, except which of them is the first.

    Args:
      questions: as of `Retriever.build`, and so are `ids`, `payload`, `text_column`, `id_column`
        and `skip_bad_rows`.
      encoder: as of `Retriever.build`; None: that of `incremental`, else `minilm`, or
        `open_student` above 50,000 rows.
      threshold: the least score of a pair; None: 0.5, or any with `max_distance`.
      max_distance: the largest squared distance of the encoder; None: any.
      against: other questions, as `questions`; only pairs of one of each are found.
      incremental: the folder of an index, or its retriever. Rows that it lacks are compared with it
        and with each other, then added to it, so that the next call compares only what is new.
      replace: whether rows replace questions of the index that have their ids and other texts;
        otherwise such ids are an error.
      block_on: a column; only rows with the same value in it are compared, 1, 1.0 and "1" being the
        same. A row without a value is compared with nothing.
      ignore_numbers: whether texts that differ only in numbers are copies. If not, texts with
        other numbers, or in another order, are never duplicates.
      clean: whether to compare texts without HTML and without sentences that many rows share.
      groups: "complete" or "closure" (`duplicates.groups`); None: complete, or closure with
        `against` or `incremental`, where not all pairs of a group are compared.
      keep: the row of a group that stays: "first", "longest", "central" (nearest to the mean), or
        "max:COLUMN", the greatest of a column. A row of `against` or of the index comes before.
      memory: bytes for the pairs; None: half of what the machine has left.

    Raises:
      UserError: an argument or a row is wrong, or the pairs would take more than `memory`.
    """
    choice = choose(threshold, max_distance)
    columns, chosen = (text_column, id_column, skip_bad_rows), [NO_COLUMNS]
    rows = [*as_entries(questions, ids, payload, *columns, say=lambda c, _: chosen.append(c))]
    own = questions if is_table(questions) else None
    if isinstance(questions, str | os.PathLike):
        own = format_of(questions), [os.fspath(questions)]
    table, other = Source(rows, "`questions`, position", chosen[-1], own), None
    if against is not None:
        entries = [*as_entries(against, None, payload, *columns, name="against")]
        other = Source(entries, "`against`, position")
    options = Options(
        encoder, incremental, replace, block_on, ignore_numbers, clean, groups, keep, memory
    )
    found, add_new = search(table, other, choice, with_encoder(options, table, other))
    add_new()
    return found


def _as_retriever(index: StrPath | Retriever) -> Retriever:
    return index if isinstance(index, Retriever) else Retriever.load(index, indexed=True)


def _read_rows(
    table: Source, other: Source | None, index: Retriever | None, options: Options
) -> Rows:
    """The rows of a table, and of what it is compared with.

    With an index, the rows of the table are those that the index lacks.
    """
    others = [] if other is None else _read(other)[0]
    if index is None:
        rows, _ = _read(table)
    else:
        rows, has_ids = _read(table, index.store.new_ids)
        stored = [*index.store.questions()] if rows else []
        how = {"by_text": not has_ids, "replace": options.replace}
        rows, others = leave_out_known(rows, stored, options.block_on, **how)
    cleaner = None if index is None else index.store.cleaner
    return make_rows(
        rows,
        others if rows else [],
        block_on=options.block_on,
        apart=other is not None,
        ignore_numbers=options.ignore_numbers,
        cleaner=cleaner if options.clean else Cleaner(),
    )


def _add_new(index: Retriever | None, version: str, rows: Rows, entries: np.ndarray) -> int:
    """Add the rows of the table, with the vectors of their entries, to an index of this version."""
    if index is None or not rows.table_rows:
        return 0
    store, count = index.store, rows.table_rows
    vectors = table_vectors(rows, entries, index.encoder, store.cleaner)
    questions = rows.questions[:count]
    with store.changing():
        if store.version != version:
            what = "the index was changed during the search, so nothing was added"
            raise UserError(what, remedy="do the same again")
        replaced = sum(question is not None for question in store.get([q.id for q in questions]))
        store.add(questions, vectors)
    log.info("index: %s added, %s replaced", f"{count - replaced:,}", f"{replaced:,}")
    return count


def _read(
    source: Source, new_ids: Callable[[int], Sequence[Id]] | None = None
) -> tuple[list[Question], bool]:
    """Return the rows of a source, and whether they had ids. UserError if an id occurs twice.

    new_ids: gives ids to rows that have none; None: they are numbered.
    """
    lines, entries = array.array("q"), [*source.entries]
    rows = [*as_questions(entries, lines, source.where)] if entries else []
    has_ids = not entries or entries[0].id is not None
    if new_ids is not None and not has_ids:
        new = new_ids(len(rows))
        rows = [row._replace(id=i) for row, i in zip(rows, new, strict=True)]
    if (repeated := first_repeated(row.id for row in rows)) is not None:
        raise repeated_id(rows[repeated].id, lines[repeated], source.where)
    return rows, has_ids
