"""The losses that settings can name, and their sum over a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from qpr_jax.errors import UserError
from qpr_jax.losses import (
    contrastive_loss,
    imitation_loss,
    online_contrastive_loss,
    ranking_loss,
    sdml_loss,
    similarities_loss,
    triplet_loss,
)
from qpr_jax.training.batch_layout import Batch
from qpr_jax.training.config import LossConfig, TrainConfig, weighted_losses
from qpr_jax.training.train_step import LossTerms
from qpr_jax.tuning import Tuning


@dataclass(frozen=True)
class LossSpec:
    """A loss that the settings can name.

    Attributes:
      fn: of `qpr_jax.losses`.
      data: what it reads: `queries, candidates` and `clusters=`, or `left, right, labels`, all
        times `loss.scale`, or the unscaled vectors and the teacher's.
      settings: arguments, and the setting of the section `loss`, or `teacher` if it reads the
        teacher's vectors, that each gets.
      reduction: a sum is divided by the labeled pairs of the global batch.
      needs_key: whether it takes a random `key`.
      needs_tuning: whether it takes `tuning`, of its N x N scores.
      angular: whether it compares directions, so that vectors should have length 1.
      unused: settings of the section that it does not read after all.
      fused: whether a fused kernel has it with these settings, or it reads no `implementation`.
    """

    fn: Callable[..., jax.Array]
    data: Literal["pairs", "labeled", "targets"]
    settings: Mapping[str, str] = field(default_factory=dict)
    reduction: Literal["mean", "sum"] = "mean"
    needs_key: bool = False
    needs_tuning: bool = False
    angular: Callable[[LossConfig], bool] = lambda config: False
    unused: Callable[[LossConfig], Sequence[str]] = lambda config: ()
    fused: Callable[[LossConfig], bool] = lambda config: True


def _same(names: str) -> dict[str, str]:
    """Arguments with the name of their setting."""
    return {name: name for name in names.split()}


_CONTRASTIVE = LossSpec(
    contrastive_loss,
    "labeled",
    {"distance": "pair_distance", "margin": "margin"},
    angular=lambda config: config.pair_distance == "cosine",
    unused=lambda config: ("scale",) if config.pair_distance == "cosine" else (),
)

LOSSES = {
    "sdml": LossSpec(
        sdml_loss,
        "pairs",
        _same("distance smoothing prior temperature symmetric precision implementation"),
        needs_tuning=True,
        unused=lambda config: ("temperature",) if config.prior == "uniform" else (),
        fused=lambda config: config.distance == "ssd" and config.prior == "uniform",
    ),
    "triplet": LossSpec(
        triplet_loss,
        "pairs",
        _same("distance negatives margin precision"),
        needs_key=True,
        needs_tuning=True,
        unused=lambda config: ("precision",) if config.negatives == "random" else (),
    ),
    "ranking": LossSpec(
        ranking_loss,
        "pairs",
        _same("similarity smoothing symmetric precision implementation")
        | {"scale": "similarity_scale"},
        needs_tuning=True,
        angular=lambda config: True,
        unused=lambda config: () if config.similarity == "dot" else ("scale",),
    ),
    "contrastive": _CONTRASTIVE,
    "online_contrastive": replace(_CONTRASTIVE, fn=online_contrastive_loss, reduction="sum"),
    "imitation": LossSpec(imitation_loss, "targets", {}),
    "similarities": LossSpec(
        similarities_loss,
        "targets",
        {"temperature": "similarity_temperature"},
        needs_tuning=True,
    ),
}
_PACKAGED = frozenset(LOSSES)


def loss_names() -> tuple[str, ...]:
    """The losses that the setting `loss.names` may name."""
    return tuple(name for name, spec in LOSSES.items() if spec.data != "targets")


def register_loss(name: str, spec: LossSpec) -> None:
    """Let the setting `loss.names` name a loss of one's own, in this process.

    A later call with the same name replaces it. A run is resumed where its loss is registered; the
    run knows the name alone, so a changed loss should get another one.

    Args:
      name: letters, digits and `_`; the metric is `loss_NAME`.
      spec: the function, what it reads, and which settings of the section `loss` it gets.

    Raises:
      UserError: the name is one of the package or has other characters, or the spec names a
        setting that there is not, or reads what a loss of one's own cannot.
    """
    if name in _PACKAGED or not name.isidentifier():
        raise UserError(
            "`name` of a loss: expected letters, digits and _, and none of "
            f"{', '.join(sorted(_PACKAGED))}, got {name!r}"
        )
    if spec.data not in ("pairs", "labeled"):
        raise UserError(f"`data` of a loss: expected pairs or labeled, got {spec.data!r}")
    known = [*LossConfig.model_fields]
    for setting in spec.settings.values():
        if setting not in known:
            raise UserError(
                "`settings` of a loss: expected values of the section `loss`, "
                f"{', '.join(known)}, got {setting!r}"
            )
    LOSSES[name] = spec


def loss_terms(
    config: TrainConfig, *, imitation_alone: bool = False, tuning: Tuning | None = None
) -> LossTerms:
    """The losses of the config and, if it has a weight, imitation, or it alone; by name.

    `tuning` is of the devices that compute them; None: of JAX's first.
    """
    weights, imitation = weighted_losses(config), config.teacher.weight
    if imitation_alone:
        weights, imitation = {}, 1.0
    weights |= {"imitation": imitation, "similarities": imitation * config.teacher.similarities}

    def terms(
        vectors: jax.Array, batch: Batch, key: jax.Array, axis_name: str
    ) -> dict[str, jax.Array]:
        queries, candidates, left, right = batch.split(config.loss.scale * vectors)
        clusters = jnp.asarray(batch.clusters) if config.loss.mask_own_cluster else None
        labels, targets = jnp.asarray(batch.labels), jnp.asarray(batch.targets)
        arrays = {
            "pairs": (queries, candidates),
            "labeled": (left, right, labels),
            "targets": (vectors, targets),
        }

        def value(spec: LossSpec) -> jax.Array:
            """The mean over rows or labeled pairs."""
            section = config.teacher if spec.data == "targets" else config.loss
            options = {arg: getattr(section, name) for arg, name in spec.settings.items()}
            if spec.data == "pairs":
                options["clusters"] = clusters
            if spec.needs_tuning:
                options["tuning"] = tuning
            if spec.needs_key:
                options["key"] = key
            loss = spec.fn(*arrays[spec.data], axis_name=axis_name, **options)
            pairs = len(labels) * lax.axis_size(axis_name)
            return loss / pairs if spec.reduction == "sum" else loss

        return {
            name: weight * value(LOSSES[name])
            for name, weight in weights.items()
            if weight and (LOSSES[name].data != "targets" or targets.shape[1])
        }

    return terms
