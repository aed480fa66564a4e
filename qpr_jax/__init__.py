"""Large-scale question paraphrase retrieval with smoothed deep metric learning, in JAX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qpr_jax.errors import UserError
    from qpr_jax.retriever import Hit, Recipe, Retriever

__all__ = ["Hit", "Recipe", "Retriever", "UserError"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import on first use: a retriever must not pay for JAX, nor a training for FAISS."""
    if name not in __all__:
        raise AttributeError(f"module 'qpr_jax' has no attribute {name!r}")
    module = "errors" if name == "UserError" else "retriever"
    return getattr(importlib.import_module(f"qpr_jax.{module}"), name)
