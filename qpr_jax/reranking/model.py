"""The model of pairs of an encoder: its logit orders texts, and its sigmoid is their score.

There are three: *plain* (`reranking.plain`), *words* (`reranking.words`) and cross-encoders.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import load_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, manifest_format
from qpr_jax.index.base import Hit, Store
from qpr_jax.index.run import run_encoder_folder
from qpr_jax.index.vectors import pair_distances
from qpr_jax.reranking import plain, words
from qpr_jax.text.cleaning import Cleaner
from qpr_jax.text.folding import folded

# What orders hits: False: the distance; None: the model of pairs, if there is one.
Rerank = Literal[False, "cross_encoder"] | None
PAIR_MODEL = "pair_model"  # sub-folder of an encoder's folder


class PairModel(Protocol):
    """Scores pairs of texts; safe to use from several threads."""

    @property
    def depth(self) -> int:
        """How many hits of a search it orders at least."""

    def logits(
        self,
        first: Sequence[str],
        second: Sequence[str],
        distances: np.ndarray,
        spreads: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the logits of pairs of texts, float64 [m].

        Args:
          first, second: m texts each, as the encoder reads them.
          distances: of their vectors, squared, float [m].
          spreads: float [m], of pairs of a table (see `plain`); None: hits of a search.
        """


FittedModel = plain.PlainModel | words.WordsModel


def read_pair_model(folder: StrPath, encoder: Encoder) -> FittedModel | None:
    """Read that of an encoder's folder; None if there is none, UserError if it is of another."""
    path = pathlib.Path(folder, PAIR_MODEL)
    if not os.path.lexists(path):
        return None
    if manifest_format(path) == words.FORMAT:
        model: FittedModel = words.read_words(path, encoder)
    else:
        model = plain.read_plain(path)
    if model.encoder != encoder.identity:
        what = f"{path}: expected a model of pairs of the encoder {encoder.identity[:12]}, "
        what += f"got one of {model.encoder[:12]}"
        raise UserError(what, remedy="remove the folder, or put the one that belongs to it there")
    return model


def save_pair_model(folder: StrPath, model: FittedModel | None) -> None:
    """Write a model, if there is one, to the folder of its encoder."""
    path = pathlib.Path(folder, PAIR_MODEL)
    if isinstance(model, words.WordsModel):
        words.save_words(path, model)
    elif model:
        plain.save_plain(path, model)


def read_encoder_and_model(named: StrPath | Encoder) -> tuple[Encoder, FittedModel | None]:
    """Read an encoder, as `read_encoder` does, and its model of pairs.

    named: or an encoder itself, which has none.
    """
    if not isinstance(named, str | os.PathLike):
        return named, None
    folder = run_encoder_folder(named)
    encoder = load_encoder(folder)
    return encoder, read_pair_model(folder, encoder)


def save_encoder_and_model(encoder: Encoder, model: FittedModel | None, folder: StrPath) -> None:
    """Write an encoder to a folder, and its model of pairs, if there is one."""
    save_encoder(folder, encoder)
    save_pair_model(folder, model)


def require_model(model: FittedModel | None) -> FittedModel:
    """Return the model; UserError if there is none."""
    if model is None:
        what = "the encoder has no model of pairs, so its pairs have no scores"
        remedy = "give a `max_distance`, or fit scores to labels with `qpr calibrate`"
        raise UserError(what, remedy=remedy)
    return model


def choose_model(
    rerank: Rerank, known: PairModel | None, cross_encoder: PairModel | None
) -> PairModel | None:
    """Return the model that orders hits; None: the distance does. UserError if there is none."""
    if rerank is None:
        return known
    if rerank is False:
        return None
    if rerank != "cross_encoder":
        what = f"expected None, False or 'cross_encoder', got {rerank!r:.80}"
        raise UserError(what, setting="rerank")
    if cross_encoder is None:
        remedy = "name the folder of one by --cross-encoder or `cross_encoder`"
        raise UserError("expected a cross-encoder, found none", setting="rerank", remedy=remedy)
    return cross_encoder


def model_facts(model: FittedModel | None) -> dict[str, Any] | None:
    """Return what `qpr info` prints of a model."""
    if model is None:
        return None
    kind = "words" if isinstance(model, words.WordsModel) else "plain"
    return {"kind": kind, "depth": model.depth, **model.settings}


def reads_metric(encoder: Encoder, metric: str) -> bool:
    """Whether the distances of a metric are, or give, squared Euclidean ones."""
    return metric == "l2" or encoder.normalize


def score_hits(
    model: PairModel,
    encoder: Encoder,
    store: Store,
    queries: Sequence[str],
    hits: Sequence[Sequence[Hit]],
    *,
    cleaned: Sequence[str] | None = None,
    sort: bool = True,
) -> list[list[Hit]]:
    """Set the scores of hits and, if `sort`, sort those of each query: copies first, by logit.

    Texts are compared as they are encoded. A hit that is a copy of its query has the score 1.

    cleaned: the queries as they are encoded; None: they are cleaned here.
    """
    cleaner = store.cleaner
    cleaned = cleaner.clean_all(queries) if cleaned is None else cleaned
    flat = [hit for found in hits for hit in found]
    asked = [query for query, found in zip(queries, hits, strict=True) for _ in found]
    first = [query for query, found in zip(cleaned, hits, strict=True) for _ in found]
    second = cleaner.clean_all(_texts(flat))
    distances = np.array([hit.distance for hit in flat], np.float64)
    if store.recipe.metric == "ip":
        distances = 2 + 2 * distances
    _tell_apart(encoder, cleaner, asked, _texts(flat), first, second, distances)
    logits = model.logits(first, second, distances)
    spelled = [
        query for query, found in zip(map(folded, queries), hits, strict=True) for _ in found
    ]
    copies = [query == folded(hit.question) for query, hit in zip(spelled, flat, strict=True)]
    logits[copies] = np.inf
    scores = np.where(copies, 1.0, plain.probability(logits)).tolist()
    scored, start = [], 0
    for query, found in zip(queries, hits, strict=True):
        rows = [*range(start, start + len(found))]
        if sort:
            rows.sort(key=lambda i: (flat[i].question != query, -logits[i]))
        scored.append([flat[i]._replace(score=scores[i]) for i in rows])
        start += len(found)
    return scored


def _texts(hits: Sequence[Hit]) -> list[str]:
    return [hit.question for hit in hits]


def _tell_apart(
    encoder: Encoder,
    cleaner: Cleaner,
    asked: Sequence[str],
    found: Sequence[str],
    first: list[str],
    second: list[str],
    distances: np.ndarray,
) -> None:
    """Compare texts as they are where cleaning alone makes them equal (`text.cleaning`)."""
    for at, pair in enumerate(zip(asked, found, strict=True)):
        equal = first[at] == second[at] and folded(pair[0]) != folded(pair[1])
        if equal and cleaner.told_apart(pair):
            first[at], second[at] = pair
            ends = np.array([[0], [1]])
            distances[at] = pair_distances(encoder.encode([*pair]), *ends)[0]
