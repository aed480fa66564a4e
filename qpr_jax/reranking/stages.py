"""The second stages of an encoder: its re-rankers and the calibration of pairs."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import load_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Hit, Store
from qpr_jax.index.run import run_encoder_folder
from qpr_jax.index.vectors import distances_to, pair_distances
from qpr_jax.reranking.base import Rerank, Reranker, TextLists
from qpr_jax.reranking.calibration import (
    CALIBRATION,
    PairCalibration,
    read_calibration,
    save_calibration,
    without_curves,
)
from qpr_jax.reranking.cross_encoder import CrossEncoder, CrossReranker, read_cross_encoder
from qpr_jax.reranking.light import (
    LIGHT,
    STACKED,
    LightModel,
    LightReranker,
    read_light,
    save_light,
)
from qpr_jax.reranking.pairs import PairFeatures
from qpr_jax.text.base import as_texts
from qpr_jax.text.cleaning import clean, told_apart
from qpr_jax.text.differences import Explanation, find_differences
from qpr_jax.text.folding import folded

log = logging.getLogger(__name__)

UNKNOWN = -1  # the id of a text that is not in the index
_NEAREST = 10  # hits among which a text is looked for, where none are reordered


@dataclass(eq=False, repr=False)
class Stages:
    """The re-rankers of an encoder; each is made at its first use. Thread-safe."""

    encoder: Encoder  # whose distances the models were trained on
    light: LightModel | None = None
    stacked: LightModel | None = None  # has the logit of a cross-encoder as a feature
    cross_encoder: CrossEncoder | None = None
    calibration: PairCalibration | None = None
    _made: dict[tuple[str, int, int, int], LightReranker] = field(default_factory=dict, init=False)

    @classmethod
    def read(
        cls, folder: StrPath, encoder: Encoder, cross_encoder: StrPath | None = None
    ) -> Stages:
        """Read those of an encoder's folder; UserError if damaged or of another encoder.

        cross_encoder: the folder of a cross-encoder.
        """
        root = pathlib.Path(folder)
        light, stacked = (
            _read(root / name, read_light, "re-ranker", encoder) for name in (LIGHT, STACKED)
        )
        for name, other, model in ((LIGHT, STACKED, light), (STACKED, LIGHT, stacked)):
            if model and bool(model.cross_encoder) != (name == STACKED):
                what = f"{root / name}: this re-ranker belongs in {other}/"
                raise UserError(what, remedy="put it there")
        calibration = _read(root / CALIBRATION, read_calibration, "calibration", encoder)
        if calibration and calibration.reranker:
            given = light.identity if light else "(none)"
            what = "a calibration of the re-ranker"
            _require(root / CALIBRATION, what, calibration.reranker, given)
        cross = read_cross_encoder(cross_encoder) if cross_encoder else None
        if cross and stacked and stacked.cross_encoder != cross.identity:
            text = "%s: trained with another cross-encoder than the given one, which is used alone"
            log.warning(text, root / STACKED)
        return cls(encoder, light, stacked, cross, calibration)

    def __repr__(self) -> str:
        known = [self.light, self.stacked, self.cross_encoder]
        return f"<Stages: {', '.join(repr(one) for one in known if one) or 'none'}>"

    @property
    def models(self) -> dict[str, LightModel]:
        """The trained models by the name of their folder."""
        known = {LIGHT: self.light, STACKED: self.stacked}
        return {name: model for name, model in known.items() if model}

    def save(self, folder: StrPath) -> None:
        """Write the models and the calibration to the folder of the encoder."""
        for name, model in self.models.items():
            save_light(pathlib.Path(folder, name), model)
        if self.calibration:
            save_calibration(pathlib.Path(folder, CALIBRATION), self.calibration)

    def require_calibration(self) -> PairCalibration:
        """Return the calibration; UserError if there is none."""
        if self.calibration is None:
            what = "the encoder has no calibration, so its pairs have no probabilities"
            remedy = "fit one to verdicts with `qpr calibrate`, or take `--encoder open_student`"
            raise UserError(what, remedy=remedy)
        return self.calibration

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what `qpr info` prints of each model, by the name of its folder."""
        facts: dict[str, dict[str, Any]] = {}
        for name, model in self.models.items():
            facts[name] = {"candidates": model.candidates, "features": len(model.features)}
            if model.cross_encoder:
                facts[name]["cross_encoder"] = model.cross_encoder
        return facts

    def calibration_facts(self) -> dict[str, Any] | None:
        """Return what `qpr info` prints of the calibration; None without one."""
        if (known := self.calibration) is None:
            return None
        facts = {"words": bool(known.reranker), "reach": known.reach}
        return facts | without_curves(known.settings)

    def words(self, store: Store) -> list[Rerank]:
        """List what `choose` accepts for this store, the default first."""
        words: list[Rerank] = ["light" if self.choose(None, store) else None, False]
        return [*words, "cross_encoder"] if self.cross_encoder else words

    def choose(self, rerank: Rerank, store: Store) -> Literal[False, "light", "cross_encoder"]:
        """Resolve `rerank` for a store; None: light if possible, else False.

        UserError for any other value, or if there is no such second stage.
        """
        readable = self._reads(store.recipe.metric)
        sorts = self.light is not None and self.light.candidates > 0
        match rerank:
            case None:
                return "light" if sorts and readable else False
            case False:
                return False
            case "light" if not sorts:
                what = f"expected an encoder with a folder {LIGHT}/ that sorts hits, found none"
                remedy = "train a run with `rerank.candidates=50`, or search without"
            case "light" if not readable:
                what = "the light re-ranker needs squared Euclidean distances or vectors of length "
                what += "1, got inner products of vectors of other lengths"
                remedy = "index with the metric l2, or search without"
            case "cross_encoder" if self.cross_encoder is None:
                what = "expected a cross-encoder, found none"
                remedy = "name the folder of one by --cross-encoder or `cross_encoder`"
            case "light" | "cross_encoder":
                return rerank
            case _:
                what = f"expected None, False, 'light' or 'cross_encoder', got {rerank!r:.80}"
                remedy = ""
        raise UserError(what, setting="rerank", remedy=remedy)

    def _reads(self, metric: str) -> bool:
        """Whether the distances of a metric are, or give, squared Euclidean ones."""
        return metric == "l2" or self.encoder.normalize

    def reranker(self, rerank: Rerank, store: Store) -> Reranker | None:
        """Return the re-ranker for the hits of a store; None if `rerank` means one stage."""
        word = self.choose(rerank, store)
        if not word:
            return None
        metric, cross = store.recipe.metric, self.cross_encoder if word != "light" else None
        model = self.stacked if cross else self.light
        if cross and model:
            # Without the cross-encoder of its training, a stacked model is of no use.
            model = model if model.cross_encoder == cross.identity and self._reads(metric) else None
        if model:
            return self._light_reranker(model, metric, cross)
        return CrossReranker(cross) if cross else None

    def _light_reranker(
        self, model: LightModel, metric: str = "l2", cross: CrossEncoder | None = None
    ) -> LightReranker:
        # Another model assigned to this object gives another re-ranker.
        fitted = None if cross else self.calibration
        key = (metric, id(model), id(cross), id(fitted))
        # No lock, which a fork could leave held: two threads may each make an equal one.
        if key not in self._made:
            self._made[key] = LightReranker(
                model, self.encoder, metric=metric, scorer=cross, calibration=fitted
            )
        return self._made[key]

    def pair_features(self) -> PairFeatures:
        """Return what computes the features of the calibration."""
        if self.light is None or self.calibration is None or not self.calibration.reranker:
            return PairFeatures()
        return PairFeatures(self._light_reranker(self.light).extractor)

    def scores(self, store: Store) -> bool:
        """Whether hits of a store get scores."""
        return self.calibration is not None and self._reads(store.recipe.metric)

    def score_hits(
        self, store: Store, queries: Sequence[str], hits: list[list[Hit]]
    ) -> list[list[Hit]]:
        """Set `Hit.score`, the probability that a hit means the same as its query.

        It depends on the two texts alone, as they are encoded. It stays None without a calibration,
        or if the distances of the store do not give squared Euclidean ones.
        """
        if self.calibration is None or not self.scores(store):
            return hits
        lists = TextLists.of(queries, hits, store.shared)
        if store.recipe.metric == "ip":
            lists = lists._replace(distances=2 + 2 * lists.distances)
        values = self.pair_features().score_hits(self.calibration, lists)
        if store.shared is not None:
            self._rescore(values, lists, TextLists.of(queries, hits).pairs(), store.shared)
        scores = iter(values.tolist())
        return [[hit._replace(score=next(scores)) for hit in found] for found in hits]

    def _rescore(
        self,
        scores: np.ndarray,
        lists: TextLists,
        pairs: Sequence[tuple[str, str]],
        shared: Mapping[str, int],
    ) -> None:
        """Correct the scores of hits that are copies only before, or only after, cleaning.

        pairs: each query and hit as they are.
        """
        assert self.calibration is not None
        for at, (cleaned, (query, question)) in enumerate(zip(lists.pairs(), pairs, strict=True)):
            if cleaned == (query, question):
                continue
            if folded(query) == folded(question):
                scores[at] = 1.0
            elif scores[at] == 1.0:
                distance, texts = lists.distances[at : at + 1], cleaned
                if told_apart(query, question, shared):
                    texts = query, question
                    distance = pair_distances(self.encoder.encode([*texts]), *np.array([[0], [1]]))
                ends = np.array([0]), np.array([1])
                features = self.pair_features()
                scores[at] = features.score_pairs(self.calibration, texts, *ends, distance)[0]

    def explain(
        self,
        rerank: Rerank,
        store: Store,
        text: str,
        other: str | None = None,
        id: Id | None = None,
    ) -> Explanation:
        """Explain the scores of a text and another one, `other`, or the question of an `id`."""
        if (other is None) is (id is None):
            raise UserError(f"expected `other` or `id`, got {'none' if id is None else 'both'}")
        question = _text_of(store, id) if other is None else other
        # As they are: whatever compares texts cleans them, and twice would differ from once.
        text, question = as_texts([text, question], "text and other")
        cleaned = [clean(each, store.shared) for each in (text, question)]
        reranker = self.reranker(rerank, store)
        left, right = self.encoder.encode(cleaned)
        size = reranker.candidates if reranker else _NEAREST
        (pool,) = store.search(left[None], size)
        hit = Hit(UNKNOWN if id is None else id, question, _distance(store, left, right))
        place = _put(pool, hit, size)
        ((scored,),) = self.score_hits(store, [text], [[pool[place]]])
        found = Explanation(scored.distance, score=scored.score)
        if reranker is not None:
            features, scores = reranker.score_copies(TextLists.of([text], [pool], store.shared))
            named = dict(zip(reranker.features, features[place].tolist(), strict=True))
            found = found._replace(raw_score=float(scores[place]), features=named)
        weigh = self.light.frequencies.weights if self.light else None
        return found._replace(differences=find_differences(cleaned[0], cleaned[1], weigh))


def read_stages(
    named: StrPath | Encoder, cross_encoder: StrPath | None = None
) -> tuple[Encoder, Stages]:
    """Read an encoder, as `read_encoder` does, and its second stages.

    named: or an encoder itself, which has none but the cross-encoder.
    """
    if not isinstance(named, str | os.PathLike):
        cross = read_cross_encoder(cross_encoder) if cross_encoder else None
        return named, Stages(named, cross_encoder=cross)
    folder = run_encoder_folder(named)
    encoder = load_encoder(folder)
    return encoder, Stages.read(folder, encoder, cross_encoder)


def _distance(store: Store, left: np.ndarray, right: np.ndarray) -> float:
    """Compute the distance of a query float32 [d] to a text, were that one indexed: float32 [d]."""
    stored = right.astype(store.recipe.vectors)[None]
    return float(distances_to(left[None], stored, np.zeros((1, 1), int), store.recipe.metric)[0, 0])


def _put(pool: list[Hit], given: Hit, candidates: int) -> int:
    """Return the place of a hit among those of a search; if missing, it replaces the farthest.

    Equal texts are the same hit if no id was given.
    """
    by_id = given.id != UNKNOWN
    for place, hit in enumerate(pool):
        same = id_key(hit.id) == id_key(given.id) if by_id else hit.question == given.question
        if same:
            return place
    del pool[candidates - 1 :]
    pool.append(given)
    return len(pool) - 1


def _text_of(store: Store, id: Id | None) -> str:
    (found,) = (None,) if id is None else store.get([id])
    if found is None:
        what = f"`id`: expected the id of an indexed question, got {id!r:.80}"
        raise UserError(what, remedy="use the id of a hit, or give the text as `other`")
    return found.text


def _read(path: pathlib.Path, read: Callable[[StrPath], Any], kind: str, encoder: Encoder) -> Any:
    """Read the model of a folder; None if there is none, UserError if of another encoder."""
    if not os.path.lexists(path):
        return None
    found = read(path)
    _require(path, f"a {kind} of the encoder", found.encoder, encoder.identity)
    return found


def _require(path: pathlib.Path, what: str, found: str, known: str) -> None:
    if found != known:
        what = f"{path}: expected {what} {known[:12]}, got one of {found[:12]}"
        raise UserError(what, remedy="remove the folder, or put the one that belongs to it there")
