"""Open and create the store of a retriever: a folder, or a collection of Milvus."""

from __future__ import annotations

import array
import functools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.errors import UserError, short
from qpr_jax.files import MANIFEST, StrPath
from qpr_jax.ids import Id, check_id
from qpr_jax.index.base import Hit, Payload, Question, Store
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.milvus import MilvusStore
from qpr_jax.index.milvus_server import is_address
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.run import INDEX, export_name
from qpr_jax.reranking.model import FittedModel, save_pair_model
from qpr_jax.text.base import as_texts
from qpr_jax.text.folding import folded

Entries = Iterable[tuple[int, Id | None, str, Payload | None]]  # line, id, question, payload

_MOST_COMPARED = 16_384  # hits of a query among which distinct texts are looked for


def create_store(
    folder: StrPath | None,
    questions: Iterable[Question],
    recipe: Recipe,
    encoder: Encoder,
    model: FittedModel | None,
    encoder_name: str,
) -> Store:
    """Index questions in a folder, None for a temporary one, or in a collection of Milvus."""
    identity = encoder.identity
    if is_address(folder):
        if not encoder_name:
            what = "expected an encoder of a folder, got one from Python, which other machines lack"
            raise UserError(what, remedy="save it in a folder first")
        to = str(folder), questions, encoder.encode, recipe, identity
        return MilvusStore.create(*to, encoder_name)
    path: pathlib.Path | None = None
    how: dict[str, Any] = {"encoder": identity, "dimension": encoder.dimension}
    if folder is not None:
        path = pathlib.Path(folder, INDEX)
        if path.parent.name == INDEX and (path.parent / MANIFEST).exists():
            what = f"expected the folder of a run or of an index, got a part of it, {folder}"
            raise UserError(what, remedy=f"name {path.parent.parent}")
        how["export"] = functools.partial(export, path.parent, encoder, model)
    return FolderStore.create(path, questions, encoder.encode, recipe, **how)


def export(folder: pathlib.Path, encoder: Encoder, model: FittedModel | None, build: str) -> str:
    """Write an encoder and its model of pairs beside an index; return the name of their folder."""
    name = export_name(folder, encoder, build)
    save_encoder(folder / name, encoder)
    save_pair_model(folder / name, model)
    return name


def search_texts(
    store: Store, texts: Sequence[str], vectors: np.ndarray, k: int, *, distinct: bool = False
) -> list[list[Hit]]:
    """Find the `k` nearest questions of texts, their copies first; none of a blank text."""
    results = (search_distinct if distinct else _search_ties)(store, vectors, k)
    found = zip(texts, results, strict=True)
    return [copies_first(text, hits)[:k] if text.strip() else [] for text, hits in found]


def _search_ties(store: Store, vectors: np.ndarray, k: int) -> list[list[Hit]]:
    """As `Store.search`, but with all hits that are as near as the first one, up to 16,384.

    Texts of one vector are no copies, and one of them may be the query.
    """
    size = k + 1
    results = store.search(vectors, size)
    short = _all_equal(results, size)
    while len(short) and size < _MOST_COMPARED:
        size = min(4 * size, _MOST_COMPARED)
        found = store.search(vectors[short], size)
        for row, hits in zip(short.tolist(), found, strict=True):
            results[row] = hits
        short = short[_all_equal(found, size)]
    return results


def _all_equal(results: list[list[Hit]], size: int) -> np.ndarray:
    full = [len(hits) == size and hits[0].distance == hits[-1].distance for hits in results]
    return np.flatnonzero(full)


def copies_first(query: str, hits: list[Hit]) -> list[Hit]:
    """Put the text of a query itself first, then its copies; the others keep their order."""
    folded_query = folded(query)
    return sorted(
        hits, key=lambda hit: (hit.question != query, folded(hit.question) != folded_query)
    )


def search_distinct(store: Store, vectors: np.ndarray, k: int) -> list[list[Hit]]:
    """As `Store.search`, but of hits that are copies keep the first.

    Queries with fewer than `k` such hits are searched for more hits, up to 16,384.
    """
    results: list[list[Hit]] = [[] for _ in vectors]
    short, size = np.arange(len(vectors)), k
    while len(short):
        size = min(2 * size, max(k, _MOST_COMPARED))
        left = []
        for row, found in zip(short, store.search(vectors[short], size), strict=True):
            distinct: dict[str, Hit] = {}
            for hit in found:
                distinct.setdefault(folded(hit.question), hit)
            results[row] = [*distinct.values()][:k]
            if len(distinct) < k and len(found) == size < _MOST_COMPARED:
                left.append(row)
        short = np.array(left, np.int64)
    return results


def require_ids(store: Store, ids: Sequence[Id]) -> None:
    """UserError unless all ids are those of questions."""
    found = zip(ids, store.get(ids), strict=True)
    if missing := [value for value, question in found if question is None]:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        what = f"`ids`: expected ids of indexed questions, got {short(missing[0])}"
        raise UserError(f"{what}{others} that no question has", remedy="leave them out")


def numbered(entries: Entries, lines: array.array[int], where: str) -> Iterator[Question]:
    """Check entries and append their lines to `lines`; all have an id, or none: then 0, 1, 2, ...

    UserError if there are none.
    where: start of a message, before the line: `tickets.csv, line`.
    """
    with_ids = False
    for number, (line, value, question, *rest) in enumerate(entries):
        with_ids = with_ids if number else value is not None
        if with_ids != (value is not None):
            kind = "an" if with_ids else "no"
            what = f"{where} {line}: expected {kind} id, as in the rows before"
            raise UserError(what, remedy="give one to every question, or read none with `--no-ids`")
        lines.append(line)
        given = number if value is None else check_id(value, f"in {where} {line}")
        (text,) = as_texts([question], f"{where} {line}")
        yield Question(given, text, rest[0] if rest else None)
    if not lines:
        raise UserError(f"{where.rpartition(',')[0]}: expected questions, got none")
