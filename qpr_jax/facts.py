"""What `qpr info` says of an index, of a folder or of Milvus, by the same names."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from qpr_jax.index.folder import verify_index
from qpr_jax.milvus_retriever import MilvusRetriever
from qpr_jax.reranking.second_stage import SecondStages
from qpr_jax.retriever import Retriever


def index_facts(named: str) -> dict[str, Any]:
    """The facts of the index of a folder or an address; UserError where a file is damaged."""
    retriever = Retriever.load(named, indexed=True)
    index, encoder, stages = retriever.index, retriever.encoder, retriever.second_stages
    if isinstance(retriever, MilvusRetriever):
        own = _milvus_facts(retriever)
    else:
        own = _folder_facts(named, retriever)
    if index.documents is not None:
        index.questions_encoder(encoder)  # which is read, and so checked
        stages = SecondStages(encoder, {})  # what is there is of distances of one encoder
    rerankers = stages.facts()
    if not own["lexical"]:
        rerankers = {name: facts | {"lexical_candidates": 0} for name, facts in rerankers.items()}
    return {
        **{"questions": len(retriever), "removed": own["removed"], "added": own["added"]},
        **dataclasses.asdict(index.recipe),
        "recall@10": None if own["recall"] is None else round(own["recall"], 4),
        "dimension": encoder.dimension,
        "vocabulary": encoder.summary().vocabulary_size,
        "encoder": encoder.identity,
        "documents_by": index.documents and index.documents.identity,
        "extends": list(encoder.extends),
        "rerankers": rerankers,
        "calibration": stages.calibration_facts(),
        "store": own["store"],
        "consistency": own["consistency"],
        "index_bytes": own["bytes"],
        "integrity_check": "ok",
    }


def _folder_facts(folder: str, retriever: Retriever) -> dict[str, Any]:
    path, index = pathlib.Path(folder, "index"), retriever.index
    verify_index(path)
    index.store.check_integrity()
    removed, added = index.store.counts()
    return {
        **{"removed": removed, "added": added, "recall": index.vectors.recall, "lexical": True},
        "store": "folder",
        "consistency": "session",  # a server reads the changes of others when it makes one
        "bytes": sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
    }


def _milvus_facts(retriever: MilvusRetriever) -> dict[str, Any]:
    """Of files that were verified when they were fetched; Milvus says no bytes."""
    index = retriever.collection
    left = index.count_where(f"qpr_row < {index.count}")
    return {
        **{"removed": index.count - left, "added": len(retriever) - left, "recall": index.recall},
        **{"lexical": False, "store": "milvus", "consistency": index.consistency, "bytes": None},
    }
