"""The error of SDML's value and gradient for each precision of its products, against float64.

    python -m benchmarks.precision [--pairs 8192] [--dim 300]

Squared distances, uniform prior, smoothing 0.3, default tiles. The vectors lie around the origin;
then 1,000 is added to every coordinate; then pairs are unrelated as well, as before a training:
many candidates compete, and the gradient suffers most. The reference is NumPy in float64, of the
same float32 vectors.

Where the platform lacks a precision, its products are emulated: the factors are rounded, then
multiplied in full float32 (`bf16_3x`: three products of two bfloat16 terms a factor). Such rows say
so. Writes results/benchmarks/precision.json and .md.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.loss import SMOOTHING, pairs, target_entropy
from benchmarks.measuring import positive
from qpr_jax.cli.program import run_program
from qpr_jax.files import write_atomically, write_json
from qpr_jax.losses import sdml_loss
from qpr_jax.precision import PRECISIONS, available
from qpr_jax.tuning import default_tuning

OUT = pathlib.Path(__file__).parent.parent / "results" / "benchmarks"
# What is added to each coordinate, and whether the vectors of a pair are related.
CASES = {
    "centered": (0, True),
    "off center": (1000, True),
    "off center, unrelated": (1000, False),
}
# Dense TFLOP/s of one H200 SXM by NVIDIA's data sheet, of which bf16_3x takes a third.
NOMINAL = {"highest": "67", "bf16_3x": "330", "tf32": "495", "bf16": "989"}
_ROWS = 512  # of the reference at a time


def round_to(bits: int) -> Callable[[jax.Array], jax.Array]:
    """Round to `bits` after the point, as a conversion to a shorter type and back does."""
    return lambda array: lax.reduce_precision(array, 8, bits)


def emulated_product(name: str) -> Callable[..., jax.Array]:
    """`jnp.matmul` of rounded factors."""
    matmul = jnp.matmul

    def product(left: jax.Array, right: jax.Array, **_: Any) -> jax.Array:
        shorten = round_to(10 if name == "tf32" else 7)
        high_left, high_right = shorten(left), shorten(right)
        terms = [(high_left, high_right)]
        if name == "bf16_3x":
            low_left, low_right = shorten(left - high_left), shorten(right - high_right)
            terms = [(low_left, high_right), (high_left, low_right), *terms]
        return sum(matmul(*term, precision="highest") for term in terms)

    return product


def value_and_gradients(
    name: str, vectors: tuple[np.ndarray, np.ndarray]
) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """Of the loss with products of this precision, emulated where the platform lacks it."""

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return sdml_loss(x, y, smoothing=SMOOTHING, precision=name)

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    if available(name, default_tuning().platform):
        value, gradients = step(*vectors)
    else:
        with mock.patch.object(jnp, "matmul", emulated_product(name)):
            value, gradients = step(*vectors)
    return float(value), tuple(map(np.asarray, gradients))


def reference(x: np.ndarray, y: np.ndarray) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """Value and gradients by the formula, float64, some rows at a time."""
    center = y.mean(axis=0, dtype=np.float64)
    x, y = x - center, y - center
    count, squares = len(y), (y**2).sum(axis=1)
    total, of_x, of_y = 0.0, np.empty_like(x), np.zeros_like(y)
    weights = np.zeros(count)
    for start in range(0, len(x), _ROWS):
        rows = x[start : start + _ROWS]
        own = np.arange(start, start + len(rows))
        logits = 2 * rows @ y.T - squares[None]
        peak = logits.max(axis=1, keepdims=True)
        logits -= peak + np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
        at_own = logits[np.arange(len(rows)), own]
        total -= (1 - SMOOTHING) * at_own.sum() + SMOOTHING * logits.mean(axis=1).sum()
        slope = SMOOTHING / count - np.exp(logits)  # of the distances
        slope[np.arange(len(rows)), own] += 1 - SMOOTHING
        of_x[start : start + len(rows)] = -2 * slope @ y  # slopes of a row add up to 0
        of_y -= 2 * slope.T @ rows
        weights += slope.sum(axis=0)
    of_y += 2 * weights[:, None] * y
    return total / len(x) - target_entropy(count), (of_x / len(x), of_y / len(x))


def errors(name: str, vectors: tuple[np.ndarray, np.ndarray], exact: Any) -> dict[str, float]:
    """Relative errors of the value, and of the gradient: its largest number, and its norm."""
    value, gradients = value_and_gradients(name, vectors)
    expected = np.concatenate(exact[1])
    difference = np.concatenate(gradients) - expected
    return {
        "value": abs(value - exact[0]) / abs(exact[0]),
        "gradient_max": float(np.abs(difference).max() / np.abs(expected).max()),
        "gradient_norm": float(np.linalg.norm(difference) / np.linalg.norm(expected)),
    }


def measure(count: int, dim: int) -> dict[str, Any]:
    """The errors of each precision, by case."""
    platform = default_tuning().platform
    found: dict[str, Any] = {
        "pairs": count,
        "dim": dim,
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "jax": jax.__version__,
        "rows": [
            {"precision": name, "emulated": not available(name, platform), "errors": {}}
            for name in PRECISIONS
        ],
    }
    for case, (offset, related) in CASES.items():
        x, y = (side + np.float32(offset) for side in pairs(count, dim))
        y = y if related else np.roll(y, 1, axis=0)
        exact = reference(x, y)
        for row in found["rows"]:
            row["errors"][case] = errors(row["precision"], (x, y), exact)
    return found


def page(found: dict[str, Any]) -> str:
    """The table in Markdown."""
    lines = [
        "# Error of the loss by the precision of its products",
        "",
        f"Relative to float64, N = {found['pairs']:,}, d = {found['dim']}, squared distances, "
        "smoothing 0.3; vectors around the origin, with 1,000 added to each coordinate, and that "
        "with pairs of unrelated vectors; the gradient by its largest number. "
        f"`python -m benchmarks.precision`, {found['device']}, {found['cores']} cores, load "
        f"{found['load']}, JAX {found['jax']}. Emulated: the platform lacks it, so the factors "
        "were rounded. Rates are NVIDIA's nominal ones of an H200 SXM, dense; not measured.",
        "",
        f"| `loss.precision` | | {' | '.join(f'value, {c} | gradient' for c in CASES)} "
        "| nominal TFLOP/s |",
        "|---" * (3 + 2 * len(CASES)) + "|",
    ]
    for row in found["rows"]:
        how = "emulated" if row["emulated"] else "computed"
        cells = [f"`{row['precision']}`", how]
        for case in row["errors"].values():
            cells += [f"{case['value']:.1e}", f"{case['gradient_max']:.1e}"]
        lines.append(f"| {' | '.join([*cells, NOMINAL[row['precision']]])} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=positive, default=8192, help="an even number")
    parser.add_argument("--dim", type=positive, default=300)
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help="folder of the two files")
    arguments = parser.parse_args()
    if arguments.pairs % 2:
        parser.error(f"--pairs: expected an even number, got {arguments.pairs}")
    found = measure(arguments.pairs, arguments.dim)
    write_json(arguments.out / "precision.json", found)
    with write_atomically(arguments.out / "precision.md", "w") as file:
        file.write(page(found))
    print(page(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
