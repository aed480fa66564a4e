"""Part of `benchmarks.accelerator`: the loss, forward and backward, and the rate of products.

A row is what was measured of one variant, or why it was not. Vectors are those of
`benchmarks.loss`. Values and gradients are compared with float64 in NumPy up to N = 4,096, and
beyond that with XLA's tiles at the highest precision.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.loss import SMOOTHING, pairs, target_entropy
from benchmarks.measuring import Clock, best_of, seconds_in_turns
from qpr_jax.losses import sdml_loss
from qpr_jax.precision import PRECISIONS, available, resolve
from qpr_jax.training import device_memory
from qpr_jax.tuning import platform_of

# How `sdml_loss` is called.
VARIANTS: dict[str, dict[str, Any]] = {
    "tiles": {"implementation": "xla"},
    "kernel": {"implementation": "pallas"},
    "plain": {"implementation": "xla", "tile": None},
}
# Relative errors of value and gradient beyond which a variant is wrong, not merely rounded.
TOLERANCES = {
    "highest": (1e-5, 1e-4),
    "bf16_3x": (1e-4, 1e-3),
    "tf32": (5e-3, 1e-2),
    "bf16": (3e-2, 5e-2),
}
EXACT_UP_TO = 4096
# An interpreted kernel takes seconds for more.
_MOST_INTERPRETED = 256

NO_TIME = "the time of this part is spent"
OUT_OF_MEMORY = "out of memory"

Row = dict[str, Any]


def reason_of(error: Exception) -> str:
    """Why a case was left out: out of memory, or the first line of its error."""
    line = (str(error).splitlines() or [""])[0]
    lower = line.lower()
    # Blocks that do not fit shared memory are a fault of the kernel.
    out = ("resource_exhausted" in lower or "out of memory" in lower) and "shared" not in lower
    return OUT_OF_MEMORY if out else f"{type(error).__name__}: {line}"[:200]


def left_out(error: Exception) -> Row:
    """What a row says where its case raised this error; all but too little memory is a fault."""
    reason = reason_of(error)
    return {"left_out": reason} | ({} if reason == OUT_OF_MEMORY else {"failed": True})


def free_memory(device: jax.Device) -> int:
    """Bytes that may be allocated on a device beyond what is."""
    used = (device.memory_stats() or {}).get("bytes_in_use", 0) if device.platform != "cpu" else 0
    return device_memory.available(device) - int(used)


def too_large(compiled: jax.stages.Compiled, device: jax.Device) -> str | None:
    """Why a compiled function does not fit a device; None where it does."""
    need, free = device_memory.needed(compiled), free_memory(device)
    return f"needs {need / 2**30:.1f} GiB of {free / 2**30:.1f}" if need > free else None


def product_rates(size: int, precisions: Sequence[str] = PRECISIONS) -> dict[str, float]:
    """Operations a second of plain float32 products [size, size], by the precisions there are."""
    device = jax.devices()[0]
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((size, size), np.float32)) for _ in range(2))
    calls = 10 if device.platform != "cpu" else 1

    def rate(precision: str) -> float:
        product = jax.jit(functools.partial(jnp.matmul, precision=resolve(precision)))
        jax.block_until_ready(product(a, b))
        # In one go, so that starting a product costs nothing.
        many = best_of(lambda: jax.block_until_ready([product(a, b) for _ in range(calls)]))
        return 2 * size**3 * calls / many[0]

    here = [name for name in precisions if available(name, platform_of(device))]
    return {name: rate(name) for name in here}


def exact_loss(x: np.ndarray, y: np.ndarray) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """SDML and its gradient by the formula in float64, of queries and candidates [n, d]."""
    x, y, n = x.astype(np.float64), y.astype(np.float64), len(x)
    logits = 2 * x @ y.T - (x**2).sum(axis=1)[:, None] - (y**2).sum(axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    own, spread = (1 - SMOOTHING) * logits.diagonal(), SMOOTHING * logits.mean(axis=1)
    slopes = np.full_like(logits, SMOOTHING / n) - np.exp(logits)
    np.fill_diagonal(slopes, slopes.diagonal() + 1 - SMOOTHING)
    slopes *= 2 / n  # the slopes of the loss in the distances, twice
    gradients = (
        slopes.sum(axis=1)[:, None] * x - slopes @ y,
        slopes.sum(axis=0)[:, None] * y - slopes.T @ x,
    )
    return float(-(own + spread).mean() - target_entropy(n)), gradients


@jax.jit
def _distance(found: Any, expected: Any) -> jax.Array:
    """How far gradients are from others, over the length of those."""
    off = sum(jnp.sum((a - b) ** 2) for a, b in zip(found, expected, strict=True))
    return jnp.sqrt(off / sum(jnp.sum(b**2) for b in expected))


def errors(row: Row, value: float, gradients: Any, reference: tuple[float, Any]) -> Row:
    """The relative errors of a row's value and gradient, and whether they are too large."""
    off = abs(value - reference[0]) / abs(reference[0])
    gradient = float(_distance(gradients, reference[1]))
    most, most_gradient = TOLERANCES[row["precision"]]
    right = off <= most and gradient <= most_gradient  # False for NaN
    return {"loss": value, "error": off, "gradient_error": gradient} | (
        {} if right else {"wrong": f"the value is off by {off:.1e}, the gradient by {gradient:.1e}"}
    )


def measure_loss(
    size: int,
    dim: int,
    rates: Mapping[str, float],
    clock: Clock,
    over_floor: dict[tuple[str, str], float],
) -> list[Row]:
    """The rows of all variants at the precisions of `rates`.

    over_floor: of earlier sizes by precision and variant, to predict the time; it is updated.
    """
    rows: list[Row] = []
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    x, y = map(jnp.asarray, pairs(size, dim))
    reference: tuple[float, Any] | None = None
    if size <= EXACT_UP_TO:
        value, exact = exact_loss(*map(np.asarray, (x, y)))
        reference = value, tuple(jnp.asarray(side, jnp.float32) for side in exact)
    # The first is the reference where there is no other.
    for precision, variant in itertools.product(rates, VARIANTS):
        row: Row = {"part": "loss", "size": size, "variant": variant, "precision": precision}
        row["floor"] = 6 * size**2 * dim / rates[precision]
        rows.append(row)
        expected = row["floor"] * over_floor.get((precision, variant), 5)
        if (reason := _unfit(variant, size, expected, clock)) is not None:
            row["left_out"] = reason
            continue
        try:
            call, plan = _compile(x, y, variant, precision)
            row["gib"] = device_memory.needed(plan) / 2**30
            if (reason := too_large(plan, jax.devices()[0])) is not None:
                row["left_out"] = reason
                continue
            value, gradients = call()
            if (precision, variant) == ("highest", "tiles"):
                reference = reference or (float(value), gradients)
            if reference is None:
                row["left_out"] = "there is nothing to compare it with"
                continue
            row |= errors(row, float(value), gradients, reference)
            calls[precision, variant] = call
        except Exception as error:  # of any kind: the others are measured all the same
            row |= left_out(error)
    try:
        seconds = seconds_in_turns(calls, limit=clock.left / 3)
    except Exception as error:  # none of this size has a time, but the next sizes may
        seconds = {}
        for row in rows:
            row |= left_out(error) if "loss" in row else {}
    for row in rows:
        if (key := (row["precision"], row["variant"])) in seconds:
            row["seconds"] = seconds[key]
            over_floor[key] = row["seconds"] / row["floor"]
    return rows


def _unfit(variant: str, size: int, expected: float, clock: Clock) -> str | None:
    """Why a variant is not tried: too little time, or a kernel that would be interpreted."""
    if variant == "kernel" and jax.default_backend() == "cpu" and size > _MOST_INTERPRETED:
        return "a CPU interprets the kernel"
    if 3 * expected > clock.left:  # once to warm up, and at least two rounds
        return NO_TIME
    return None


def _compile(
    x: jax.Array, y: jax.Array, variant: str, precision: str
) -> tuple[Callable[[], Any], jax.stages.Compiled]:
    """A call that gives value and gradients when they are ready, and what is called."""
    loss = functools.partial(
        sdml_loss, smoothing=SMOOTHING, precision=precision, **VARIANTS[variant]
    )
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(x, y).compile()
    return lambda: jax.block_until_ready(compiled(x, y)), compiled


def measure_torch(
    sizes: Sequence[int], dim: int, seconds: float, *, on_cpu: bool
) -> dict[str, Any]:
    """The rows of PyTorch's same loss, in a process in which JAX holds no memory.

    on_cpu: measure it also where PyTorch sees no GPU.
    """
    import torch

    from benchmarks.loss import torch_loss

    cuda = torch.cuda.is_available()
    if not cuda and not on_cpu:
        return {"rows": [], "torch": f"{torch.__version__}, sees no GPU"}
    device, clock, rows = "cuda" if cuda else "cpu", Clock(seconds), []
    for size in sorted(sizes):
        for precision in ("highest", *(("tf32", "bf16") if cuda else ())):
            row: Row = {"part": "torch", "size": size, "variant": "torch", "precision": precision}
            rows.append(row)
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            x, y = (torch.from_numpy(a).to(device).requires_grad_() for a in pairs(size, dim))

            def call(x=x, y=y, precision=precision):
                x.grad = y.grad = None
                with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                    value = torch_loss(x, y)
                value.backward()
                return value.item()  # waits for the forward pass, the next line for the other

            def ready(call=call):
                value = call()
                if cuda:
                    torch.cuda.synchronize()
                return value

            if clock.left < 0:
                row["left_out"] = NO_TIME
                continue
            try:
                row["loss"] = ready()
                row["seconds"] = seconds_in_turns({"": ready}, limit=max(clock.left / 4, 0))[""]
            except RuntimeError as error:
                row |= left_out(error)
            del x, y, call, ready
            if cuda:
                torch.cuda.empty_cache()
    name = torch.cuda.get_device_name() if cuda else "CPU"
    return {"rows": rows, "torch": torch.__version__, "device": name}


def compare_torch(rows: Sequence[Row], others: Sequence[Row]) -> None:
    """Add to PyTorch's rows their error and floor, by our rows of the same size."""
    ours = {(row["size"], row["precision"]): row for row in others if row["variant"] == "tiles"}
    for row in rows:
        same = ours.get((row["size"], row["precision"]), {})
        exact = ours.get((row["size"], "highest"), {})
        row |= {"floor": same["floor"]} if "floor" in same else {}
        if "loss" in row and "loss" in exact:
            row["error"] = abs(row["loss"] - exact["loss"]) / abs(exact["loss"])
            if not row["error"] <= TOLERANCES[row["precision"]][0] or math.isnan(row["loss"]):
                row["wrong"] = f"the value is off by {row['error']:.1e}"
