"""Inference of a BERT: compiled layer by layer, its inputs split over all local devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.models import BertShape
from qpr_jax.models.bert import BertEncoder, BertLayer, init_bert


class Runtime(NamedTuple):
    """A compiled model.

    encode: maps token ids, int32 [n, L], padded with -1 on the right, to float32 [n, d], or [n] for
    a `PairScorer`, without waiting for the result; also their segments, int32 [n, L], or None.
    devices: n is a multiple of it. device_tokens: the best n L / devices.
    """

    encode: Callable[..., jax.Array]
    devices: int
    device_tokens: int

    def fill(
        self,
        results: np.ndarray,
        ids: Sequence[Sequence[int]],
        max_tokens: int,
        widths: Sequence[int],
        segments: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Write the result of each list of token ids to its row of `results`.

        Lists of about one length are a block. Each shape is compiled: n is a power of two for each
        device, and L one of `widths` or `max_tokens`.
        """
        widths = [*(width for width in widths if width < max_tokens), max_tokens]
        width_of = np.searchsorted(widths, np.array([len(row) for row in ids], np.int64))
        started = []
        for i in np.unique(width_of):
            group, width = np.flatnonzero(width_of == i), widths[i]
            size = self.devices << max(0, (self.device_tokens // width).bit_length() - 1)
            for start in range(0, len(group), size):
                rows = group[start : start + size]
                share = -(-len(rows) // self.devices)
                shape = (self.devices << (share - 1).bit_length(), width)
                types = None if segments is None else _padded(segments, rows, shape, 0)
                started.append((rows, self.encode(_padded(ids, rows, shape, -1), types)))
        # Results are read when all work is started, so that no device waits for the host.
        for rows, encoded in started:
            results[rows] = np.asarray(encoded)[: len(rows)]


def _padded(
    lists: Sequence[Sequence[int]], rows: np.ndarray, shape: tuple[int, int], fill: int
) -> np.ndarray:
    block = np.full(shape, fill, np.int32)
    for at, row in enumerate(rows):
        block[at, : len(lists[row])] = lists[row]
    return block


def compile_layers(
    shape: BertShape,
    weights: Mapping[str, Any],
    precision: str = "highest",
    model: type[BertEncoder] = BertEncoder,
) -> Runtime:
    """Create the runtime of a `model` with `weights`, pure nested dictionaries.

    A single layer is compiled for each shape of a block, and called with the weights of each.
    `precision` is of float32 products, as JAX names it.
    """
    mesh = Mesh(np.array(jax.local_devices()), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    graph, params = init_bert(shape, weights, "float32", precision, model)
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    layers = [nnx.split(layer) for layer in nnx.merge(graph, params).layers]
    layer_graph = layers[0][0]  # the same for all layers

    def encode(token_ids: np.ndarray, segments: np.ndarray | None = None) -> jax.Array:
        inputs = jax.device_put((token_ids, segments), split)
        x, mask = _apply(_embed, graph, split, params, *inputs)
        for _, layer in layers:
            x = _apply(BertLayer.__call__, layer_graph, split, layer, x, mask)
        return cast(jax.Array, _apply(model.pool, graph, split, params, x, mask))

    # Half as many or four times as many are slower on a CPU; a GPU needs many to be busy.
    device_tokens = 1024 if mesh.devices.flat[0].platform == "cpu" else 65_536
    return Runtime(encode, mesh.size, device_tokens)


def _embed(
    encoder: BertEncoder, token_ids: jax.Array, segments: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    x = encoder.embed(encoder.embedding[jnp.maximum(token_ids, 0)], segments)
    return x, token_ids >= 0


# At module level, so that encoders of one shape, which a training creates, are compiled once.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _apply(
    method: Callable[..., Any],
    graph: nnx.GraphDef,
    split: NamedSharding,
    params: nnx.State,
    *arrays: jax.Array | None,
) -> Any:
    """Apply a method of a module, whose results are split over the devices as its inputs are."""
    return lax.with_sharding_constraint(method(nnx.merge(graph, params), *arrays), split)
