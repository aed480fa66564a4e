"""A BERT as it is run: compiled a layer at a time, its questions shared by all local devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.encoders.sentence_transformers import BertShape
from qpr_jax.models.bert import init_bert

_AXIS = "data"
# Words of a device's share of a block: what a CPU's caches hold (with half as many or four times as
# many it is slower), and what keeps any other device busy, in a few GiB.
_WORDS, _WORDS_OF_OTHERS = 1024, 65_536


class Runtime(NamedTuple):
    """A compiled encoder.

    encode: ids of words, int32 [n, L], -1 on the right where there is none, to float32 [n, d] that
    may still be in the making. devices: n is a multiple of their number. words: n L / devices that
    suits them.
    """

    encode: Callable[[np.ndarray], jax.Array]
    devices: int
    words: int


def compile_layers(shape: BertShape, weights: Mapping[str, Any], compute_dtype: str) -> Runtime:
    """The encoder of weights, pure and nested.

    For each shape of a block one layer is compiled, and called with the weights of all.
    """
    mesh = Mesh(np.array(jax.local_devices()), (_AXIS,))
    whole, shared = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(_AXIS))
    graph, params = init_bert(shape, weights, compute_dtype)
    params = jax.device_put(params, whole)
    layers = [nnx.split(layer) for layer in nnx.merge(graph, params).layers]
    layer_graph = layers[0][0]  # that of all
    # Else GPUs and TPUs shorten the factors of float32 products.
    precision = "highest" if compute_dtype == "float32" else "default"

    def encode(words: np.ndarray) -> jax.Array:
        x, mask = _start(graph, shared, params, jax.device_put(words, shared))
        for _, layer in layers:
            x = _through(layer_graph, shared, precision, layer, x, mask)
        return _end(graph, shared, params, x, mask)

    words = _WORDS if mesh.devices.flat[0].platform == "cpu" else _WORDS_OF_OTHERS
    return Runtime(encode, mesh.size, words)


# Of the module, so that encoders of one shape, as a training makes them, are compiled once.


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(
    graph: nnx.GraphDef, shared: NamedSharding, params: nnx.State, words: jax.Array
) -> tuple[jax.Array, jax.Array]:
    encoder = nnx.merge(graph, params)
    x = encoder.start(encoder.embedding[jnp.maximum(words, 0)])
    return lax.with_sharding_constraint((x, words >= 0), shared)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _through(
    graph: nnx.GraphDef,
    shared: NamedSharding,
    precision: str,
    params: nnx.State,
    x: jax.Array,
    mask: jax.Array,
) -> jax.Array:
    with jax.default_matmul_precision(precision):
        return lax.with_sharding_constraint(nnx.merge(graph, params)(x, mask), shared)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _end(
    graph: nnx.GraphDef, shared: NamedSharding, params: nnx.State, x: jax.Array, mask: jax.Array
) -> jax.Array:
    vectors = nnx.merge(graph, params).end(x, mask)
    return lax.with_sharding_constraint(vectors, shared)
