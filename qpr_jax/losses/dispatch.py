"""The choice of how a loss over N x N scores is computed: dense, in tiles, or by a GPU kernel."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jax.typing import DTypeLike

from qpr_jax.losses.choices import IMPLEMENTATIONS
from qpr_jax.losses.distances import check_choice
from qpr_jax.tuning import CPU, GPU, Tuning, default_tuning

# Platforms on which "auto" is the fused kernel: none, until it has run on a GPU. That it compiles
# says neither that it is right there nor that it is faster.
PALLAS_PLATFORMS: tuple[str, ...] = ()

Tile = int | Literal["auto"] | None
Implementation = Literal["auto", "xla", "pallas"]


class Method(NamedTuple):
    """How to compute the loss.

    Attributes:
      name: "dense", all scores at once; "autodiff_tiles", any loss of rows; "tiled_softmax", a
        gradient written by hand, for some losses, and faster for these at any size;
        "pallas_softmax", the same as fused GPU kernels, whose blocks are their own matter.
      tile: rows of a tile; None if dense or a kernel.
    """

    name: Literal["dense", "autodiff_tiles", "tiled_softmax", "pallas_softmax"]
    tile: int | None

    def __str__(self) -> str:
        if self.name == "pallas_softmax":
            return "in a fused kernel"
        return f"{self.tile} rows a tile" if self.tile else "all at once"


def choose_method(
    tile: Tile,
    rows: int,
    columns: int,
    *,
    distance: str,
    prior: str,
    implementation: Implementation = "auto",
    tuning: Tuning | None = None,
    dtype: DTypeLike = "float32",
) -> Method:
    """Choose how to compute a softmax loss over `rows` x `columns` scores.

    Args:
      tile: rows of a tile, None for dense, or "auto" to choose by the size.
      rows: queries of this device.
      columns: candidates of all devices.
      distance: one of `choices.SCORES`.
      prior: one of `choices.PRIORS`.
      implementation: "xla", dense or in tiles; "pallas", the fused kernel, which does not read
        `tile`; "auto": see `PALLAS_PLATFORMS`.
      tuning: the platform and its constants; None: of JAX's first device. A CPU interprets the
        kernel, slowly.
      dtype: of the vectors.

    Raises:
      ValueError: `tile` or `implementation` is none of the above, or the kernel lacks the loss,
        the type or the platform.

    Example:
      >>> choose_method("auto", 4096, 4096, distance="ssd", prior="uniform")
      Method(name='tiled_softmax', tile=512)
    """
    tuning = tuning or default_tuning()
    platform = tuning.platform
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    by_hand = distance in ("ssd", "dot") and prior == "uniform"
    if tile not in ("auto", None) and (
        isinstance(tile, bool) or not isinstance(tile, int | np.integer) or tile < 1
    ):
        raise ValueError(f'expected `tile` to be "auto", None or 1 and more rows, got {tile!r}')
    lacks = [
        what
        for what, has in (
            (f"the distance {distance}", distance in ("ssd", "dot")),
            (f"the prior {prior}", prior == "uniform"),
            (f"{dtype} vectors", dtype == "float32"),
            (f"the platform {platform}", platform in (CPU, GPU)),
        )
        if not has
    ]
    if implementation == "pallas" and lacks:
        raise ValueError(
            f'expected `implementation` "xla", since the kernel lacks {" and ".join(lacks)}, '
            'got "pallas"'
        )
    chosen = implementation == "auto" and tile == "auto" and platform in PALLAS_PLATFORMS
    if implementation == "pallas" or (chosen and not lacks):
        return Method("pallas_softmax", None)
    if tile is None:
        return Method("dense", None)
    if tile == "auto":
        if not by_hand and tuning.holds_all(rows, columns):
            return Method("dense", None)
        tile = tuning.rows_of_tile(rows, columns)
    return Method("tiled_softmax" if by_hand else "autodiff_tiles", int(tile))
