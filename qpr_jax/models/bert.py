"""BERT-family networks in Flax NNX: a sentence encoder, a scorer of pairs, and their inference.

Inference is compiled for each shape, and its inputs are split over all local devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.arrays import in_tiles, join_tiles, product, unit_vectors
from qpr_jax.models import BertShape

# Token counts that texts are padded to; JAX compiles once for each. Most pairs have 16 to 40. An
# accelerator computes padding fast, but compiles for half a minute.
_CPU_WIDTHS = (8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 192, 256, 384)
_ACCELERATOR_WIDTHS = (16, 32, 128)
_FAR = 128  # of an MPNet: the distance of two tokens from which on all have the last bucket


class BertLayer(nnx.Module):
    """Self-attention and a feed-forward network, each with a residual and layer normalization.

    Source: Vaswani et al. (2017), section 3; Devlin et al. (2019): GELU, normalization last.
    """

    def __init__(
        self, shape: BertShape, dtype: str, precision: lax.PrecisionLike, rngs: nnx.Rngs
    ) -> None:
        """Draw the weights; `dtype` and `precision` are of the products."""
        size, inner = shape.hidden_size, shape.intermediate_size
        self.heads = shape.num_attention_heads
        self.dtype, self.precision = dtype, precision
        self.query, self.key, self.value, self.output = (
            nnx.Linear(size, size, rngs=rngs) for _ in range(4)
        )
        self.widen = nnx.Linear(size, inner, rngs=rngs)
        self.narrow = nnx.Linear(inner, size, rngs=rngs)
        self.attended_norm, self.norm = (
            nnx.LayerNorm(size, epsilon=shape.layer_norm_eps, rngs=rngs) for _ in range(2)
        )

    def __call__(self, x: jax.Array, mask: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        """Map token vectors [n, L, h] to [n, L, h].

        mask: bool [n, L], False at padding. bias: [heads, L, L], added to the scores of attention.
        """
        *positions, size = x.shape
        query, key, value = (
            self._apply(linear, x).reshape(*positions, self.heads, size // self.heads)
            for linear in (self.query, self.key, self.value)
        )
        attended = self._attend(query, key, value, mask, bias).reshape(x.shape)
        x = self.attended_norm(x + self._apply(self.output, attended))
        wide = jax.nn.gelu(self._apply(self.widen, x), approximate=False)
        return self.norm(x + self._apply(self.narrow, wide))

    def _attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array,
        bias: jax.Array | None,
    ) -> jax.Array:
        """Scaled dot-product attention of each head, [n, L, heads, h / heads].

        Not `jax.nn.dot_product_attention`, whose gradient multiplies float32 by bfloat16. Heads go
        before positions, since XLA's CPU backend refuses some bfloat16 products of other orders.
        """
        query, key, value = (array.swapaxes(1, 2) for array in (query, key, value))
        scores = self._product("nhqd,nhkd->nhqk", query, key) / math.sqrt(query.shape[-1])
        scores = scores if bias is None else scores + bias[None]
        scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
        attended = self._product("nhqk,nhkd->nhqd", jax.nn.softmax(scores), value)
        return attended.swapaxes(1, 2)

    def _apply(self, linear: nnx.Linear, x: jax.Array) -> jax.Array:
        return _apply(linear, x, self.dtype, self.precision)

    def _product(self, spec: str, left: jax.Array, right: jax.Array) -> jax.Array:
        return product(spec, left, right, dtype=self.dtype, precision=self.precision)


class BertEncoder(nnx.Module):
    """Token, position and type embeddings, layers, pooling; the vectors of sentence-transformers.

    Source: Reimers and Gurevych (2019). An MPNet also adds a number of each head for the distance
    of two tokens to the scores of attention (Song et al. 2020, https://arxiv.org/abs/2004.09297).
    """

    def __init__(
        self,
        shape: BertShape,
        *,
        compute_dtype: str = "float32",
        precision: str | lax.PrecisionLike = "highest",
        rngs: nnx.Rngs,
    ) -> None:
        """Draw the weights; `compute_dtype` and `precision` are of the products, as in a layer."""
        size, self.shape = shape.hidden_size, shape
        rows = shape.vocab_size, shape.max_position_embeddings, shape.type_vocab_size
        self.embedding, self.positions, self.types = (
            nnx.Param(0.02 * jax.random.normal(rngs.params(), (count, size))) for count in rows
        )
        if count := shape.relative_attention_num_buckets:
            self.distances = nnx.Param(jnp.zeros((count, shape.num_attention_heads)))
        self.norm = nnx.LayerNorm(size, epsilon=shape.layer_norm_eps, rngs=rngs)
        self.layers = nnx.List(
            BertLayer(shape, compute_dtype, precision, rngs) for _ in range(shape.num_hidden_layers)
        )

    def encode_blocks(
        self,
        unique_ids: jax.Array,
        blocks: Sequence[jax.Array],
        *,
        chunk: int = 0,
        axis_name: Hashable | None = None,
    ) -> jax.Array:
        """Encode blocks of questions that share a list of unique token ids.

        Arguments and result as of `ConvEncoder.encode_blocks`. With a `chunk`, activations are not
        stored but recomputed for the gradient, `chunk` questions at a time.
        """
        graph, params = nnx.split(self)
        if axis_name is not None:  # so that the gradient is summed over the devices once
            params = jax.tree.map(lambda a: lax.pcast(a, axis_name, to="varying"), params)
        model = nnx.merge(graph, params)

        def encode(block: jax.Array) -> jax.Array:
            return model(jnp.where(block > 0, unique_ids[block], -1))

        vectors = []
        for block in map(jnp.asarray, blocks):
            if chunk:
                tiles = lax.map(jax.checkpoint(encode), in_tiles(block, chunk))
                vectors.append(join_tiles(tiles, len(block)))
            else:
                vectors.append(encode(block))
        return jnp.concatenate(vectors)

    def __call__(self, token_ids: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """Encode questions of token ids, int32 [n, L], padded with -1 on the right: float32 [n, h].

        segments: int32 [n, L], rows of `types`; None: all 0.
        """
        mask, tokens = token_ids >= 0, self.embedding[jnp.maximum(token_ids, 0)]
        types = self.types[None, :1] if segments is None else self.types[segments]
        x = self.norm(tokens + self.positions[None, : token_ids.shape[1]] + types)
        bias = None
        if count := self.shape.relative_attention_num_buckets:
            found = distance_buckets(token_ids.shape[1], count)
            bias = self.distances[...][found].transpose(2, 0, 1)
        # No scan: its gradient copies what each layer keeps, which takes time and memory.
        for layer in self.layers:
            x = layer(x, mask, bias)
        return self.pool(x, mask)

    def pool(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Compute the vectors of questions, float32 [n, h], from the last layer's output."""
        x, mask = x.astype(jnp.float32), mask[:, :, None]
        if self.shape.pooling == "cls":
            vectors = x[:, 0]
        elif self.shape.pooling == "max":
            vectors = jnp.where(mask, x, jnp.finfo(x.dtype).min).max(axis=1)
        else:
            vectors = jnp.where(mask, x, 0).sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)
        return unit_vectors(vectors) if self.shape.normalize else vectors


class PairScorer(BertEncoder):
    """`[CLS] a [SEP] b [SEP]` to a logit: BERT, a pooler over the first token, a linear output.

    A call returns logits, float32 [n], instead of vectors. The tokens of `b` and the second `[SEP]`
    are of segment 1. The parameters are those of `BertForSequenceClassification` with one label;
    the dropout of its training is left out.

    Source: Devlin et al. (2019), section 4.1; Nogueira and Cho (2019), "Passage Re-ranking with
    BERT".
    """

    def __init__(self, shape: BertShape, *, rngs: nnx.Rngs, **products: Any) -> None:
        """Draw the weights; arguments as of `BertEncoder`, whose pooling is not used."""
        super().__init__(shape, rngs=rngs, **products)
        self.pooler = nnx.Linear(shape.hidden_size, shape.hidden_size, rngs=rngs)
        self.classifier = nnx.Linear(shape.hidden_size, 1, rngs=rngs)

    def pool(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Compute the logits, float32 [n], from the last layer's output [n, L, h]."""
        # In float32 whatever the layers' products are: it is a vector for each pair.
        products = ("float32", lax.Precision.HIGHEST)
        pooled = jnp.tanh(_apply(self.pooler, x[:, :1].astype(jnp.float32), *products))
        return _apply(self.classifier, pooled, *products)[:, 0, 0]


def init_bert(
    shape: BertShape,
    weights: Mapping[str, Any],
    compute_dtype: str,
    precision: str | lax.PrecisionLike = "highest",
    model: type[BertEncoder] = BertEncoder,
) -> tuple[nnx.GraphDef, nnx.State]:
    """Create a model with the given weights (pure nested dictionaries): graph and parameters."""
    products: dict[str, Any] = {"compute_dtype": compute_dtype, "precision": precision}
    graph, params = nnx.split(nnx.eval_shape(lambda: model(shape, rngs=nnx.Rngs(0), **products)))
    nnx.replace_by_pure_dict(params, dict(weights))
    return graph, params


def _apply(linear: nnx.Linear, x: jax.Array, dtype: str, precision: lax.PrecisionLike) -> jax.Array:
    kernel, bias = linear.kernel[...], cast(nnx.Param, linear.bias)[...]
    products = product("nlh,ho->nlo", x, kernel, dtype=dtype, precision=precision)
    return products + bias[None, None]


def distance_buckets(length: int, count: int) -> np.ndarray:
    """Return the bucket of the distance from each token to each other: int64 [length, length].

    Half of the buckets are of each side. Half of these are of one distance each, the others of
    distances that grow by a factor, to `_FAR`.
    """
    side = count // 2
    near = side // 2
    distances = np.arange(length)[None, :] - np.arange(length)[:, None]
    sizes = np.abs(distances)
    share = np.log(np.maximum(sizes, 1) / near) / np.log(_FAR / near)
    far = np.minimum(near + (share * (side - near)).astype(np.int64), side - 1)
    return np.where(distances > 0, side, 0) + np.where(sizes < near, sizes, far)


def choose_widths(max_tokens: int) -> list[int]:
    """Return the widths of texts on the default backend: on an accelerator at most four."""
    widths = _CPU_WIDTHS if jax.default_backend() == "cpu" else _ACCELERATOR_WIDTHS
    return [*(width for width in widths if width < max_tokens), max_tokens]


class Runtime:
    """A model with its weights on all local devices."""

    def __init__(
        self,
        shape: BertShape,
        weights: Mapping[str, Any],
        precision: str = "highest",
        model: type[BertEncoder] = BertEncoder,
    ) -> None:
        """Put weights, nested dictionaries, on the devices. precision: of float32 products."""
        mesh = Mesh(np.array(jax.local_devices()), ("data",))
        self._split = NamedSharding(mesh, PartitionSpec("data"))
        self._graph, params = init_bert(shape, weights, "float32", precision, model)
        self._params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        self._devices = mesh.size
        # Half as many or four times as many are slower on a CPU; a GPU needs many to be busy.
        # The texts of a device are a power of `_base`, or fill it, as each number is compiled.
        cpu = jax.default_backend() == "cpu"
        self._device_tokens, self._base = (1024, 2) if cpu else (65_536, 8)

    def encode(self, token_ids: np.ndarray, segments: np.ndarray | None = None) -> jax.Array:
        """Call the model without waiting for the result; n is a multiple of the devices."""
        inputs = jax.device_put((token_ids, segments), self._split)
        return _call(self._graph, self._split, self._params, *inputs)

    def fill(
        self,
        results: np.ndarray,
        ids: Sequence[Sequence[int]],
        max_tokens: int,
        segments: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Write the result of each list of token ids to its row of `results`.

        Lists of about one length are a block. Each shape is compiled: L is one of `choose_widths`.
        """
        widths = choose_widths(max_tokens)
        width_of = np.searchsorted(widths, np.array([len(row) for row in ids], np.int64))
        started = []
        for i in np.unique(width_of):
            group, width = np.flatnonzero(width_of == i), widths[i]
            size = self._devices << max(0, (self._device_tokens // width).bit_length() - 1)
            for start in range(0, len(group), size):
                rows = group[start : start + size]
                share = 1
                while share * self._devices < len(rows):
                    share *= self._base
                shape = (min(size, share * self._devices), width)
                types = None if segments is None else padded(segments, rows, shape, 0)
                started.append((rows, self.encode(padded(ids, rows, shape, -1), types)))
        # Results are read when all work is started, so that no device waits for the host.
        for rows, encoded in started:
            results[rows] = np.asarray(encoded)[: len(rows)]


def padded(
    lists: Sequence[Sequence[int]], rows: np.ndarray, shape: tuple[int, int], fill: int
) -> np.ndarray:
    """Return rows of lists in an array, int32 of this shape, `fill` where they are shorter."""
    block = np.full(shape, fill, np.int32)
    for at, row in enumerate(rows):
        block[at, : len(lists[row])] = lists[row]
    return block


# At module level, so that encoders of one shape, which a training creates, are compiled once.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _call(
    graph: nnx.GraphDef, split: NamedSharding, params: nnx.State, *inputs: jax.Array | None
) -> jax.Array:
    """Call the model; results are split over the devices as the inputs are."""
    return lax.with_sharding_constraint(nnx.merge(graph, params)(*inputs), split)
