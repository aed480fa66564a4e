"""The first hits of queries that nobody labeled, as a folder of pairs to review."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from qpr_jax.data.tables import Table
from qpr_jax.duplicates.output import INFO, Pair, write_tables
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, write_json
from qpr_jax.pair_model.hits import text_of
from qpr_jax.results import TableColumns
from qpr_jax.retriever import Retriever


def write_first_hits(
    folder: StrPath, retriever: Retriever, queries: Table, count: int, *, seed: int = 0
) -> None:
    """Search for a random sample of queries, and write each with its first hit, as `pairs.csv`.

    `id1` is the line of the query, `id2` the id of the hit; the payload of the hit has columns of
    its own. UserError if there are no queries.
    """
    line_of = {entry.question: entry.line for entry in reversed(queries.entries)}
    texts = [*line_of]
    if not texts:
        raise UserError(f"{queries.where.removesuffix(', line')}: expected queries, got none")
    chosen = np.random.default_rng(seed).permutation(len(texts))[:count]
    texts = sorted((texts[i] for i in chosen.tolist()), key=line_of.__getitem__)
    hits = [found[0] for found in retriever.search(texts, k=1)]
    names = dict.fromkeys(name for hit in hits for name in hit.payload or ())
    payload = [name for name in names if name not in Pair._fields]
    columns: dict[str, list[Any]] = {
        "id1": [line_of[text] for text in texts],
        "id2": [hit.id for hit in hits],
        "score": [hit.score for hit in hits],
        "distance": [max(0.0, hit.distance) for hit in hits],
        "question1": texts,
        "question2": [*map(text_of, hits)],
    }
    columns |= {name: [(hit.payload or {}).get(name) for hit in hits] for name in payload}
    write_tables(pathlib.Path(folder), {"pairs": TableColumns(columns, columns)}, "csv")
    info = {"first_hits": True, "encoder": retriever.encoder_name, "queries": len(line_of)}
    info |= {"sample": len(texts), "id_column": "id2", "payload": payload, "files": ["pairs.csv"]}
    write_json(pathlib.Path(folder, INFO), info)
