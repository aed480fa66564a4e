"""The settings of what orders hits anew: the re-ranker of a run, and a cross-encoder."""

from __future__ import annotations

from dataclasses import dataclass

from qpr_jax.training.declaration import setting


@dataclass(slots=True, kw_only=True)
class RerankConfig:
    """The second stage of a search, trained after the index."""

    kind: str = setting(
        "none", "none, or trees over features of query and hit", choices=("none", "light")
    )
    candidates: int = setting(50, "hits of the first stage that it orders", min=2, max=1000)
    lexical_candidates: int = setting(0, "hits of BM25 that it orders, too", min=0, max=1000)
    cross_encoder: str = setting(
        "", "folder of a cross-encoder, to train trees that read its logit, too", result=False
    )


@dataclass(slots=True, kw_only=True)
class CrossEncoderConfig:
    """The pairs and the scores of `job=cross_encoder`."""

    first_stage: str = setting(
        "minilm",
        "whose hits are the negatives and are ordered anew: a run, a folder or a name",
        result=False,
    )
    pairs: int = setting(400_000, "pairs of the whole training", min=1)
    negatives: int = setting(3, "hits of another meaning, for each pair of one meaning", min=0)
    hits: int = setting(
        20, "nearest questions that negatives are drawn from, and that are ordered anew", min=1
    )
    queries: int = setting(400, "validation queries of each evaluation; the last has all", min=1)
    evaluations: int = setting(5, "evaluations of the training", min=1)
