"""The choice of how a loss over N x N scores is computed: dense or in tiles."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from qpr_jax.tuning import Tuning, default_tuning

Tile = int | Literal["auto"] | None


class Method(NamedTuple):
    """How to compute the loss.

    Attributes:
      name: "dense", all scores at once; "autodiff_tiles", any loss of rows; "tiled_softmax", a
        gradient written by hand, for some losses, and faster for these at any size.
      tile: rows of a tile; None if dense.
    """

    name: Literal["dense", "autodiff_tiles", "tiled_softmax"]
    tile: int | None

    def __str__(self) -> str:
        return f"{self.tile} rows a tile" if self.tile else "all at once"


def choose_method(
    tile: Tile,
    rows: int,
    columns: int,
    *,
    distance: str,
    prior: str,
    tuning: Tuning | None = None,
) -> Method:
    """Choose how to compute a softmax loss over `rows` x `columns` scores.

    Args:
      tile: rows of a tile, None for dense, or "auto" to choose by the size.
      rows: queries of this device.
      columns: candidates of all devices.
      distance: one of `choices.SCORES`.
      prior: one of `choices.PRIORS`.
      tuning: the platform and its constants; None: of JAX's first device.

    Raises:
      ValueError: `tile` is none of the above.

    Example:
      >>> choose_method("auto", 4096, 4096, distance="ssd", prior="uniform")
      Method(name='tiled_softmax', tile=512)
    """
    tuning = tuning or default_tuning()
    by_hand = distance in ("ssd", "dot") and prior == "uniform"
    if tile not in ("auto", None) and (
        isinstance(tile, bool) or not isinstance(tile, int | np.integer) or tile < 1
    ):
        raise ValueError(f'expected `tile` to be "auto", None or 1 and more rows, got {tile!r}')
    if tile is None:
        return Method("dense", None)
    if tile == "auto":
        if not by_hand and tuning.holds_all(rows, columns):
            return Method("dense", None)
        tile = tuning.rows_of_tile(rows, columns)
    return Method("tiled_softmax" if by_hand else "autodiff_tiles", int(tile))
