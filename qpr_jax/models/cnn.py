"""The convolutional question encoder in Flax NNX."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from qpr_jax.models.conv_max_pool import conv_max_pool

EMBEDDING_SCALE = 0.1
SMALLEST_SQUARE = 1e-12  # of a length that a vector is divided by


class ConvEncoder(nnx.Module):
    """Word embeddings, convolution, tanh, maximum over time, linear projection.

    A window of w words at position i covers the words i - w // 2 to i - w // 2 + w - 1; beyond
    the ends of the question the embedding is zero. The maximum is taken over the question's own
    positions (the first one for an empty question), and before the tanh: tanh is monotone, so
    the value is the same and tanh is taken once a filter. The projection has no bias, which no
    distance would see.

    With `bag_of_words` the projection also gets the sum of the question's word embeddings, divided
    by the root of their number. The paper's encoder has none: its maxima tell which words are
    there only as far as they win one. With `normalize` vectors have length 1.

    Source: Bonadiman, Kumar and Mittal (2019), section 2.1.1, equation (1).
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        embedding_dim: int = 300,
        windows: Sequence[int] = (5,),
        filters: int = 300,
        output_dim: int = 300,
        bag_of_words: bool = False,
        normalize: bool = False,
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ) -> None:
        """Draw the weights; `filters` of each of the `windows`, `compute_dtype` of the products."""
        lecun = nnx.initializers.lecun_normal(in_axis=(-3, -2), batch_axis=())
        self.compute_dtype = compute_dtype
        self.bag_of_words = bag_of_words
        self.normalize = normalize
        self.embedding = nnx.Param(
            EMBEDDING_SCALE * jax.random.normal(rngs.params(), (vocabulary_size, embedding_dim))
        )
        self.kernels = nnx.List(
            nnx.Param(lecun(rngs.params(), (embedding_dim, window, filters))) for window in windows
        )
        self.biases = nnx.List(nnx.Param(jnp.zeros(filters)) for _ in windows)
        features = len(windows) * filters + bag_of_words * embedding_dim
        self.projection = nnx.Param(
            nnx.initializers.lecun_normal()(rngs.params(), (features, output_dim))
        )

    def __call__(self, words: jax.Array) -> jax.Array:
        """Encode word ids, int32 [n, L], zero-padded on the right, to float32 [n, output_dim]."""
        distinct = jnp.concatenate([jnp.zeros(1, words.dtype), words.ravel()])
        positions = jnp.arange(1, words.size + 1, dtype=jnp.int32).reshape(words.shape)
        return self.encode_blocks(distinct, [jnp.where(words > 0, positions, 0)])

    def encode_blocks(
        self,
        distinct: jax.Array,
        blocks: Sequence[jax.Array],
        *,
        chunk: int = 0,
        axis_name: Hashable | None = None,
    ) -> jax.Array:
        """Encode blocks of questions that share a list of distinct words.

        A convolution is a sum of per-word products, so each product is made once for a distinct
        word of the batch and not once for a token.

        Args:
          distinct: int32 [U], word ids; the first is 0 (padding).
          blocks: int32 [n_b, L_b] each, positions in `distinct`, zero-padded on the right.
          chunk: questions that are encoded at a time; see `conv_max_pool`. 0: all of a block.
          axis_name: the mapped axis that the questions are split over, if any.

        Returns:
          float32 [sum of n_b, output_dim], in the order of the blocks.
        """
        embedded = jnp.where((distinct > 0)[:, None], self.embedding[distinct], 0)
        tables, windows = [], []
        for kernel in self.kernels:
            width, window, filters = kernel.shape
            table = self._product(embedded, kernel[...].reshape(width, -1))
            tables.append(table.reshape(-1, filters))
            windows.append(window)

        def project(weights: Any, maxima: list[jax.Array], ids: jax.Array) -> jax.Array:
            biases, projection, bag = weights
            features = [jnp.tanh(m + bias[None]) for m, bias in zip(maxima, biases, strict=True)]
            if self.bag_of_words:
                features.append(_scaled_sum(bag, ids))
            vectors = self._product(jnp.concatenate(features, axis=1), projection)
            if self.normalize:
                squares = (vectors**2).sum(axis=1, keepdims=True)
                vectors *= lax.rsqrt(jnp.maximum(squares, SMALLEST_SQUARE))
            return vectors

        dense = ([bias[...] for bias in self.biases], self.projection[...])
        if axis_name is not None:  # so that their gradient is summed over the devices once
            dense = lax.pcast(dense, axis_name, to="varying")
        weights = (*dense, embedded if self.bag_of_words else None)
        return conv_max_pool(
            project, tuple(windows), chunk, tables, weights, tuple(map(jnp.asarray, blocks))
        )

    def _product(self, left: jax.Array, right: jax.Array) -> jax.Array:
        dtype = jnp.dtype(self.compute_dtype)
        return jnp.matmul(
            left.astype(dtype),
            right.astype(dtype),
            precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )


def _scaled_sum(embedded: jax.Array, ids: jax.Array) -> jax.Array:
    """Sum of the rows `ids` [n, L] over the root of their number, padding (row 0) apart."""
    count = jnp.maximum((ids > 0).sum(axis=1, keepdims=True), 1)
    return embedded[ids].sum(axis=1) / jnp.sqrt(count)
