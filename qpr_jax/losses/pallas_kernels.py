"""The two GPU kernels of `pallas_softmax`: sums over the negatives, and the gradient's products.

Both have one shape. A program owns a block of rows of one side, the anchors, and walks over all
rows of the other side, the others. Scores of a tile exist in registers alone. Either side of the
loss can be the anchors, so that no program adds to the rows of another.

Neither has run on a GPU. Speed was reasoned about for Hopper, and not measured:

- Products: 2 N^2 d operations for the sums, and 4 N^2 d for the gradient of each side, which
  computes the scores again: 10 N^2 d, and 12 with both directions. Adding to both gradients from
  one kernel would need 8, but N^2 d / 64 atomic additions in device memory, which take longer.
- A block of anchors stays in shared memory, and a tile of others is read once for both products.
  64 rows of anchors are what `wgmma` needs at least. All programs walk in the same order, so the
  programs that run at one time read a tile from the L2 cache, not from memory. At the full rate of
  products 64 rows read 64 bytes a cycle and processor for the sums, a fifth of the operations,
  which may be more than the cache gives, and 32 for the gradient.
- Two programs fit a processor, so that one computes exponentials while the other multiplies.
- For d = 300 in `bf16` Triton 3.9 takes 64 x 32 rows with 80.5 KiB, `wgmma`, and 255 registers with
  56 bytes spilled. The other
  precisions get fewer rows into 99 KiB and use `mma.sync`; `highest` uses no tensor cores.
- Scores are in units of log 2: one multiplication and addition, and `exp2` without another. The
  gradient's exponent holds the sum over all candidates, so that there is one `exp2` a direction.
- Operands are cast once, outside. In `bf16` half the bytes are read.
- d is cut into chunks of a power of two, which Triton requires, without padding d to one.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from qpr_jax.losses.pallas_blocks import Blocks, chunks
from qpr_jax.losses.pallas_by_hand import run_by_hand

LOG2E = math.log2(math.e)
# A maximum before any logit was seen: finite, so that no difference of infinities is NaN.
_LOWEST = -1e30
# The parts of two operands that are multiplied, small products first.
_PRODUCTS = {1: ((0, 0),), 2: ((1, 0), (0, 1), (0, 0))}


class Side(NamedTuple):
    """The queries or the candidates, padded to whole blocks; all but `parts` and `keys` float32.

    Attributes:
      parts: the vectors as operands of products, one or two of [rows, width].
      keys: int32 [rows]; rows of both sides with one key are no negatives; -1 for padding.
      squares: [rows], times log2 e.
      lse: [rows], of all logits of the row as an anchor, times log2 e; infinity if it is none.
      share: [rows], the target of a negative.
    """

    parts: tuple[jax.Array, ...]
    keys: jax.Array
    squares: jax.Array
    lse: jax.Array
    share: jax.Array


def split(values: jax.Array, precision: str) -> tuple[jax.Array, ...]:
    """Round float32 values to one or two operands of a product of this precision."""
    if precision == "highest":
        return (values,)
    if precision == "bf16":
        return (values.astype(jnp.bfloat16),)
    # Bits, since a compiler may drop a cast to few bits and back.
    bits = lax.bitcast_convert_type(values, jnp.int32)
    if precision == "tf32":  # which the GPU would cut off
        rounded = (bits + np.int32(1 << 12)) & np.int32(-1 << 13)
        rounded = lax.bitcast_convert_type(rounded, jnp.float32)
        return (jnp.where(values == values, rounded, values),)
    high = lax.bitcast_convert_type(bits & np.int32(-1 << 16), jnp.float32)
    return high.astype(jnp.bfloat16), (values - high).astype(jnp.bfloat16)


def softmax_sums(
    anchors: Side, others: Side, blocks: Blocks, precision: str, *, totals: bool, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """The log of the sum of exp over each anchor's negatives, and the sum of their logits.

    Returns:
      float32 [rows] twice; the second is 0 unless `totals`.
    """
    rows = len(anchors.keys)
    out = _like(anchors.keys, (rows,))
    kernel = functools.partial(
        _sums_kernel, parts=len(anchors.parts), blocks=blocks, precision=precision, totals=totals
    )
    inputs = (*anchors.parts, anchors.keys, *others.parts, others.keys, others.squares)
    return _call(kernel, inputs, len(anchors.parts) + 1, [out, out], blocks, interpret)


def softmax_products(
    anchors: Side,
    others: Side,
    blocks: Blocks,
    precision: str,
    *,
    directions: tuple[bool, bool],
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """The slopes of each anchor's logits times the vectors of the others, and their sum.

    `directions`: whether the anchors, and the others, are what a softmax is of.

    Returns:
      float32 [rows, width] and [rows].
    """
    rows, width = anchors.parts[0].shape
    out = [_like(anchors.keys, (rows, width)), _like(anchors.keys, (rows,))]
    kernel = functools.partial(
        _products_kernel,
        parts=len(anchors.parts),
        blocks=blocks,
        precision=precision,
        directions=directions,
    )
    inputs = (*anchors.parts, *anchors[1:], *others.parts, *others[1:])
    return _call(kernel, inputs, len(anchors.parts) + 4, out, blocks, interpret)


def _like(array: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """A float32 output that differs between devices as `array` does."""
    varying = jax.typeof(array).manual_axis_type
    return jax.ShapeDtypeStruct(shape, jnp.float32, manual_axis_type=varying)


def _call(
    kernel: Any, inputs: Any, blocked: int, out: Any, blocks: Blocks, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """Run a program on each block of the first `blocked` inputs and of the outputs."""

    def block(array: Any) -> pl.BlockSpec:
        zeros = (0,) * (len(array.shape) - 1)
        return pl.BlockSpec((blocks.anchors, *array.shape[1:]), lambda i: (i, *zeros))

    if interpret and jax.typeof(inputs[0]).manual_axis_type.varying:
        return run_by_hand(kernel, inputs, blocked, out, blocks.anchors)
    first, second = pl.pallas_call(
        kernel,
        grid=(out[0].shape[0] // blocks.anchors,),
        in_specs=[block(array) for array in inputs[:blocked]]
        + [pl.BlockSpec() for _ in inputs[blocked:]],
        out_specs=[block(array) for array in out],
        out_shape=out,
        # This also names the backend: the default one refuses these products.
        compiler_params=plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=interpret,
        name=kernel.func.__name__.strip("_"),
    )(*inputs)
    return first, second


def _load(refs: Any, rows: Any) -> list[list[jax.Array]]:
    """The column chunks of each part of some rows."""
    return [
        [ref[rows, pl.ds(start, chunk)] for start, chunk in chunks(ref.shape[1])] for ref in refs
    ]


def _dot(left: jax.Array, right: jax.Array, precision: str, *, transposed: bool) -> jax.Array:
    highest = precision == "highest"  # else, for float32 operands, Triton multiplies in TF32
    return plgpu.dot(
        left,
        right,
        trans_b=transposed,
        precision=lax.Precision.HIGHEST if highest else lax.Precision.DEFAULT,
    )


def _scores(anchors: Any, others: Any, precision: str) -> jax.Array:
    """2 x.y of a block and a tile, times log2 e."""
    return (2 * LOG2E) * functools.reduce(
        jnp.add,
        (
            _dot(left, right, precision, transposed=True)
            for i, j in _PRODUCTS[len(anchors)]
            for left, right in zip(anchors[i], others[j], strict=True)
        ),
    )


def _hidden(anchor_keys: jax.Array, keys: jax.Array) -> jax.Array:
    return (anchor_keys[:, None] == keys[None]) | (keys == -1)[None]


def _sums_kernel(*refs: Any, parts: int, blocks: Blocks, precision: str, totals: bool) -> None:
    (*anchor_refs, keys_ref), rest = refs[: parts + 1], refs[parts + 1 :]
    other_refs, (other_keys_ref, squares_ref, lse_ref, total_ref) = rest[:parts], rest[parts:]
    vectors, keys = _load(anchor_refs, slice(None)), keys_ref[...]

    def step(i: jax.Array, carry: Any) -> Any:
        top, summed, total = carry
        here = pl.ds(i * np.int32(blocks.others), blocks.others)
        logits = _scores(vectors, _load(other_refs, here), precision) - squares_ref[here][None]
        hidden = _hidden(keys, other_keys_ref[here])
        shown = jnp.where(hidden, -jnp.inf, logits)
        above = jnp.maximum(top, shown.max(axis=1))
        summed = summed * jnp.exp2(top - above) + jnp.exp2(shown - above[:, None]).sum(axis=1)
        if totals:
            total += jnp.where(hidden, 0.0, logits).sum(axis=1)
        return above, summed, total

    zeros = jnp.zeros_like(keys, jnp.float32)
    tiles = np.int32(other_keys_ref.shape[0] // blocks.others)
    top, summed, total = lax.fori_loop(np.int32(0), tiles, step, (zeros + _LOWEST, zeros, zeros))
    lse_ref[...] = top / LOG2E + jnp.log(summed)
    total_ref[...] = total / LOG2E


def _products_kernel(
    *refs: Any, parts: int, blocks: Blocks, precision: str, directions: tuple[bool, bool]
) -> None:
    side = parts + 4
    anchor_refs, other_refs = refs[:side], refs[side : 2 * side]
    out_ref, sums_ref = refs[2 * side :]
    vectors = _load(anchor_refs[:parts], slice(None))
    keys, squares, lse, share = (ref[...] for ref in anchor_refs[parts:])
    columns = chunks(out_ref.shape[1])

    def step(i: jax.Array, carry: Any) -> Any:
        products, sums = carry
        here = pl.ds(i * np.int32(blocks.others), blocks.others)
        others = _load(other_refs[:parts], here)
        rows = (ref[here] for ref in other_refs[parts:])
        other_keys, other_squares, other_lse, other_share = rows
        scores = _scores(vectors, others, precision)
        slopes = jnp.zeros_like(scores)
        if directions[0]:
            exponent = (scores - other_squares[None]) - lse[:, None]
            slopes += jnp.exp2(exponent) - share[:, None]
        if directions[1]:
            exponent = (scores - other_lse[None]) - squares[:, None]
            slopes += jnp.exp2(exponent) - other_share[None]
        rounded = split(jnp.where(_hidden(keys, other_keys), 0.0, slopes), precision)
        products = [
            functools.reduce(
                jnp.add,
                (
                    _dot(rounded[i], others[j][chunk], precision, transposed=False)
                    for i, j in _PRODUCTS[parts]
                ),
                product,
            )
            for chunk, product in enumerate(products)
        ]
        # Of the slopes as they were multiplied. Then a rounding error of a slope adds as much of
        # x - y to the gradient, never of x or y alone, which may lie far from each other's center.
        for part in rounded:
            sums += part.astype(jnp.float32).sum(axis=1)
        return products, sums

    zeros = jnp.zeros_like(keys, jnp.float32)
    start = [jnp.zeros_like(zeros, shape=(blocks.anchors, chunk)) for _, chunk in columns]
    tiles = np.int32(other_refs[parts].shape[0] // blocks.others)
    products, sums = lax.fori_loop(np.int32(0), tiles, step, (start, zeros))
    for (first, chunk), product in zip(columns, products, strict=True):
        out_ref[:, pl.ds(first, chunk)] = product
    sums_ref[...] = sums
