"""BERT-family sentence encoders in Flax NNX."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from qpr_jax.models.bert_shape import BertShape
from qpr_jax.unit_vectors import unit_vectors


class BertLayer(nnx.Module):
    """Self-attention and a feed-forward network, each with a residual and layer normalization.

    Source: Vaswani et al. (2017), section 3; Devlin et al. (2019): GELU, normalization last.
    """

    def __init__(self, shape: BertShape, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        """Draw the weights."""
        size, inner = shape.hidden_size, shape.intermediate_size
        self.heads = shape.num_attention_heads
        self.query, self.key, self.value, self.output = (
            nnx.Linear(size, size, dtype=dtype, rngs=rngs) for _ in range(4)
        )
        self.widen = nnx.Linear(size, inner, dtype=dtype, rngs=rngs)
        self.narrow = nnx.Linear(inner, size, dtype=dtype, rngs=rngs)
        self.attended_norm, self.norm = (
            nnx.LayerNorm(size, epsilon=shape.layer_norm_eps, rngs=rngs) for _ in range(2)
        )

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Map token vectors [n, L, h] to [n, L, h]; `mask`, bool [n, L], is False at padding."""
        *positions, size = x.shape
        query, key, value = (
            linear(x).reshape(*positions, self.heads, size // self.heads)
            for linear in (self.query, self.key, self.value)
        )
        attended = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None, None, :])
        x = self.attended_norm(x + self.output(attended.reshape(x.shape)))
        return self.norm(x + self.narrow(jax.nn.gelu(self.widen(x), approximate=False)))


class BertEncoder(nnx.Module):
    """Token, position and type embeddings, layers, pooling; the vectors of sentence-transformers.

    Source: Reimers and Gurevych (2019).
    """

    def __init__(self, shape: BertShape, *, compute_dtype: str = "float32", rngs: nnx.Rngs) -> None:
        """Draw the weights; only matrix products use `compute_dtype`, all else is float32."""
        dtype, size = jnp.dtype(compute_dtype), shape.hidden_size
        self.shape = shape

        def init_table(rows: int) -> nnx.Param:
            return nnx.Param(0.02 * jax.random.normal(rngs.params(), (rows, size)))

        self.embedding = init_table(shape.vocab_size)
        self.positions = init_table(shape.max_position_embeddings)
        self.types = init_table(shape.type_vocab_size)
        self.norm = nnx.LayerNorm(size, epsilon=shape.layer_norm_eps, rngs=rngs)
        self.layers = nnx.List(
            BertLayer(shape, dtype, rngs) for _ in range(shape.num_hidden_layers)
        )

    def __call__(self, token_ids: jax.Array) -> jax.Array:
        """Encode token ids, int32 [n, L], zero-padded on the right, to float32 [n, hidden_size]."""
        return self._encode(self._stack_layers(), self.embedding[token_ids], token_ids > 0)

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
        encoder = nnx.merge(graph, params)
        embedded, layers = encoder.embedding[unique_ids], encoder._stack_layers()

        def encode(block: jax.Array) -> jax.Array:
            return encoder._encode(layers, embedded[block], block > 0)

        vectors = []
        for block in map(jnp.asarray, blocks):
            chunked = len(block) - len(block) % chunk if chunk else 0
            if chunked:
                chunks = block[:chunked].reshape(-1, chunk, block.shape[1])
                encoded = lax.map(jax.checkpoint(encode), chunks)
                vectors.append(encoded.reshape(chunked, -1))
            if chunked < len(block):
                vectors.append(encode(block[chunked:]))
        return jnp.concatenate(vectors)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Compute the first layer's input from token embeddings [n, L, h]."""
        return self.norm(tokens + (self.positions[: tokens.shape[1]] + self.types[:1])[None])

    def pool(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Compute the vectors of questions, float32 [n, h], from the last layer's output."""
        vectors = _pool(x.astype(jnp.float32), mask, self.shape.pooling)
        if self.shape.normalize:
            vectors = unit_vectors(vectors)
        return vectors

    def _stack_layers(self) -> tuple[nnx.GraphDef, nnx.State]:
        """The structure of a layer, and the parameters of all layers, stacked."""
        graphs, params = zip(*map(nnx.split, self.layers), strict=True)
        return graphs[0], jax.tree.map(lambda *arrays: jnp.stack(arrays), *params)

    def _encode(
        self, layers: tuple[nnx.GraphDef, nnx.State], embedded: jax.Array, mask: jax.Array
    ) -> jax.Array:
        graph, params = layers

        def apply_layer(x: jax.Array, layer: nnx.State) -> tuple[jax.Array, None]:
            return nnx.merge(graph, layer)(x, mask), None

        # A scan, so that a single layer is compiled for each width.
        x, _ = lax.scan(apply_layer, self.embed(embedded), params)
        return self.pool(x, mask)


def init_bert(
    shape: BertShape, weights: Mapping[str, Any], compute_dtype: str
) -> tuple[nnx.GraphDef, nnx.State]:
    """Create an encoder with the given weights (pure nested dictionaries): graph and parameters."""
    graph, params = nnx.split(
        nnx.eval_shape(lambda: BertEncoder(shape, compute_dtype=compute_dtype, rngs=nnx.Rngs(0)))
    )
    nnx.replace_by_pure_dict(params, dict(weights))
    return graph, params


def _pool(x: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    if pooling == "cls":
        return x[:, 0]
    mask = mask[:, :, None]
    if pooling == "max":
        return jnp.where(mask, x, -jnp.inf).max(axis=1)
    return jnp.where(mask, x, 0).sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)
