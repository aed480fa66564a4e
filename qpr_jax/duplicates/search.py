"""Find duplicates: the distinct texts of a table, their vectors, near pairs and their scores."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from qpr_jax.data.columns import one_column
from qpr_jax.data.entries import Id, first_repeated
from qpr_jax.data.tables import Table, as_table
from qpr_jax.duplicates.groups import row_order
from qpr_jax.duplicates.pairs import THRESHOLD, Pairs
from qpr_jax.duplicates.rows import (
    Linkage,
    Rows,
    check_bound,
    check_linkage,
    column_of,
    encode_entries,
    leave_out_indexed,
    make_rows,
)
from qpr_jax.duplicates.sampling import apply_labels
from qpr_jax.encoders.encoder import Encoder, say_unknown_words
from qpr_jax.encoders.load import default_folder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index import close_pairs as close
from qpr_jax.index.protocol import Question, as_questions
from qpr_jax.locations import FittedModel, read_encoder_and_model
from qpr_jax.pair_model.plain import logit_of, neighbor_distances, probability
from qpr_jax.retriever import Retriever
from qpr_jax.running import progress
from qpr_jax.text.cleaning import Cleaner

LOWEST = 0.3  # pairs are looked for from this score on, so that a threshold can be lowered to it
_BLOCK = 1 << 17  # pairs whose texts are compared at once
_NEAR = 1e-9  # how much of a strength the distance is: it orders pairs of equal score


def find_duplicates(
    questions: Any,
    ids: Iterable[Id] | None = None,
    payload: bool | Iterable[Any] = True,
    *,
    encoder: StrPath | Encoder | None = None,
    threshold: float | None = None,
    max_distance: float | None = None,
    against: Any = None,
    replace: bool = False,
    block_on: str | None = None,
    ignore_numbers: bool = False,
    clean: bool = True,
    groups: Linkage | None = None,
    keep: str = "first",
    labels: StrPath | None = None,
    memory: int | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    skip_bad_rows: bool = False,
) -> Pairs:
    """Find the pairs of rows that mean the same, and the groups that they form.

    Pairs count from `threshold` on and up to `max_distance`; neither means a threshold of 0.5. Rows
    with one folded text (`text.cleaning`) are always duplicates, with score 1. The result does not
    depend on the order of the rows, except which of them is the first.

    Args:
      questions: as of `Retriever.build`, and so are `ids`, `payload`, `text_column`, `id_column`
        and `skip_bad_rows`.
      encoder: as of `Retriever.build`; None: `minilm`, or `open_student` above 50,000 rows.
      threshold: the least score of a pair; None: 0.5, or any with `max_distance`.
      max_distance: the largest squared distance of the encoder; None: any.
      against: other questions, as `questions`; only pairs of one of each are found. Or a
        `Retriever`: rows that its index lacks are compared with it and with each other, by its
        encoder; `Retriever.add_new` then adds them.
      replace: whether rows stand for questions of the index that have their ids and other texts;
        otherwise such ids are an error.
      block_on: a column; only rows with the same value in it are compared, 1, 1.0 and "1" being the
        same. A row without a value is compared with nothing.
      ignore_numbers: whether texts that differ only in numbers are copies. If not, texts with
        other numbers, or in another order, are never duplicates.
      clean: whether to compare texts without HTML and without sentences that many rows share.
      groups: "complete" or "closure" (`duplicates.groups`); None: complete, or closure with
        `against`, where not all pairs of a group are compared.
      keep: the row of a group that stays: "first", "longest", "central" (nearest to the mean), or
        "max:COLUMN", the greatest of a column of numbers of one unit, of instants or of versions.
        A row of `against` comes before.
      labels: a file of labeled pairs, as of `qpr review`: pairs labeled 0 are left out, and those
        labeled 1 have the score 1.
      memory: bytes for the pairs; None: half of what the machine has left.

    Raises:
      UserError: an argument or a row is wrong, or the pairs would take more than `memory`.
    """
    columns = (payload, text_column, id_column, skip_bad_rows)
    like = against.store.index_config.columns if isinstance(against, Retriever) else None
    if against is not None and not isinstance(against, Retriever):
        against = as_table(against, None, *columns, name="against")
    return find_pairs(
        as_table(questions, ids, *columns, like=like),
        against,
        encoder=encoder,
        threshold=threshold,
        max_distance=max_distance,
        replace=replace,
        block_on=block_on,
        ignore_numbers=ignore_numbers,
        clean=clean,
        groups=groups,
        keep=keep,
        labels=labels,
        memory=memory,
    )


def find_pairs(
    table: Table,
    against: Table | Retriever | None,
    *,
    encoder: StrPath | Encoder | None = None,
    threshold: float | None = None,
    max_distance: float | None = None,
    groups: Linkage | None = None,
    keep: str = "first",
    labels: StrPath | None = None,
    memory: int | None = None,
    **of_rows: Any,
) -> Pairs:
    """Find the duplicates of a table that was read; arguments as of `find_duplicates`.

    of_rows: `replace`, `block_on`, `ignore_numbers` and `clean`.
    """
    for source in (table, against):
        one_column(["", *source.named.more] if isinstance(source, Table) else None)
    threshold = check_bound("threshold", threshold)
    max_distance = check_bound("max_distance", max_distance)
    if threshold is None and max_distance is None:
        threshold = THRESHOLD
    linkage = check_linkage(groups or ("complete" if against is None else "closure"))
    column, index = column_of(keep), against if isinstance(against, Retriever) else None
    found, model = _read_encoder(table, against, encoder)
    version = "" if index is None else index.store.version
    rows = _read_rows(table, against, **of_rows)
    say_unknown_words(found, rows.entry_texts)
    if column:
        row_order(keep, rows)
    indexed = index.store.blocks() if index is not None and len(rows) else ()
    cleaner = Cleaner() if index is None else index.store.cleaner
    vectors = encode_entries(rows, found, indexed, cleaner=cleaner)
    least = None if threshold is None else min(threshold, LOWEST)
    near, scores = _score_near(rows, vectors, model, least, max_distance, memory)
    pairs = near.pairs
    if labels is not None:
        pairs, scores = apply_labels(labels, rows, vectors, pairs, scores)
    order = _strongest_first(pairs, scores)
    first, second, distances = pairs.where(order)
    table.typed = index is None  # else some of its rows are left out
    return Pairs(
        rows=rows,
        table=table,
        vectors=vectors,
        model=model,
        first=first,
        second=second,
        scores=scores[order],
        distances=distances,
        least=least,
        farthest=max_distance,
        missed=None if near.exact else near.missed,
        threshold=threshold,
        max_distance=max_distance,
        linkage=linkage,
        rule=keep,
        version=version,
        labels=None if labels is None else str(labels),
    )


def default_encoder_of(table: Table, other: Table | None) -> str:
    """Return the folder of the default encoder for the rows of one or two tables."""
    texts = [entry.question for source in (table, other) if source for entry in source.entries]
    return str(default_folder(texts, len(texts)))


def _read_encoder(
    table: Table, against: Table | Retriever | None, encoder: StrPath | Encoder | None
) -> tuple[Encoder, FittedModel]:
    if not isinstance(against, Retriever):
        return read_encoder_and_model(encoder or default_encoder_of(table, against))
    if encoder is not None:
        what = "expected none, since an index is compared by its own, got one"
        raise UserError(what, setting="encoder", remedy="leave it out")
    return against.encoder, against.pair_model


def _read_rows(
    table: Table,
    against: Table | Retriever | None,
    *,
    replace: bool = False,
    block_on: str | None = None,
    ignore_numbers: bool = False,
    clean: bool = True,
) -> Rows:
    """Return the rows of a table, those that an index lacks, and what they are compared with."""
    others: list[Question] = []
    cleaner = None if clean else Cleaner()
    if isinstance(against, Retriever):
        cleaner = cleaner or against.store.cleaner
        rows, has_ids = _read(table, against.store.new_ids)
        stored = [*against.store.questions()] if rows else []
        rows, others = leave_out_indexed(
            rows, stored, block_on, by_text=not has_ids, replace=replace
        )
    else:
        rows, _ = _read(table)
        others = [] if against is None else _read(against)[0]
    return make_rows(
        rows,
        others if rows else [],
        block_on=block_on,
        apart=isinstance(against, Table),
        ignore_numbers=ignore_numbers,
        cleaner=cleaner,
    )


def _read(
    source: Table, new_ids: Callable[[int], Sequence[Id]] | None = None
) -> tuple[list[Question], bool]:
    """Return the rows of a source, and whether they had ids. UserError if an id occurs twice.

    new_ids: gives ids to rows that have none; None: they are numbered.
    """
    lines, entries = array.array("q"), [*source.entries]
    rows = [*as_questions(entries, lines, source.place)] if entries else []
    has_ids = not entries or entries[0].id is not None
    if new_ids is not None and not has_ids:
        new = new_ids(len(rows))
        rows = [row._replace(id=i) for row, i in zip(rows, new, strict=True)]
    if (repeated := first_repeated(row.id for row in rows)) is not None:
        raise source.repeated(rows[repeated].id, repeated, lines[repeated])
    return rows, has_ids


def _score_near(
    rows: Rows,
    vectors: np.ndarray,
    model: FittedModel,
    least: float | None,
    max_distance: float | None,
    memory: int | None,
) -> tuple[close.ClosePairs, np.ndarray]:
    """Find the pairs of entries with a least score, and their scores [P]."""
    spreads = model.spreads(neighbor_distances(vectors))
    limit, keep = np.inf if max_distance is None else max_distance, None
    codes, found = [np.zeros(0, np.int64)], [np.zeros(0)]  # of pairs with a score, and that
    if least is not None:
        logit = logit_of(least)
        limit = min(limit, model.reach(least, spreads))

        def keep(pairs: close.Pairs) -> np.ndarray:
            means = (spreads[pairs.first] + spreads[pairs.second]) / 2
            near = model.without_words(pairs.distances, means) >= logit
            part = pairs.where(near)
            scores = _score(rows, part, model, spreads)
            codes.append(part.first * len(vectors) + part.second)
            found.append(scores)
            near[near] = scores >= least
            return np.asarray(near)

    near = _search(rows, vectors, limit, keep, memory)
    pairs = near.pairs.where(rows.folded[near.pairs.first] != rows.folded[near.pairs.second])
    if least is not None:
        ordered, places = np.unique(np.concatenate(codes), return_index=True)
        at = np.searchsorted(ordered, pairs.first * len(vectors) + pairs.second)
        scores = np.concatenate(found)[places[at]]
    else:
        with progress("scoring"):
            scores = _score(rows, pairs, model, spreads)
    copies = _copies_across(rows)
    pairs = close.Pairs(*map(np.concatenate, zip(copies, pairs, strict=True)))
    return near._replace(pairs=pairs), np.append(np.ones(len(copies.first)), scores)


def _search(
    rows: Rows, vectors: np.ndarray, limit: float, keep: close.Keep | None, memory: int | None
) -> close.ClosePairs:
    """Find close pairs of entries that may be duplicates.

    Two texts with numbers are compared if these are the same. Where all are compared, texts of each
    key of numbers are a block, and texts without numbers are compared with the others.
    """
    options: dict[str, Any] = {"keep": keep, "memory": memory}
    if rows.compare != "all":
        found = close.close_pairs(
            vectors, limit, blocks=rows.names, is_new=rows.is_new, compare=rows.compare, **options
        )
        first, second, _ = found.pairs
        keys, bare = rows.numbers, rows.numbers == 0
        same = (keys[first] == keys[second]) | bare[first] | bare[second]
        return found._replace(pairs=found.pairs.where(same))
    alike = close.close_pairs(vectors, limit, blocks=rows.blocks, **options)
    if not rows.numbers.any():
        return alike
    mixed = close.close_pairs(
        vectors, limit, blocks=rows.names, is_new=rows.numbers > 0, compare="across", **options
    )
    pairs = close.Pairs(*map(np.concatenate, zip(alike.pairs, mixed.pairs, strict=True)))
    exact, missed = alike.exact and mixed.exact, max(alike.missed, mixed.missed)
    return close.ClosePairs(pairs, exact, missed)


def _score(rows: Rows, pairs: close.Pairs, model: FittedModel, spreads: np.ndarray) -> np.ndarray:
    """Compute the scores of pairs of entries, float64 [P]."""
    scores = np.empty(len(pairs.first))
    for start in range(0, len(scores), _BLOCK):
        part = pairs.where(slice(start, start + _BLOCK))
        order = np.argsort(part.first, kind="stable")  # so that a text is read once
        first, second, distances = part.where(order)
        one, other = ([rows.entry_texts[i] for i in ends.tolist()] for ends in (first, second))
        means = (spreads[first] + spreads[second]) / 2
        scores[start + order] = probability(model.logits(one, other, distances, means))
    return scores


def _copies_across(rows: Rows) -> close.Pairs:
    """Return the pairs of an entry of a table and one of the other table with its text."""
    new, old = np.flatnonzero(rows.is_new), np.flatnonzero(~rows.is_new)
    _, one, other = np.intersect1d(rows.folded[new], rows.folded[old], return_indices=True)
    if not rows.apart:
        one = other = one[:0]
    return close.Pairs(new[one], old[other], np.zeros(len(one), np.float32))


def _strongest_first(pairs: close.Pairs, scores: np.ndarray) -> np.ndarray:
    """Order pairs by score, then by distance; of equal ones, the first entries come first."""
    distances = pairs.distances.astype(np.float64)
    nearness = _NEAR * distances / (1 + distances)
    return np.lexsort((pairs.second, pairs.first, nearness - scores))
