"""BERT-family networks in Flax NNX: a sentence encoder and a scorer of pairs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from qpr_jax.arrays import in_tiles, join_tiles, product, unit_vectors
from qpr_jax.models import BertShape


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

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Map token vectors [n, L, h] to [n, L, h]; `mask`, bool [n, L], is False at padding."""
        *positions, size = x.shape
        query, key, value = (
            self._apply(linear, x).reshape(*positions, self.heads, size // self.heads)
            for linear in (self.query, self.key, self.value)
        )
        attended = self._attend(query, key, value, mask).reshape(x.shape)
        x = self.attended_norm(x + self._apply(self.output, attended))
        wide = jax.nn.gelu(self._apply(self.widen, x), approximate=False)
        return self.norm(x + self._apply(self.narrow, wide))

    def _attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array
    ) -> jax.Array:
        """Scaled dot-product attention of each head, [n, L, heads, h / heads].

        Not `jax.nn.dot_product_attention`, whose gradient multiplies float32 by bfloat16. Heads go
        before positions, since XLA's CPU backend refuses some bfloat16 products of other orders.
        """
        query, key, value = (array.swapaxes(1, 2) for array in (query, key, value))
        scores = self._product("nhqd,nhkd->nhqk", query, key) / math.sqrt(query.shape[-1])
        scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
        attended = self._product("nhqk,nhkd->nhqd", jax.nn.softmax(scores), value)
        return attended.swapaxes(1, 2)

    def _apply(self, linear: nnx.Linear, x: jax.Array) -> jax.Array:
        return _apply(linear, x, self.dtype, self.precision)

    def _product(self, spec: str, left: jax.Array, right: jax.Array) -> jax.Array:
        return product(spec, left, right, dtype=self.dtype, precision=self.precision)


class BertEncoder(nnx.Module):
    """Token, position and type embeddings, layers, pooling; the vectors of sentence-transformers.

    Source: Reimers and Gurevych (2019).
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
        # No scan: its gradient copies what each layer keeps, which takes time and memory.
        for layer in self.layers:
            x = layer(x, mask)
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
        how = ("float32", lax.Precision.HIGHEST)
        pooled = jnp.tanh(_apply(self.pooler, x[:, :1].astype(jnp.float32), *how))
        return _apply(self.classifier, pooled, *how)[:, 0, 0]


def init_bert(
    shape: BertShape,
    weights: Mapping[str, Any],
    compute_dtype: str,
    precision: str | lax.PrecisionLike = "highest",
    model: type[BertEncoder] = BertEncoder,
) -> tuple[nnx.GraphDef, nnx.State]:
    """Create a model with the given weights (pure nested dictionaries): graph and parameters."""
    how: dict[str, Any] = {"compute_dtype": compute_dtype, "precision": precision}
    graph, params = nnx.split(nnx.eval_shape(lambda: model(shape, rngs=nnx.Rngs(0), **how)))
    nnx.replace_by_pure_dict(params, dict(weights))
    return graph, params


def _apply(linear: nnx.Linear, x: jax.Array, dtype: str, precision: lax.PrecisionLike) -> jax.Array:
    kernel, bias = linear.kernel[...], cast(nnx.Param, linear.bias)[...]
    products = product("nlh,ho->nlo", x, kernel, dtype=dtype, precision=precision)
    return products + bias[None, None]
