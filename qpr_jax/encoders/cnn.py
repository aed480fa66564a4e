"""The convolutional question encoder in Flax NNX."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

EMBEDDING_SCALE = 0.1


class ConvEncoder(nnx.Module):
    """Word embeddings, convolution, tanh, maximum over time, linear projection.

    A window of w words at position i covers the words i - w // 2 to i - w // 2 + w - 1; beyond
    the ends of the question the embedding is zero. The maximum is taken over the question's own
    positions (the first one for an empty question), and before the tanh: tanh is monotone, so
    the value is the same and tanh is taken once a filter. The projection has no bias, which no
    distance would see.

    With `bag_of_words` the projection also gets the sum of the question's word embeddings, divided
    by the root of their number. The paper's encoder has none: its maxima tell which words are
    there only as far as they win one.

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
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ) -> None:
        """Draw the weights; `filters` of each of the `windows`, `compute_dtype` of the products."""
        lecun = nnx.initializers.lecun_normal(in_axis=(-3, -2), batch_axis=())
        self.compute_dtype = compute_dtype
        self.bag_of_words = bag_of_words
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

    def encode_blocks(self, distinct: jax.Array, blocks: Sequence[jax.Array]) -> jax.Array:
        """Encode blocks of questions that share a list of distinct words.

        A convolution is a sum of per-word products, so each product is made once for a distinct
        word of the batch and not once for a token.

        Args:
          distinct: int32 [U], word ids; the first is 0 (padding).
          blocks: int32 [n_b, L_b] each, positions in `distinct`, zero-padded on the right.

        Returns:
          float32 [sum of n_b, output_dim], in the order of the blocks.
        """
        embedded = jnp.where((distinct > 0)[:, None], self.embedding[distinct], 0)
        features = []
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            width, window, filters = kernel.shape
            table = self._product(embedded, kernel[...].reshape(width, -1)).reshape(-1, filters)
            pooled = jnp.concatenate([max_over_time(table, block, window) for block in blocks])
            features.append(jnp.tanh(pooled + bias[...][None]))
        if self.bag_of_words:
            features.append(jnp.concatenate([_scaled_sum(embedded, block) for block in blocks]))
        return self._product(jnp.concatenate(features, axis=1), self.projection[...])

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def max_over_time(table: jax.Array, ids: jax.Array, window: int) -> jax.Array:
    """Maximum over a question's positions of the sum over the window of the words' products.

    Args:
      table: float32 [U * window, f]; row u * window + k is the product of word u with the k-th
        slice of the kernel; word 0 is padding.
      ids: int32 [n, L], words of the table, zero-padded on the right.
      window: words that a position covers.

    Returns:
      float32 [n, f]. Where positions tie, the gradient goes to the first.
    """
    return _maximum(table, ids, window)[0]


def _table_rows(ids: jax.Array, window: int) -> list[jax.Array]:
    """The rows of the table that each place of the window meets at each position, [n, L] each."""
    left = window // 2
    padded = jnp.pad(ids, ((0, 0), (left, window - 1 - left)))
    return [padded[:, k : k + ids.shape[1]] * window + k for k in range(window)]


def _maximum(table: jax.Array, ids: jax.Array, window: int) -> tuple[jax.Array, jax.Array]:
    """The maximum and its position, in one pass that never stores the products of all tokens."""
    scores = functools.reduce(jnp.add, (table[rows] for rows in _table_rows(ids, window)))
    positions = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    own = (ids > 0)[:, :, None] | (positions == 0)

    def larger_or_first(a: list[jax.Array], b: list[jax.Array]) -> list[jax.Array]:
        keep = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return [jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])]

    scores = jnp.where(own, scores, -jnp.inf)
    maximum, position = lax.reduce(
        [scores, positions], [jnp.float32(-jnp.inf), jnp.int32(ids.shape[1])], larger_or_first, (1,)
    )
    return maximum, position


def _forward(
    table: jax.Array, ids: jax.Array, window: int
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    maximum, position = _maximum(table, ids, window)
    return maximum, (table, ids, position)


def _backward(
    window: int, saved: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, None]:
    table, ids, position = saved
    filters = jnp.arange(table.shape[1])[None]
    result = jnp.zeros_like(table)
    # Each filter's gradient goes to the words of one position only: numbers scattered one by one
    # are a quarter of the time of whole rows that are mostly 0.
    for rows in _table_rows(ids, window):
        result = result.at[jnp.take_along_axis(rows, position, axis=1), filters].add(gradient)
    return result, None


max_over_time.defvjp(_forward, _backward)
