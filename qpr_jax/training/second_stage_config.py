"""The settings of second stages: the re-ranker of a run, and a cross-encoder."""

from __future__ import annotations

from dataclasses import dataclass

from qpr_jax.training.declaration import setting


@dataclass(slots=True, kw_only=True)
class RerankConfig:
    """The second stage of a search, trained after the index."""

    kind: str = setting(
        "none",
        "none, or light: a small network over features of query and hit",
        choices=("none", "light"),
    )
    candidates: int = setting(50, "first-stage hits that the re-ranker reorders", min=2, max=1000)
    cross_encoder: str = setting(
        "",
        "folder of a cross-encoder: a second re-ranker is trained, with its logit as a feature",
        result=False,
    )


@dataclass(slots=True, kw_only=True)
class CrossEncoderConfig:
    """The pairs and the scores of `job=cross_encoder`."""

    first_stage: str = setting(
        "minilm",
        "encoder that finds the hits: a run, a folder or a name",
        result=False,
    )
    pairs: int = setting(400_000, "number of training pairs", min=1)
    negatives: int = setting(3, "negatives for each positive pair", min=0)
    hits: int = setting(
        20,
        "nearest hits of a query: negatives are drawn from them; in evaluations they are reordered",
        min=1,
    )
    queries: int = setting(
        400, "validation queries of each evaluation except the last, which uses all", min=1
    )
    evaluations: int = setting(5, "number of evaluations during the training", min=1)
