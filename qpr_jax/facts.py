"""What `qpr info` says of an index, of a folder or of Milvus."""

from __future__ import annotations

import dataclasses
from typing import Any

from qpr_jax.index.build import verify_build
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.milvus import MilvusStore
from qpr_jax.retriever import Retriever


def index_facts(named: str) -> dict[str, Any]:
    """Return the facts of the index of a folder or an address; UserError if a file is damaged."""
    retriever = Retriever.load(named, indexed=True)
    store, encoder = retriever.store, retriever.encoder
    facts = {"questions": len(store), **dataclasses.asdict(store.recipe)}
    if isinstance(store, FolderStore):
        facts |= _folder_facts(store)
    elif isinstance(store, MilvusStore):
        facts |= store.facts()
    return {
        **facts,
        "dimension": encoder.dimension,
        "vocabulary": encoder.summary().vocabulary_size,
        "encoder": encoder.identity,
        "extends": list(encoder.extends),
        "rerankers": retriever.stages.facts(),
        "calibration": retriever.stages.calibration_facts(),
        "integrity_check": "ok",
    }


def _folder_facts(store: FolderStore) -> dict[str, Any]:
    verify_build(store.path)
    sizes = [file.stat().st_size for file in store.path.iterdir() if file.is_file()]
    return {
        "store": "folder",
        "built_as": store.factory,
        "recall@10": round(store.recall, 4),
        "removed": len(store.vectors) - len(store),
        "added": store.vectors.added,
        "index_bytes": sum(sizes),
    }
