"""The constants of the losses and encoders that depend on the platform, in one place.

A training knows the platform from its mesh (`platform_of`); a loss that is called alone takes that
of JAX's first device. Nothing is decided when a module is imported, and JAX is loaded with the
first device that is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import jax

CPU, GPU, TPU = "cpu", "gpu", "tpu"
# A GPU whose tensor cores know neither TF32 nor bfloat16 (CUDA before compute capability 8.0).
OLD_GPU = "gpu without bfloat16"


class Tuning(NamedTuple):
    """A platform, and the settings that override its constants.

    Attributes:
      platform: as of `platform_of`.
    """

    platform: str


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
