"""Inference of a BERT: compiled for each shape, its inputs split over all local devices."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.models import BertShape
from qpr_jax.models.bert import BertEncoder, init_bert

# Token counts that texts are padded to; JAX compiles once for each. Most pairs have 16 to 40. An
# accelerator computes padding fast, but compiles for half a minute.
_CPU_WIDTHS = (8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 192, 256, 384)
_ACCELERATOR_WIDTHS = (16, 32, 128)


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
        """Put the weights, pure nested dictionaries, on the devices.

        `precision` is of float32 products, as JAX names it.
        """
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
