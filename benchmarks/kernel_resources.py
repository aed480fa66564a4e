"""What the fused kernels take of a GPU, by compiling them with Triton; needs no GPU.

    pip install triton
    python -m benchmarks.kernel_resources [--arch 90] [--dims 128,300,768] [--precisions bf16,tf32]

JAX lowers the kernels to Triton's IR; a GPU's XLA compiles that with a Triton of its own, which may
be another version. So this is a check that they compile and fit, and a hint of how well.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import re
import subprocess
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.pallas.triton import lowering

from qpr_jax.losses import sdml_loss
from qpr_jax.losses.pallas_blocks import Blocks, block_sizes, padded_width, shared_memory
from qpr_jax.precision import PRECISIONS


def kernels(dim: int, precision: str) -> dict[str, str]:
    """The IR of each kernel, symmetric and smoothed, of 65,536 pairs."""
    found: dict[str, str] = {}
    lower = lowering.lower_jaxpr_to_triton_module

    def keep(jaxpr: Any, *args: Any, **given: Any) -> Any:
        result = lower(jaxpr, *args, **given)
        found[jaxpr.debug_info.func_name] = result.module.operation.get_asm()
        return result

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return sdml_loss(x, y, symmetric=True, implementation="pallas", precision=precision)

    rows = jax.ShapeDtypeStruct((65536, dim), jnp.float32)
    setattr(lowering, lower.__name__, keep)
    try:
        graded = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        graded.trace(rows, rows).lower(lowering_platforms=("cuda",))
    finally:
        setattr(lowering, lower.__name__, lower)
    return found


def compiled(ir: str, blocks: Blocks, arch: int, folder: pathlib.Path) -> tuple[int, str, str, str]:
    """Bytes of shared memory, registers of a thread, bytes that it spills, matrix instruction."""
    triton: Any = importlib.import_module("triton")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", arch, 32)
    source, binary = folder / "kernel.ttir", folder / "kernel.cubin"
    source.write_text(ir)
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    kernel = triton.compile(str(source), target=target, options=options)
    binary.write_bytes(kernel.asm["cubin"])
    program = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run(
        [program, "-res-usage", binary], capture_output=True, text=True, check=True
    ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    names = ("wgmma.mma_async", "mma.sync")
    products = next((name for name in names if name in kernel.asm["ptx"]), "fma")
    return kernel.metadata.shared, registers, stack, products


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", type=int, default=90, help="compute capability, as 90")
    parser.add_argument("--dims", default="128,300,768")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    flags = parser.parse_args()
    columns = "d, precision, blocks, kernel, shared KiB / bound, registers, spilled bytes, products"
    print(f"| {columns.replace(', ', ' | ')} |\n|{'---|' * 8}")
    for precision in flags.precisions.split(","):
        for dim in map(int, flags.dims.split(",")):
            width = padded_width(dim)
            blocks = block_sizes(width, precision)
            bound = shared_memory(blocks, width, precision) / 1024
            for name, ir in kernels(dim, precision).items():
                with tempfile.TemporaryDirectory() as folder:
                    shared, *rest = compiled(ir, blocks, flags.arch, pathlib.Path(folder))
                cells = [dim, precision, " x ".join(map(str, blocks[:2])), name]
                cells += [f"{shared / 1024:.1f} / {bound:.1f}", *rest]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
