"""The convolutional question encoder in Flax NNX."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from qpr_jax.arrays import unit_vectors
from qpr_jax.models.conv_max_pool import conv_max_pool
from qpr_jax.models.products import product

EMBEDDING_SCALE = 0.1
MAX_SCORES = 1 << 23  # 32 MiB, which fit the cache of a CPU


class ConvEncoder(nnx.Module):
    """Token embeddings, convolution, tanh, maximum over time, linear projection.

    A kernel of size w at position i covers the tokens i - w // 2 to i - w // 2 + w - 1; beyond
    the ends of the question the embedding is zero. The maximum is over the question's own
    positions (the first one for an empty question), and before the tanh: tanh is monotone, so
    the value is the same and each filter needs a single tanh. The projection has no bias, since
    distances would not depend on it.

    With `bag_of_words` the projection's input includes the sum of the question's token embeddings,
    divided by the square root of their number. The paper's encoder has no such input: a token that
    wins no maximum leaves no trace in its vector. With `normalize` vectors have length 1.

    Source: Bonadiman, Kumar and Mittal (2019), section 2.1.1, equation (1).
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        embedding_dim: int = 300,
        kernel_sizes: Sequence[int] = (5,),
        filters: int = 300,
        output_dim: int = 300,
        bag_of_words: bool = False,
        normalize: bool = False,
        compute_dtype: str = "float32",
        precision: str | lax.PrecisionLike = "highest",
        rngs: nnx.Rngs,
    ) -> None:
        """Draw the weights.

        Args:
          vocabulary_size: rows of the embedding table.
          embedding_dim: its columns.
          kernel_sizes: tokens that each convolution covers.
          filters: of each convolution.
          output_dim: length of a vector.
          bag_of_words: project the scaled sum of token embeddings, too.
          normalize: scale vectors to length 1.
          compute_dtype: of matrix products and of those of their gradients.
          precision: of float32 products, as JAX names it.
          rngs: Flax random streams.
        """
        lecun = nnx.initializers.lecun_normal(in_axis=(-3, -2), batch_axis=())
        self.compute_dtype, self.precision = compute_dtype, precision
        self.bag_of_words = bag_of_words
        self.normalize = normalize
        self.embedding = nnx.Param(
            EMBEDDING_SCALE * jax.random.normal(rngs.params(), (vocabulary_size, embedding_dim))
        )
        self.kernels = nnx.List(
            nnx.Param(lecun(rngs.params(), (embedding_dim, size, filters))) for size in kernel_sizes
        )
        self.biases = nnx.List(nnx.Param(jnp.zeros(filters)) for _ in kernel_sizes)
        features = len(kernel_sizes) * filters + bag_of_words * embedding_dim
        self.projection = nnx.Param(
            nnx.initializers.lecun_normal()(rngs.params(), (features, output_dim))
        )

    def __call__(self, token_ids: jax.Array) -> jax.Array:
        """Encode token ids, int32 [n, L], zero-padded on the right, to float32 [n, output_dim]."""
        unique_ids = jnp.concatenate([jnp.zeros(1, token_ids.dtype), token_ids.ravel()])
        rows = jnp.arange(1, token_ids.size + 1, dtype=jnp.int32).reshape(token_ids.shape)
        return self.encode_blocks(unique_ids, [jnp.where(token_ids > 0, rows, 0)])

    def encode_blocks(
        self,
        unique_ids: jax.Array,
        blocks: Sequence[jax.Array],
        *,
        chunk: int = 0,
        axis_name: Hashable | None = None,
        sums: tuple[jax.Array, jax.Array] | None = None,
    ) -> jax.Array:
        """Encode blocks of questions that share a list of unique token ids.

        A convolution is a sum of products of one token each, so each product is computed once for a
        unique token of the batch instead of once for each occurrence.

        Args:
          unique_ids: int32 [U], token ids; the first is 0 (padding).
          blocks: int32 [n_b, L_b] each, rows of `unique_ids`, zero-padded on the right.
          chunk: questions that are encoded at a time; see `conv_max_pool`. 0: all of a block.
          axis_name: the mapped axis that the questions are split over, if any.
          sums: of tokens whose embeddings are sums of rows: token ids int32 [P], the rows, 0 for
            none, and int32 [P], the position in `unique_ids` of the token that each is added to.

        Returns:
          float32 [sum of n_b, output_dim], in the order of the blocks.
        """
        embedded = self._rows(unique_ids)
        if sums is not None:
            embedded = embedded.at[sums[1]].add(self._rows(sums[0]))
        tables, kernel_sizes = [], []
        for kernel in self.kernels:
            width, size, filters = kernel.shape
            weights = kernel[...].reshape(width, -1)
            if axis_name is not None:  # so that the gradient is summed over the devices once
                weights = lax.pcast(weights, axis_name, to="varying")
            table = self._product(embedded, weights)
            tables.append(table.reshape(-1, filters))
            kernel_sizes.append(size)

        def project(weights: Any, maxima: list[jax.Array], ids: jax.Array) -> jax.Array:
            biases, projection, bag = weights
            features = [jnp.tanh(m + bias[None]) for m, bias in zip(maxima, biases, strict=True)]
            if self.bag_of_words:
                features.append(_scaled_sum(bag, ids))
            vectors = self._product(jnp.concatenate(features, axis=1), projection)
            if self.normalize:
                vectors = unit_vectors(vectors)
            return vectors

        dense = ([bias[...] for bias in self.biases], self.projection[...])
        if axis_name is not None:
            dense = lax.pcast(dense, axis_name, to="varying")
        head_weights = (*dense, embedded if self.bag_of_words else None)
        block_ids = tuple(map(jnp.asarray, blocks))
        sizes = tuple(kernel_sizes)
        return conv_max_pool(project, sizes, chunk, MAX_SCORES, tables, head_weights, block_ids)

    def _rows(self, ids: jax.Array) -> jax.Array:
        """Rows of the embedding table, zeros for padding: float32 [n, e]."""
        return jnp.where((ids > 0)[:, None], self.embedding[ids], 0)

    def _product(self, left: jax.Array, right: jax.Array) -> jax.Array:
        return product("ij,jk->ik", left, right, dtype=self.compute_dtype, precision=self.precision)


def _scaled_sum(embedded: jax.Array, ids: jax.Array) -> jax.Array:
    """Sum the rows `ids` [n, L] and divide by the root of their number; 0 is padding."""
    count = jnp.maximum((ids > 0).sum(axis=1, keepdims=True), 1)
    return embedded[ids].sum(axis=1) / jnp.sqrt(count)
