"""The constants of losses, encoders and steps that depend on the platform, in one place.

A training knows the platform from its mesh (`platform_of`); a loss that is called alone takes that
of JAX's first device. Nothing is decided when a module is imported, and JAX is loaded with the
first device that is asked for.

Those of the CPU are measured (`python -m benchmarks.loss`, `python -m benchmarks.train_step`);
those of GPUs and TPUs follow from their memory and are not measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import jax

CPU, GPU, TPU = "cpu", "gpu", "tpu"
# A GPU whose tensor cores know neither TF32 nor bfloat16 (CUDA before compute capability 8.0).
OLD_GPU = "gpu without bfloat16"


class Constants(NamedTuple):
    """What a platform computes fast with.

    Attributes:
      tile_scores: scores of a tile of the loss; a few arrays of this size exist at once.
      min_rows, max_rows: of such a tile. The candidates' gradient is added to once a tile, so few
        rows mean many passes over it.
      dense_scores: the most that losses without a hand-written gradient hold at once; beyond, they
        are computed in tiles.
      encoder_scores: scores, positions times filters, that the CNN holds at once.
      encode_tokens: tokens of a block of questions that a transformer encodes at once.
      short_sums: whether dot products of the loss are computed in partial sums.
    """

    tile_scores: int
    min_rows: int
    max_rows: int
    dense_scores: int
    encoder_scores: int
    encode_tokens: int
    short_sums: bool


# Tiles of 32 MiB fit the cache; larger ones do not. Half as many tokens or four times as many are
# slower. One sum of 300 products has twice the rounding error of partial sums of 64, whose extra
# passes over the result stay in the cache.
_CPU = Constants(1 << 23, 64, 512, 1 << 25, 1 << 23, 1024, True)
# Tiles of 1 GiB: kernels of few rows leave the device idle, and a tile goes through its memory
# whatever its size. Tensor cores add up in blocks, so short sums would only add passes.
_GPU = Constants(1 << 28, 256, 1 << 16, 1 << 28, 1 << 28, 65_536, False)
# Half as much, since the smaller TPUs have 16 GiB.
_TPU = Constants(1 << 27, 256, 1 << 16, 1 << 27, 1 << 27, 65_536, False)
_PLATFORMS = {CPU: _CPU, TPU: _TPU}


class Tuning(NamedTuple):
    """A platform, and the settings of the section `tuning` that override its constants.

    Attributes:
      platform: as of `platform_of`.
      tile_rows: of the loss; 0: by platform and shape.
      encoder_scores: as in `Constants`; 0: by platform.
      product_terms: partial sums of a dot product in the loss; 0: by platform and shape.
      donate: whether a step may write the new state where the old one was: "yes", "no", or "auto",
        which is yes on every platform, since else two states are in memory and one is copied.
    """

    platform: str
    tile_rows: int = 0
    encoder_scores: int = 0
    product_terms: int = 0
    donate: str = "auto"

    @property
    def constants(self) -> Constants:
        """Those of the platform; one that is not known counts as a GPU."""
        return _PLATFORMS.get(self.platform, _GPU)

    def rows_of_tile(self, rows: int, columns: int) -> int:
        """Rows of a tile of a loss over rows x columns scores.

        Example:
          >>> [Tuning(platform).rows_of_tile(1 << 18, 1 << 18) for platform in (CPU, GPU)]
          [64, 1024]
        """
        known = self.constants
        fitting = min(max(known.tile_scores // columns, known.min_rows), known.max_rows)
        return min(self.tile_rows or fitting, rows)

    def holds_all(self, rows: int, columns: int) -> bool:
        """Whether a loss without a gradient written by hand holds all scores at once."""
        return not self.tile_rows and rows * columns <= self.constants.dense_scores

    def sum_length(self, rows: int, columns: int, dim: int) -> int:
        """How many products of a dot product are added up at a time, of rows x columns results."""
        if self.product_terms:
            return -(-dim // self.product_terms)
        if not self.constants.short_sums:
            return dim
        # Larger results use fewer and longer sums, since each costs a pass over the result.
        size = rows * columns
        return 64 if size < 1 << 22 else 160 if size < 1 << 23 else dim

    def scores_of_encoder(self) -> int:
        """Scores, positions times filters, that the CNN holds at once."""
        return self.encoder_scores or self.constants.encoder_scores

    def donates(self) -> bool:
        """Whether a step may overwrite the state that it is given."""
        return self.donate != "no"


def platform_of(device: jax.Device) -> str:
    """The kind of device: cpu, gpu, tpu, or `OLD_GPU`."""
    if device.platform not in ("gpu", "cuda", "rocm"):
        return str(device.platform)
    capability = str(getattr(device, "compute_capability", ""))  # AMD's are names, as gfx942
    major = capability.partition(".")[0]
    return OLD_GPU if major.isdecimal() and int(major) < 8 else GPU


def default_tuning() -> Tuning:
    """That of JAX's first device."""
    import jax

    return Tuning(platform_of(jax.devices()[0]))
