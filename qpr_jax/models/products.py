"""Matrix products of the encoders, in the data type and the precision that settings name."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax


def product(
    spec: str, left: jax.Array, right: jax.Array, *, dtype: str, precision: lax.PrecisionLike
) -> jax.Array:
    """The product of two float32 arrays, float32.

    Args:
      spec: as of `jnp.einsum`, "nlh,ho->nlo"; each index is in two of the three terms, or in all.
      left: float32; in a mapped function `left` and `right` must vary alike (`lax.pcast`).
      right: float32.
      dtype: "float32", or "bfloat16": the factors of this product, and those of its gradient, are
        rounded to bfloat16, and all sums are float32.
      precision: of float32 products and of their gradients.
    """
    if dtype == "bfloat16":
        return _bfloat16_product(spec, left, right)
    return jnp.einsum(spec, left, right, precision=precision, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _bfloat16_product(spec: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return _rounded_product(spec, left, right)


def _forward(
    spec: str, left: jax.Array, right: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    return _rounded_product(spec, left, right), (left, right)


def _backward(
    spec: str, factors: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # JAX's own gradient would multiply the float32 gradient by the bfloat16 factor, in float32.
    left, right = factors
    terms, of_result = spec.split("->")
    of_left, of_right = terms.split(",")
    return (
        _rounded_product(f"{of_result},{of_right}->{of_left}", gradient, right),
        _rounded_product(f"{of_left},{of_result}->{of_right}", left, gradient),
    )


_bfloat16_product.defvjp(_forward, _backward)


def _rounded_product(spec: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(
        spec,
        left.astype(jnp.bfloat16),
        right.astype(jnp.bfloat16),
        preferred_element_type=jnp.float32,
    )
