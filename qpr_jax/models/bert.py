"""BERT-family sentence encoders in Flax NNX."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from qpr_jax.encoders.sentence_transformers import BertShape

_SMALLEST_NORM = 1e-12


class BertLayer(nnx.Module):
    """Self-attention and a feed-forward network, each added to its input, then normalised.

    Source: Vaswani et al. (2017), section 3; Devlin et al. (2019): GELU, normalisation last.
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
        """Vectors [n, L, h] of words, of which bool [n, L] are there, to vectors [n, L, h]."""
        *places, size = x.shape
        query, key, value = (
            part(x).reshape(*places, self.heads, size // self.heads)
            for part in (self.query, self.key, self.value)
        )
        attended = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None, None, :])
        x = self.attended_norm(x + self.output(attended.reshape(x.shape)))
        return self.norm(x + self.narrow(jax.nn.gelu(self.widen(x), approximate=False)))


class BertEncoder(nnx.Module):
    """Word, position and type embeddings, layers, pooling; the vectors of sentence-transformers.

    Source: Reimers and Gurevych (2019).
    """

    def __init__(self, shape: BertShape, *, compute_dtype: str = "float32", rngs: nnx.Rngs) -> None:
        """Draw the weights; `compute_dtype` of the products, vectors and norms are float32."""
        dtype, size = jnp.dtype(compute_dtype), shape.hidden_size
        self.shape = shape

        def drawn(rows: int) -> nnx.Param:
            return nnx.Param(0.02 * jax.random.normal(rngs.params(), (rows, size)))

        self.embedding = drawn(shape.vocab_size)
        self.positions = drawn(shape.max_position_embeddings)
        self.types = drawn(shape.type_vocab_size)
        self.norm = nnx.LayerNorm(size, epsilon=shape.layer_norm_eps, rngs=rngs)
        self.layers = nnx.List(
            BertLayer(shape, dtype, rngs) for _ in range(shape.num_hidden_layers)
        )

    def __call__(self, words: jax.Array) -> jax.Array:
        """Encode word ids, int32 [n, L], zero-padded on the right, to float32 [n, hidden_size]."""
        return self._encode(self._stacked(), self.embedding[words], words > 0)

    def encode_blocks(
        self,
        distinct: jax.Array,
        blocks: Sequence[jax.Array],
        *,
        chunk: int = 0,
        axis_name: Hashable | None = None,
    ) -> jax.Array:
        """Encode blocks of questions that share a list of distinct words.

        As `ConvEncoder.encode_blocks`; of more than `chunk` questions the layers' work is not kept
        but done again for the gradient.
        """
        graph, params = nnx.split(self)
        if axis_name is not None:  # so that their gradient is summed over the devices once
            params = jax.tree.map(lambda a: lax.pcast(a, axis_name, to="varying"), params)
        here = nnx.merge(graph, params)
        embedded, layers = here.embedding[distinct], here._stacked()

        def encode(block: jax.Array) -> jax.Array:
            return here._encode(layers, embedded[block], block > 0)

        vectors = []
        for block in map(jnp.asarray, blocks):
            alike = len(block) - len(block) % chunk if chunk else 0
            if alike:
                parts = block[:alike].reshape(-1, chunk, block.shape[1])
                vectors.append(
                    lax.map(jax.checkpoint(encode), parts).reshape(alike, self.shape.hidden_size)
                )
            if alike < len(block):
                vectors.append(encode(block[alike:]))
        return jnp.concatenate(vectors)

    def start(self, embedded: jax.Array) -> jax.Array:
        """What the first layer takes, [n, L, h], of the embeddings of words."""
        return self.norm(embedded + (self.positions[: embedded.shape[1]] + self.types[:1])[None])

    def end(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Vectors of questions, float32 [n, h], of what the last layer gives for their words."""
        vectors = _pooled(x.astype(jnp.float32), mask, self.shape.pooling)
        if self.shape.normalize:
            norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / jnp.maximum(norms, _SMALLEST_NORM)
        return vectors

    def _stacked(self) -> tuple[nnx.GraphDef, nnx.State]:
        """What a layer is, and the parameters of all, stacked."""
        graphs, params = zip(*map(nnx.split, self.layers), strict=True)
        return graphs[0], jax.tree.map(lambda *arrays: jnp.stack(arrays), *params)

    def _encode(
        self, layers: tuple[nnx.GraphDef, nnx.State], embedded: jax.Array, mask: jax.Array
    ) -> jax.Array:
        graph, params = layers

        def through(x: jax.Array, layer: nnx.State) -> tuple[jax.Array, None]:
            return nnx.merge(graph, layer)(x, mask), None

        # A loop, so that one layer is compiled for each width and not all.
        x, _ = lax.scan(through, self.start(embedded), params)
        return self.end(x, mask)


def init_bert(
    shape: BertShape, weights: Mapping[str, Any], compute_dtype: str
) -> tuple[nnx.GraphDef, nnx.State]:
    """The structure of an encoder and its parameters, which are weights, pure and nested."""
    graph, params = nnx.split(
        nnx.eval_shape(lambda: BertEncoder(shape, compute_dtype=compute_dtype, rngs=nnx.Rngs(0)))
    )
    nnx.replace_by_pure_dict(params, dict(weights))
    return graph, params


def _pooled(x: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    if pooling == "cls":
        return x[:, 0]
    there = mask[:, :, None]
    if pooling == "max":
        return jnp.where(there, x, -jnp.inf).max(axis=1)
    return jnp.where(there, x, 0).sum(axis=1) / jnp.maximum(there.sum(axis=1), 1)
