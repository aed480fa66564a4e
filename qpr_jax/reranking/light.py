"""The light re-ranker: trees and a network over features of a query and a hit, and its folder.

The folder has a manifest and a safetensors file, and no code. It is a sub-folder of the folder of
its encoder, since the distance is one of its features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qpr_jax.encoders.base import Encoder, accepted_identities, parse_tensors
from qpr_jax.errors import UserError
from qpr_jax.files import (
    StrPath,
    read_manifest,
    read_verified,
    replace_folder,
    write_atomically,
    write_manifest,
)
from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Hit
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking.base import (
    Reranker,
    find_copies,
    none_if_unknown,
    owners_of,
    pair_texts,
    starts_of,
)
from qpr_jax.reranking.features import FEATURES, FeatureExtractor
from qpr_jax.reranking.network import Network
from qpr_jax.reranking.scorer import (
    Scorer,
    check_scorer,
    from_tensors,
    score_features,
    to_tensors,
)
from qpr_jax.reranking.trees import Forest
from qpr_jax.reranking.word_weights import check_weights, zero_weights

FORMAT = "qpr_jax reranker 1"
LIGHT, STACKED = "reranker", "reranker_cross"  # sub-folders of an encoder's folder
WEIGHTS = "reranker.safetensors"
CROSS = "cross"  # the last feature of a stacked model: the logit of a cross-encoder
_CALIBRATION, _WORD_WEIGHTS = "calibration", "word_weights"
# Fields of a model in its manifest, and their types in JSON.
_FACTS = {
    "encoder": str,
    "candidates": int,
    "lexical_candidates": int,
    "cross_encoder": str,
    "features": list,
    "settings": dict,
}
_REMEDY = "train the run again, or fetch the model again"


@dataclass(frozen=True)
class LightModel:
    """A trained re-ranker.

    Attributes:
      encoder: the identity of the encoder whose distances it was trained on.
      candidates: the number of first-stage hits that it reorders.
      features: names of the columns.
      forest: the trees; their sum, plus the output of the network if any, is the raw score.
      calibration: float64 [2, c], raw scores and their probabilities, both ascending; interpolated
        linearly.
      lexical_candidates: the number of BM25 hits that it reorders with them.
      cross_encoder: the identity of the cross-encoder whose logit is its last feature, or "".
      settings: facts of its training, for users.
      network: the network, or None.
      word_weights: float32 [2 ** BITS], see the module `word_weights`.
    """

    encoder: str
    candidates: int
    features: tuple[str, ...]
    forest: Forest
    calibration: np.ndarray
    lexical_candidates: int = 0
    cross_encoder: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    network: Network | None = None
    word_weights: np.ndarray = field(default_factory=zero_weights)

    def __repr__(self) -> str:
        kind = "stacked on a cross-encoder" if self.cross_encoder else "light"
        trees = len(self.forest.starts) - 1
        return f"<LightModel: {kind}, {trees} trees, reorders {self.candidates} hits>"

    @property
    def scorer(self) -> Scorer:
        """The function from features to raw scores."""
        return Scorer(self.forest, self.network)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Calibrate raw scores, float64 [m], to probabilities, float64 [m]."""
        return np.interp(scores, *self.calibration)


def save_light(folder: StrPath, model: LightModel) -> None:
    """Write a model; replaces the folder as a whole."""
    _check(model, "the re-ranker")
    data, facts = serialize_light(model)
    with replace_folder(folder) as part:
        with write_atomically(part / WEIGHTS) as file:
            file.write(data)
        write_manifest(part, [WEIGHTS], format=FORMAT, **facts)


def serialize_light(model: LightModel) -> tuple[bytes, dict[str, Any]]:
    """Return the contents of WEIGHTS, and the facts of the manifest."""
    from safetensors.numpy import save

    tensors = to_tensors(model.scorer)
    tensors[_CALIBRATION] = np.ascontiguousarray(model.calibration)
    tensors[_WORD_WEIGHTS] = model.word_weights
    facts = {name: getattr(model, name) for name in _FACTS}
    return bytes(save(tensors)), facts | {"features": [*model.features]}


def read_light(folder: StrPath) -> LightModel:
    """Read and verify a model; UserError if it is damaged or of another version."""
    manifest = read_manifest(folder, format=FORMAT)
    for name, expected in _FACTS.items():
        if type(manifest.get(name)) is not expected:
            what = f"expected {expected.__name__} as `{name}`, got {manifest.get(name)!r}"
            raise UserError(f"{folder}: {what}", remedy=_REMEDY)
    known = {name: manifest[name] for name in _FACTS}
    known["features"] = tuple(manifest["features"])
    _check_features(known["features"], known["cross_encoder"], str(folder))
    tensors = parse_tensors(read_verified(folder, WEIGHTS, manifest), f"{folder}: {WEIGHTS}")
    own: dict[str, Any] = {}
    for name in (_CALIBRATION, _WORD_WEIGHTS):
        if name not in tensors:
            raise UserError(f"{folder}: {WEIGHTS}: expected `{name}`, got none", remedy=_REMEDY)
        own[name] = tensors.pop(name)
    scorer = from_tensors(tensors, len(known["features"]), f"{folder}: {WEIGHTS}")
    model = LightModel(**known, **scorer._asdict(), **own)
    _check(model, str(folder))
    return model


def _check_features(features: tuple[str, ...], cross_encoder: str, where: str) -> None:
    expected = features_of(cross_encoder)
    if features != expected:
        raise UserError(
            f"{where}: expected a re-ranker over the features of this version, "
            f"{len(expected)} columns, got {len(features)} others",
            remedy="train it again with this version",
        )


def _check(model: LightModel, where: str) -> None:
    _check_features(model.features, model.cross_encoder, where)
    if model.candidates < 1 or model.lexical_candidates < 0:
        raise UserError(f"{where}: expected 1 candidate or more, got {model.candidates}")
    check_scorer(model.scorer, len(model.features), where)
    check_weights(model.word_weights, where)
    check_points(model.calibration, where, _REMEDY)


def check_points(points: np.ndarray, where: str, remedy: str) -> None:
    """Raise a UserError unless float64 [2, c] are ascending scores and their probabilities."""
    whole = points.dtype == np.float64 and points.ndim == 2 and points.shape[0] == 2
    if not (
        whole
        and points.size
        and np.isfinite(points).all()
        and (np.diff(points) >= 0).all()
        and points[1, 0] >= 0
        and points[1, -1] <= 1
    ):
        raise UserError(f"{where}: expected an ascending calibration, got another", remedy=remedy)


def features_of(cross_encoder: str = "") -> tuple[str, ...]:
    """List the features of a model; a stacked one, with a cross-encoder, has one more."""
    return (*FEATURES, CROSS) if cross_encoder else FEATURES


def rank_hits(
    scores: np.ndarray, distances: np.ndarray, ids: Sequence[Id] | np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Sort the hits of each query, best first: a permutation of 0, ..., m - 1, int64 [m].

    Ties go by distance, then by id, numbers before strings, so the result does not depend on the
    order given. All arguments are [m], except `starts`, [q + 1]: where the hits of each query
    begin.
    """
    owners = owners_of(starts)
    order = np.lexsort((-scores, owners))
    ordered = scores[order]
    ties = ~(ordered[1:] < ordered[:-1]) & (owners[1:] == owners[:-1])  # NaN, which is last, too
    # The other keys double the time, and are seldom needed.
    return np.lexsort((_ranks(ids), distances, -scores, owners)) if ties.any() else order


def _ranks(ids: Sequence[Id] | np.ndarray) -> np.ndarray:
    """Numbers in the order of ids, int64 [m]; equal for equal ids."""
    if isinstance(ids, np.ndarray):
        return ids
    keys = [*map(id_key, ids)]
    ordered = sorted({*keys}, key=lambda key: (isinstance(key, str), key))
    place = {key: rank for rank, key in enumerate(ordered)}
    return np.array([place[key] for key in keys], np.int64)


class PairScorer(Protocol):
    """The methods of a cross-encoder that are used here."""

    @property
    def identity(self) -> str:
        """Hash of the model."""

    def predict(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Compute the logits of pairs, float32 [n]."""
        ...


def rerank_hits(
    reranker: Reranker, queries: Sequence[str], hits: Sequence[Sequence[Hit]]
) -> list[list[Hit]]:
    """Implement `Reranker.rerank` by `Reranker.score`."""
    most = reranker.candidates + reranker.lexical_candidates
    first = [found[:most] for found in hits]
    starts = starts_of(np.array([*map(len, first)], np.int64))
    flat = [hit for found in first for hit in found]
    texts, distances = _texts_and_distances(flat)
    scores, known = reranker.score(queries, texts, distances, starts)
    probabilities = none_if_unknown(known)
    order = rank_hits(scores, distances, [hit.id for hit in flat], starts).tolist()
    ordered = []
    for i, found in enumerate(hits):
        own = order[starts[i] : starts[i + 1]]
        best = [flat[at]._replace(score=probabilities[at]) for at in own]
        ordered.append(best + [hit._replace(score=None) for hit in found[most:]])
    return ordered


class LightReranker:
    """A `Reranker` of trees and a network; a stacked model needs its cross-encoder, `scorer`."""

    def __init__(
        self,
        model: LightModel,
        encoder: Encoder,
        statistics: Statistics,
        scorer: PairScorer | None = None,
    ) -> None:
        if model.encoder not in accepted_identities(encoder):
            raise UserError(
                f"expected a re-ranker of the encoder {encoder.identity[:12]}, got one of "
                f"{model.encoder[:12]}",
                remedy="use the re-ranker of the same run, or search without one",
            )
        given = scorer.identity if scorer else ""
        if model.cross_encoder != given:
            raise UserError(
                f"expected the cross-encoder {model.cross_encoder[:12] or '(none)'} of the "
                f"re-ranker's training, got {given[:12] or '(none)'}",
                remedy="give the folder of that cross-encoder",
            )
        self.model, self.scorer = model, scorer
        self.candidates, self.lexical_candidates = model.candidates, model.lexical_candidates
        self._features = FeatureExtractor(encoder, statistics, model.word_weights)

    def score(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute raw scores and probabilities of hits; see `Reranker`.

        A hit whose text equals the query gets the raw score infinity and the probability 1.
        """
        return self._score(queries, questions, distances, starts)[1:]

    def rerank(self, queries: Sequence[str], hits: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """Sort the first hits of each query by raw score; see `Reranker`."""
        return rerank_hits(self, queries, hits)

    def explain(self, query: str, hits: Sequence[Hit]) -> list[dict[str, float]]:
        """Return features, raw score and probability of each hit, in the order given."""
        starts = np.array([0, len(hits)])
        parts = np.column_stack(self._score([query], *_texts_and_distances(hits), starts))
        names = (*self.model.features, "score", "probability")
        return [dict(zip(names, row, strict=True)) for row in parts.tolist()]

    def _score(
        self,
        queries: Sequence[str],
        questions: Sequence[str],
        distances: np.ndarray,
        starts: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute features, float32 [m, f], raw scores and probabilities, [m], of hits."""
        copies = find_copies(queries, questions, starts)
        if copies.any():
            # They form separate lists, so that they do not change gaps and ranks of the other hits:
            # training, too, leaves a query out of its own hits.
            lists = 2 * owners_of(starts) + copies
            order = np.argsort(lists, kind="stable")
            bounds = np.searchsorted(lists[order], np.arange(2 * len(queries) + 1))
            texts = [questions[i] for i in order.tolist()]
            twice = [query for query in queries for _ in range(2)]
            features = np.empty((len(questions), len(FEATURES)), np.float32)
            features[order] = self._features.compute(twice, texts, distances[order], bounds)
        else:
            features = self._features.compute(queries, questions, distances, starts)
        if self.scorer is not None:
            pairs = pair_texts(queries, questions, starts)
            features = np.column_stack([features, self.scorer.predict(pairs)])
        scores = score_features(self.model.scorer, features)
        probabilities = self.model.probabilities(scores)
        scores[copies], probabilities[copies] = np.inf, 1
        return features, scores, probabilities


def _texts_and_distances(hits: Sequence[Hit]) -> tuple[list[str], np.ndarray]:
    """Return the texts of m hits, and their distances, float32 [m]."""
    return [hit.question for hit in hits], np.array([hit.distance for hit in hits], np.float32)
