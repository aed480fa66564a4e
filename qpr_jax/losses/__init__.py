"""Losses: pure functions of a batch's vectors, loaded on first use, since they load JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from qpr_jax.errors import needs

if TYPE_CHECKING:
    from qpr_jax.losses.contrastive import contrastive_loss, online_contrastive_loss
    from qpr_jax.losses.imitation import imitation_loss, similarities_loss
    from qpr_jax.losses.ranking import ranking_loss
    from qpr_jax.losses.sdml import sdml_loss
    from qpr_jax.losses.triplet import triplet_loss

__all__ = [
    "contrastive_loss",
    "imitation_loss",
    "online_contrastive_loss",
    "ranking_loss",
    "sdml_loss",
    "similarities_loss",
    "triplet_loss",
]

# Of functions whose module has another name.
_MODULES = {"online_contrastive_loss": "contrastive", "similarities_loss": "imitation"}

if not TYPE_CHECKING:  # else a type checker would find every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _MODULES.get(name, name.removesuffix("_loss"))
        with needs("the losses", ".[train]"):
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
