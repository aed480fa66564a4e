"""The re-rankers in the folder of an encoder, and the search in two stages."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from qpr_jax.encoders.base import Encoder, accepted_identities
from qpr_jax.encoders.load import read_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, parse_key
from qpr_jax.index.base import Hit, Index
from qpr_jax.index.run import export_name, run_encoder_folder
from qpr_jax.reranking.base import Rerank, Reranker
from qpr_jax.reranking.cross_encoder import CrossEncoder, CrossReranker, read_cross_encoder
from qpr_jax.reranking.differences import find_differences
from qpr_jax.reranking.light import (
    LIGHT,
    STACKED,
    LightModel,
    LightReranker,
    read_light,
    save_light,
    serialize_light,
)
from qpr_jax.reranking.pair_calibration import (
    CALIBRATION,
    PairCalibration,
    light_identity,
    read_calibration,
    same_calibration,
    save_calibration,
    without_curves,
)
from qpr_jax.reranking.stage import UNKNOWN, Explanation, Stage, text_of
from qpr_jax.text.base import as_texts

WORDS = ("light", "cross_encoder")
log = logging.getLogger(__name__)

_UNIT = 1e-3  # tolerance of the length of a unit vector: encoders may round to bfloat16


class SecondStages:
    """The re-rankers of an encoder, by their name in `rerank`; each is made at its first use.

    Attributes:
      models: the trained models by the name of their folder, LIGHT or STACKED.
      cross_encoder: the cross-encoder, or None.
      calibration: the probabilities of pairs found among all questions, or None.
    """

    def __init__(
        self,
        encoder: Encoder,
        models: dict[str, LightModel],
        cross_encoder: CrossEncoder | None = None,
        calibration: PairCalibration | None = None,
    ) -> None:
        self.models, self.cross_encoder = models, cross_encoder
        self.calibration = calibration
        self._encoder = encoder
        self._lock = threading.Lock()  # guards the two below
        self._index: Index | None = None
        self._made: dict[str, Stage] = {}  # for `_index`

    @classmethod
    def read(
        cls, folder: StrPath, encoder: Encoder, cross_encoder: StrPath | None = None
    ) -> SecondStages:
        """Read those of an encoder's folder; UserError if damaged or of another encoder.

        cross_encoder: the folder of a cross-encoder.
        """
        models = {}
        for name in (LIGHT, STACKED):
            path = pathlib.Path(folder, name)
            if os.path.lexists(path):
                models[name] = _read_model(path, accepted_identities(encoder))
        calibration = None
        if os.path.lexists(path := pathlib.Path(folder, CALIBRATION)):
            calibration = _read_calibration(path, accepted_identities(encoder), models.get(LIGHT))
        if not cross_encoder:
            return cls(encoder, models, None, calibration)
        cross = read_cross_encoder(cross_encoder)
        trained = models[STACKED].cross_encoder if STACKED in models else cross.identity
        if trained != cross.identity:
            log.warning(
                "%s: trained with the cross-encoder %s, not with %s, which is used alone",
                *(pathlib.Path(folder, STACKED), trained[:12], cross.identity[:12]),
            )
        return cls(encoder, models, cross, calibration)

    def __repr__(self) -> str:
        cross = [] if self.cross_encoder is None else [self.cross_encoder]
        return f"<SecondStages: {', '.join(map(repr, [*self.models.values(), *cross])) or 'none'}>"

    def with_encoder(self, encoder: Encoder) -> SecondStages:
        """Give the same re-rankers and calibration to an encoder that extends the present one."""
        return SecondStages(encoder, self.models, self.cross_encoder, self.calibration)

    def save(self, run: pathlib.Path, build: str, *, replace: bool) -> str:
        """Write the encoder and its models beside the index of `run`; return the folder's name.

        build: the new build of the index. replace: replace other models of the encoder.
        """
        name = export_name(run, self._encoder, build)
        save_encoder(run / name, self._encoder)
        self.save_models(run / name, replace=replace)
        return name

    def save_models(self, folder: StrPath, *, replace: bool = True) -> None:
        """Write the models and the calibration to the folder of the encoder."""
        for name, model in self.models.items():
            path = pathlib.Path(folder, name)
            try:
                present = read_light(path)
            except UserError:  # missing, or damaged
                save_light(path, model)
            else:
                if present.encoder != model.encoder or (
                    replace and serialize_light(present) != serialize_light(model)
                ):
                    save_light(path, model)
        if self.calibration is None:
            return
        path = pathlib.Path(folder, CALIBRATION)
        try:
            known = read_calibration(path)
        except UserError:  # missing, or damaged
            save_calibration(path, self.calibration)
        else:
            other = known.encoder != self.calibration.encoder
            if other or (replace and not same_calibration(known, self.calibration)):
                save_calibration(path, self.calibration)

    def require_calibration(self) -> PairCalibration:
        """Return the calibration; UserError if there is none."""
        if self.calibration is None:
            raise UserError(
                "expected a run with calibrated probabilities, got one without",
                setting="threshold",
                remedy="give {max_distance} or {pairs} instead, or calibrate the run with "
                "`qpr calibrate`",
            )
        return self.calibration

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what `qpr info` prints of each model, by the name of its folder."""
        return {
            name: {
                "candidates": model.candidates,
                "lexical_candidates": model.lexical_candidates,
                "features": len(model.features),
                "trees": len(model.forest.starts) - 1,
                **({"cross_encoder": model.cross_encoder} if model.cross_encoder else {}),
            }
            for name, model in self.models.items()
        }

    def calibration_facts(self) -> dict[str, Any] | None:
        """Return what `qpr info` prints of the calibration; None without one."""
        if (known := self.calibration) is None:
            return None
        facts = {"light": known.light is not None, "reach": known.reach, **known.settings}
        return {name: without_curves(value) for name, value in facts.items()}

    def words(self, index: Index | None) -> list[Rerank]:
        """List what `choose` accepts for this index, the default first."""
        default = self.choose(None, index)
        found: list[Rerank] = [default] if default is False else [default, False]
        return [*found, "cross_encoder"] if self.cross_encoder is not None else found

    def choose(
        self, rerank: Rerank, index: Index | None
    ) -> Literal[False, "light", "cross_encoder"]:
        """Resolve `rerank` for an index; None: light if possible, else False.

        index: None stands for squared Euclidean distances of the encoder.
        UserError for any other value, or if there is no such second stage.
        """
        squares = index is None or index.recipe.metric == "l2"
        alike = index is None or self._made_by_ours(index)
        readable = alike and (squares or self._has_unit_vectors)
        if rerank is None:
            return "light" if LIGHT in self.models and readable else False
        if rerank is False:
            return False
        if rerank not in WORDS:
            what = f"expected None, False, 'light' or 'cross_encoder', got {rerank!r}"
            raise UserError(what, setting="rerank")
        if rerank == "cross_encoder":
            if self.cross_encoder is None:
                raise UserError(
                    "expected a cross-encoder, found none",
                    setting="rerank",
                    remedy="name the folder of one by {cross_encoder}",
                )
            return "cross_encoder"
        if LIGHT not in self.models:
            raise UserError(
                f"expected an encoder with a folder {LIGHT}/, found none",
                setting="rerank",
                remedy="train a run with {rerank.kind=light}, whose log says if there were too few "
                "validation questions, or search without",
            )
        if not alike:
            raise UserError(
                "expected distances between vectors of one encoder, got an index whose questions "
                "another one encoded than the queries, which the light re-ranker has not learned",
                setting="rerank",
                remedy="search without, or build the index without {documents_by}",
            )
        if not readable:
            raise UserError(
                "expected squared Euclidean distances, got inner products of vectors of different "
                "lengths, which the light re-ranker has not learned",
                setting="rerank",
                remedy="index with {metric=l2}, or search without",
            )
        return "light"

    def stage(self, rerank: Rerank, index: Index) -> Stage | None:
        """Return the second stage for an index; None if `rerank` means one stage."""
        word = self.choose(rerank, index)
        if not word:
            return None
        with self._lock:
            if self._index is not index:
                self._index, self._made = index, {}
            if word not in self._made:
                squares = index.recipe.metric == "l2"
                reranker = self._reranker(word, index, squares=squares)
                self._made[word] = Stage(reranker, self._encoder, index, quick=word == "light")
            return self._made[word]

    def explain(
        self, rerank: Rerank, index: Index, text: str, other: str | None, id: Id | None
    ) -> Explanation:
        """Implement `Retriever.explain`."""
        if (other is None) is (id is None):
            raise UserError(f"expected `other` or `id`, got {'none' if id is None else 'both'}")
        question = text_of(index, id) if other is None else other
        text, question = as_texts([text, question], "text and other")
        (left,) = self._encoder.encode([text])
        (right,) = index.questions_encoder(self._encoder).encode([question])
        products = index.recipe.metric == "ip"
        distance = float(-left @ right if products else ((left - right) ** 2).sum())
        stage, found = self.stage(rerank, index), Explanation(distance)
        if stage is not None:
            key = parse_key(id)
            hit = Hit(UNKNOWN if key is None else key, question, distance)
            found = stage.explain(text, hit)
        known = None
        if self.calibration is not None and not products and self._made_by_ours(index):
            known = float(self.calibration.probabilities(np.array([distance]))[0])
        differences = find_differences(text, question, index.keep_statistics())
        return found._replace(pair_probability=known, differences=differences)

    def _made_by_ours(self, index: Index) -> bool:
        """Whether our encoder, that of the queries, is that of the questions, too."""
        return index.encoder in accepted_identities(self._encoder)

    def _reranker(self, word: str, index: Index, *, squares: bool) -> Reranker:
        statistics = index.keep_statistics()
        if word == "light" or self.cross_encoder is None:
            return LightReranker(self.models[LIGHT], self._encoder, statistics)
        cross, stacked = self.cross_encoder, self.models.get(STACKED)
        if stacked is None or stacked.cross_encoder != cross.identity:
            return CrossReranker(cross)
        if not self._made_by_ours(index) or not (squares or self._has_unit_vectors):
            return CrossReranker(cross)
        return LightReranker(stacked, self._encoder, statistics, cross)

    @functools.cached_property
    def _has_unit_vectors(self) -> bool:
        """Whether the vectors have length 1, judged by three: no encoder does so by chance."""
        lengths = np.linalg.norm(self._encoder.encode(["", "a", "how do i learn to cook"]), axis=1)
        return bool((abs(lengths - 1) < _UNIT).all())


def _read_model(path: pathlib.Path, encoders: Sequence[str]) -> LightModel:
    """Read the model of a folder LIGHT or STACKED, of an encoder of one of these identities."""
    if not path.is_dir():
        raise UserError(
            f"{path}: expected the folder of a re-ranker, got a file",
            remedy="remove it, or put the folder there",
        )
    model = read_light(path)
    if model.encoder not in encoders:
        raise UserError(
            f"{path}: expected a re-ranker of the encoder {encoders[0][:12]}, got one of "
            f"{model.encoder[:12]}",
            remedy="remove the folder, or put the re-ranker of this encoder there",
        )
    if bool(model.cross_encoder) != (path.name == STACKED):
        expected, got = ("with", "without") if path.name == STACKED else ("without", "with")
        raise UserError(
            f"{path}: expected a re-ranker {expected} the logit of a cross-encoder, got one {got}",
            remedy="put one without it in reranker/, and one with it in reranker_cross/",
        )
    return model


def _read_calibration(
    path: pathlib.Path, encoders: Sequence[str], light: LightModel | None
) -> PairCalibration:
    """Read the calibration of an encoder of these identities and, if it has one, its re-ranker."""
    found = read_calibration(path)
    if found.encoder not in encoders:
        raise UserError(
            f"{path}: expected a calibration of the encoder {encoders[0][:12]}, got one of "
            f"{found.encoder[:12]}",
            remedy="remove the folder, or put the calibration of this encoder there",
        )
    given = light_identity(light) if light else ""
    if found.reranker and found.reranker != given:
        raise UserError(
            f"{path}: expected a calibration of the re-ranker {given[:12] or '(none)'}, got one of "
            f"{found.reranker[:12]}",
            remedy="remove the folder, or put the calibration of this re-ranker there",
        )
    return found


def read_stages(
    run: StrPath | Encoder, cross_encoder: StrPath | None = None, *, half: bool = False
) -> tuple[Encoder, SecondStages]:
    """Read the encoder of `run`, as `run_encoder` does, and its re-rankers.

    run: or an encoder itself, which has none but the cross-encoder.
    half: as of `read_encoder`.
    """
    if not isinstance(run, str | os.PathLike):
        cross = read_cross_encoder(cross_encoder) if cross_encoder else None
        return run, SecondStages(run, {}, cross)
    folder = run_encoder_folder(run)
    encoder = read_encoder(folder, half=half)
    return encoder, SecondStages.read(folder, encoder, cross_encoder)
