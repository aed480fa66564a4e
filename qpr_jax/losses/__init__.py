"""From two batches of vectors to a scalar: pure functions of arrays."""

from qpr_jax.losses.sdml import sdml_loss

__all__ = ["sdml_loss"]
