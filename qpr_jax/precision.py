"""How float32 matrix products are rounded: names for settings, and what each is on a platform.

Loads JAX only to resolve a name, so that settings are checked without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qpr_jax.tuning import GPU, TPU, default_tuning

if TYPE_CHECKING:
    from jax import lax
    from jax.typing import DTypeLike

HIGHEST = "highest"
# Names, fastest last, of algorithms of `jax.lax.DotAlgorithmPreset`. All add up in float32.
PRESETS = {
    "bf16_3x": "BF16_BF16_F32_X3",  # a factor is the sum of two bfloat16: three products
    "tf32": "TF32_TF32_F32",  # factors are rounded to 10 bits after the point
    "bf16": "BF16_BF16_F32",  # to 7 bits
}
PRECISIONS = (HIGHEST, *PRESETS)
# What XLA compiles and computes. On a CPU it accepts two of the presets and computes in float32 all
# the same; TPUs know no TF32; GPUs before Ampere know none.
_PLATFORMS = {GPU: ("bf16_3x", "tf32", "bf16"), TPU: ("bf16_3x", "bf16")}


def available(name: str, platform: str) -> bool:
    """Whether a platform, as of `tuning.platform_of`, has the precision of this name."""
    return name == HIGHEST or name in _PLATFORMS.get(platform, ())


def resolve(
    precision: str | lax.PrecisionLike,
    *,
    platform: str | None = None,
    dtype: DTypeLike = "float32",
) -> lax.PrecisionLike:
    """What to give JAX as the `precision` of products.

    Args:
      precision: one of `PRECISIONS`, which is "highest" where the platform lacks it, or a value
        for JAX, which stays.
      platform: as of `tuning.platform_of`; None: of JAX's first device.
      dtype: of the factors; products of float64 are never rounded.

    Raises:
      ValueError: a string that is none of the names.

    Example:
      >>> resolve("tf32", platform="gpu")
      DotAlgorithmPreset.TF32_TF32_F32
    """
    from jax import lax

    if isinstance(precision, str) and precision not in PRECISIONS:
        raise ValueError(
            f"expected `precision` to be one of {', '.join(PRECISIONS)}, got {precision!r}"
        )
    if dtype == "float64" or precision == HIGHEST:
        return lax.Precision.HIGHEST
    if not isinstance(precision, str):
        return precision
    if not available(precision, platform or default_tuning().platform):
        return lax.Precision.HIGHEST
    return lax.DotAlgorithmPreset[PRESETS[precision]]
