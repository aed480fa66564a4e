"""The convolutional question encoder in Flax NNX, and its maximum over time with its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from qpr_jax.arrays import in_tiles, join_tiles, product, unit_vectors
from qpr_jax.models import EMBEDDING_SCALE, embedding_norm

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
        precision: str = "highest",
        rngs: nnx.Rngs,
    ) -> None:
        """Draw the weights: `filters` of each size, products of `compute_dtype` and `precision`."""
        lecun = nnx.initializers.lecun_normal(in_axis=(-3, -2), batch_axis=())
        self.compute_dtype, self.precision = compute_dtype, precision
        self.bag_of_words, self.normalize = bag_of_words, normalize
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

    def encode_blocks(
        self,
        unique_ids: jax.Array,
        blocks: Sequence[jax.Array],
        *,
        chunk: int = 0,
        axis_name: Hashable | None = None,
        sums: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    ) -> jax.Array:
        """Encode blocks of questions that share a list of unique token ids.

        Args:
          unique_ids: int32 [U], token ids; the first is 0 (padding).
          blocks: int32 [n_b, L_b] each, rows of `unique_ids`, zero-padded on the right.
          chunk: questions that are encoded at a time; see `Pooling`. 0: all of a block.
          axis_name: the mapped axis that the questions are split over, if any.
          sums: of tokens whose embeddings are sums of rows: the rows, int32 [P], 0 for none; the
            position in `unique_ids` of the token that each is added to, int32 [P]; and the limits
            of `SubwordBags`, float32 [U], 0 for other tokens.

        Returns:
          float32 [sum of n_b, output_dim], in the order of the blocks.
        """
        embedded = self._rows(unique_ids)
        if sums is not None:
            rows, tokens, limits = sums
            embedded = _limit_norms(embedded.at[tokens].add(self._rows(rows)), limits)
        kernels = [kernel[...] for kernel in self.kernels]
        dense = ([bias[...] for bias in self.biases], self.projection[...])
        if axis_name is not None:  # so that the gradient is summed over the devices once
            kernels, dense = lax.pcast((kernels, dense), axis_name, to="varying")
        sizes = tuple(kernel.shape[1] for kernel in kernels)
        source: Any = embedded, kernels
        # A TPU rounds the factors of products of the precision "default" to bfloat16.
        convolution = "default" if self.compute_dtype == "bfloat16" else self.precision
        if not convolves():
            source, convolution = [self._table(embedded, kernel) for kernel in kernels], ""

        def project(weights: Any, maxima: list[jax.Array], ids: jax.Array) -> jax.Array:
            biases, projection, bag = weights
            features = [jnp.tanh(m + bias[None]) for m, bias in zip(maxima, biases, strict=True)]
            if self.bag_of_words:
                count = jnp.maximum((ids > 0).sum(axis=1, keepdims=True), 1)
                features.append(bag[ids].sum(axis=1) / jnp.sqrt(count))
            vectors = self._product(jnp.concatenate(features, axis=1), projection)
            return unit_vectors(vectors) if self.normalize else vectors

        head_weights = (*dense, embedded if self.bag_of_words else None)
        block_ids = tuple(map(jnp.asarray, blocks))
        pooling = Pooling(project, sizes, chunk, convolution=convolution)
        return conv_max_pool(pooling, source, head_weights, block_ids)

    def _rows(self, ids: jax.Array) -> jax.Array:
        """Return rows of the embedding table, zeros for padding: float32 [n, e]."""
        return jnp.where((ids > 0)[:, None], self.embedding[ids], 0)

    def _table(self, embedded: jax.Array, kernel: jax.Array) -> jax.Array:
        """Multiply each token by each slice of a kernel: float32 [U * size, f]."""
        width, _, filters = kernel.shape
        return self._product(embedded, kernel.reshape(width, -1)).reshape(-1, filters)

    def _product(self, left: jax.Array, right: jax.Array) -> jax.Array:
        return product("ij,jk->ik", left, right, dtype=self.compute_dtype, precision=self.precision)


def _limit_norms(embedded: jax.Array, limits: jax.Array) -> jax.Array:
    """Scale rows of a larger norm to their limit; 0: none."""
    most = jnp.where(limits > 0, limits * embedding_norm(embedded.shape[1]), 1)
    norms = jnp.sqrt(jnp.maximum(jnp.square(embedded).sum(axis=1), most**2))
    return embedded * jnp.where(limits > 0, most / norms, 1)[:, None]


def convolves() -> bool:
    """Choose by platform: convolve, or add rows of tables of products.

    Tables need fewer operations, since a product is computed once for a unique token. But each
    maximum then gives its gradient to one number for each place of its kernel. A CPU and a GPU
    scatter single numbers well; a TPU sorts them first, and has operations to spare.
    """
    return jax.default_backend() == "tpu"


class Pooling(NamedTuple):
    """How questions are pooled."""

    # (weights, the maxima [n, f] of each kernel, ids [n, L]) -> [n, d], each question by itself.
    head: Callable[[Any, list[jax.Array], jax.Array], jax.Array]
    kernel_sizes: tuple[int, ...]  # tokens that a position covers, for each kernel
    # Process at most this number of questions at a time, store none of their maxima and recompute
    # them for the gradient; 0: store the maxima.
    chunk: int = 0
    max_scores: int = MAX_SCORES  # positions times filters, in memory at a time
    convolution: str = ""  # the precision of its products; "": add rows of tables


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def conv_max_pool(pooling: Pooling, *arrays: Any) -> jax.Array:
    """Score positions, take the maximum over time, and apply the head.

    The score of a position is the sum of the products of the tokens that the kernel covers. Where
    positions tie, the gradient goes to the first. Returns float32 [sum of n_b, d].

    arrays: where the scores come from; the weights of the head, a tree, which must vary over the
      devices as the former do (`lax.pcast`); and a tuple of blocks, int32 [n_b, L_b] each, of
      unique tokens, zero-padded on the right. Scores come from the embeddings, float32 [U, e], and
      kernels, float32 [e, size, f] each; or from a list of tables, float32 [U * size, f] each,
      whose row u * size + k is the product of token u with the k-th slice of a kernel. Token 0 is
      padding.

    Source of the chunks: Gao, Zhang, Han and Callan (2021), "Scaling Deep Contrastive Learning
    Batch Size under Memory Limited Setup".
    """
    return _forward(pooling, *arrays)[0]


def _forward(
    pooling: Pooling, source: Any, weights: Any, blocks: tuple[jax.Array, ...]
) -> tuple[jax.Array, Any]:
    def encode(ids: jax.Array) -> Any:
        pooled = _maxima(pooling, source, ids)
        return pooling.head(weights, pooled[0], ids), None if pooling.chunk else pooled

    vectors, stored = [], []
    for block in blocks:
        size = _tile_size(pooling, block, source)
        result, pooled = lax.map(encode, in_tiles(block, size))
        vectors.append(join_tiles(result, len(block)))
        stored.append(pooled)
    return jnp.concatenate(vectors), (source, weights, blocks, stored)


def _backward(pooling: Pooling, residuals: Any, gradient: jax.Array) -> tuple[Any, Any, None]:
    source, weights, blocks, stored = residuals

    def step(sums: Any, inputs: Any) -> tuple[Any, None]:
        source_gradients, weight_gradients = sums
        ids, gradient, pooled = inputs
        maxima, positions = pooled or _maxima(pooling, source, ids)
        head_vjp = jax.vjp(lambda w, m: pooling.head(w, m, ids), weights, maxima)[1]
        added, maxima_gradients = head_vjp(gradient)
        by_kernel = [*zip(positions, maxima_gradients, strict=True)]
        if pooling.convolution:
            source_gradients = _convolve_back(pooling, source_gradients, source, by_kernel, ids)
        else:
            source_gradients = _scatter(pooling, source_gradients, by_kernel, ids)
        return (source_gradients, jax.tree.map(jnp.add, weight_gradients, added)), None

    # One sum for all blocks: a table is the largest array of a step.
    sums = jax.tree.map(jnp.zeros_like, (source, weights))
    start = 0
    for block, pooled in zip(blocks, stored, strict=True):
        size = _tile_size(pooling, block, source)
        block_gradient = gradient[start : start + len(block)]
        inputs = (in_tiles(block, size), in_tiles(block_gradient, size), pooled)
        sums, _ = lax.scan(step, sums, inputs)
        start += len(block)
    return *sums, None


conv_max_pool.defvjp(_forward, _backward)


def _tile_size(pooling: Pooling, block: jax.Array, source: Any) -> int:
    """Return how many questions of a block are encoded at a time."""
    widest = max(array.shape[-1] for array in jax.tree.leaves(source))
    scores = max(1, block.shape[1]) * widest
    return max(1, min(pooling.chunk or len(block), pooling.max_scores // scores))


def _scores(pooling: Pooling, source: Any, ids: jax.Array) -> list[jax.Array]:
    """Return the score of each position of some questions, [n, L, f] for each kernel."""
    if not pooling.convolution:
        tables = zip(source, pooling.kernel_sizes, strict=True)
        return [
            functools.reduce(jnp.add, (table[rows] for rows in _table_rows(ids, size)))
            for table, size in tables
        ]
    embedded, kernels = source
    tokens = embedded[ids]
    return [
        lax.conv_general_dilated(
            tokens,
            kernel,
            window_strides=(1,),
            padding=[(size // 2, size - 1 - size // 2)],
            dimension_numbers=("NWC", "IWO", "NWC"),
            precision=pooling.convolution,
        )
        for kernel, size in zip(kernels, pooling.kernel_sizes, strict=True)
    ]


def _table_rows(ids: jax.Array, size: int) -> list[jax.Array]:
    """Return the table's row for each place of the kernel at each position, [n, L] each."""
    left = size // 2
    padded = jnp.pad(ids, ((0, 0), (left, size - 1 - left)))
    return [padded[:, k : k + ids.shape[1]] * size + k for k in range(size)]


def _maxima(
    pooling: Pooling, source: Any, ids: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return the maxima of each kernel and their positions, [n, f] each."""
    maxima, first = [], []
    for scores in _scores(pooling, source, ids):
        positions = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        inside = (ids > 0)[:, :, None] | (positions == 0)
        scores = jnp.where(inside, scores, -jnp.inf)
        maximum = scores.max(axis=1)
        maxima.append(maximum)
        if pooling.convolution:  # a TPU computes both with the convolution
            first.append(lax.argmax(scores, 1, jnp.int32))
            continue
        # Two reductions, since one over pairs of value and position is four times slower.
        candidates = jnp.where(scores == maximum[:, None], positions, ids.shape[1])
        first.append(candidates.min(axis=1))
    return maxima, first


def _scatter(pooling: Pooling, tables: Any, by_kernel: Any, ids: jax.Array) -> list[jax.Array]:
    """Add the gradients of the maxima of some questions to those of the tables."""
    added = []
    for table, size, (position, gradient) in zip(
        tables, pooling.kernel_sizes, by_kernel, strict=True
    ):
        filters = jnp.arange(table.shape[1])[None]
        # Each filter's gradient goes to the tokens of one position only: scattering single numbers
        # takes a quarter of the time of scattering whole rows, which are mostly 0.
        for rows in _table_rows(ids, size):
            table = table.at[jnp.take_along_axis(rows, position, axis=1), filters].add(gradient)
        added.append(table)
    return added


def _convolve_back(pooling: Pooling, sums: Any, source: Any, by_kernel: Any, ids: jax.Array) -> Any:
    """Add the gradients of the maxima of some questions to those of embeddings and kernels."""
    places = jnp.arange(ids.shape[1])[None, :, None]
    slopes = [jnp.where(places == at[:, None], slope[:, None], 0) for at, slope in by_kernel]
    added = jax.vjp(lambda source: _scores(pooling, source, ids), source)[1](slopes)[0]
    return jax.tree.map(jnp.add, sums, added)
