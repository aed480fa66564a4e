"""The choice of how a loss over N x N scores is computed: dense, or in tiles in one of two ways."""

from __future__ import annotations

from typing import Literal, NamedTuple

# Scores of a tile: 32 MiB, and a few arrays of this size exist at once. Larger tiles do not fit
# the cache. Smaller tiles, or fewer rows, add to the candidates' gradient too often.
_TILE_SCORES = 1 << 23
_MIN_ROWS, _MAX_ROWS = 64, 512

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


def choose_method(tile: Tile, rows: int, columns: int, *, distance: str, prior: str) -> Method:
    """Choose how to compute a softmax loss over `rows` x `columns` scores, on any platform.

    Args:
      tile: rows of a tile, None for dense, or "auto" to choose by the size.
      rows: queries of this device.
      columns: candidates of all devices.
      distance: one of `choices.SCORES`.
      prior: one of `choices.PRIORS`.

    Raises:
      ValueError: `tile` is none of the above.

    Example:
      >>> choose_method("auto", 4096, 4096, distance="ssd", prior="uniform")
      Method(name='tiled_softmax', tile=512)
    """
    if tile is None:
        return Method("dense", None)
    by_hand = distance in ("ssd", "dot") and prior == "uniform"
    if tile == "auto":
        if not by_hand and rows * columns <= 4 * _TILE_SCORES:
            return Method("dense", None)
        tile = min(max(_TILE_SCORES // columns, _MIN_ROWS), _MAX_ROWS, rows)
    elif isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
        raise ValueError(f'expected `tile` to be "auto", None or 1 and more rows, got {tile!r}')
    return Method("tiled_softmax" if by_hand else "autodiff_tiles", tile)
