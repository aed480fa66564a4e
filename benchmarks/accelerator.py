"""What this project does on an accelerator, in under ten minutes and without data.

    python -m benchmarks.accelerator            # on a machine with a GPU or TPU
    python -m benchmarks.accelerator --smoke    # tiny shapes on any machine, in a minute

Measures the loss forward and backward (kernel, XLA's tiles, plain) at each precision, training
steps of the CNN and of a BERT, the share of time in which the device waits for batches, encoding,
and memory; each as a ratio to the time of its matrix products alone, whose rate is measured too,
and against PyTorch's loss where torch is installed. Values are compared: a wrong one is an error.
Each part has its share of the time, and what does not fit into it or into memory is listed.

Writes accelerator_DEVICE.json, .md and .png after each part, so that a kill keeps what there is.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks.accelerator_page import goals, page, plot
from benchmarks.measuring import Clock, TooLong, program, run
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically, write_json
from qpr_jax.models.bert_shape import BertShape
from qpr_jax.training.report import save_figure

RESULTS, SMOKE_RESULTS = pathlib.Path("results/benchmarks"), pathlib.Path("runs/accelerator_smoke")


MINILM = BertShape(
    vocab_size=30_522,
    hidden_size=384,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=1536,
    max_position_embeddings=512,
)


class Sizes(NamedTuple):
    """What is measured, and in how many seconds: of torch, the loss, the steps, the encoding."""

    product: int
    loss: tuple[int, ...]  # most informative first
    step: tuple[int, ...]
    clusters: int  # of the generated log: 3.2 pairs each
    dim: int
    seconds: tuple[int, int, int, int]
    bert: BertShape
    encoder: dict[str, Any]
    encoded: int


FULL = Sizes(
    product=8192,
    loss=(65_536, 16_384, 262_144, 4096, 1024),
    step=(512, 4096, 32_768),
    clusters=12_000,
    dim=300,
    seconds=(60, 220, 170, 40),
    bert=MINILM,
    encoder={},
    encoded=4096,
)
SMOKE = Sizes(
    product=512,
    loss=(256, 512),
    step=(64,),
    clusters=120,
    dim=32,
    seconds=(20, 60, 90, 30),
    bert=dataclasses.replace(
        MINILM, hidden_size=32, num_attention_heads=2, intermediate_size=64, num_hidden_layers=1
    ),
    encoder={"embedding_dim": 16, "filters": 16, "output_dim": 16, "kernel_sizes": (3,)},
    encoded=64,
)


def measure(**arguments: Any) -> dict[str, Any]:
    """PyTorch's rows, in a process of its own."""
    from benchmarks.accelerator_loss import measure_torch

    return measure_torch(**arguments)


def of_torch(sizes: Sizes, *, on_cpu: bool) -> dict[str, Any]:
    """What `measure` gives, or why it gave nothing; `on_cpu`: also where torch sees no GPU."""
    if importlib.util.find_spec("torch") is None:
        return {"rows": [], "torch": "not installed"}
    arguments: dict[str, Any] = {
        "sizes": sizes.loss,
        "dim": sizes.dim,
        "seconds": sizes.seconds[0] / 2,
    }
    arguments["on_cpu"] = on_cpu
    try:
        return run("benchmarks.accelerator", arguments, limit=sizes.seconds[0])
    except (TooLong, UserError) as error:
        return {"rows": [], "torch": f"not measured: {error or 'too long'}"}


def device_facts() -> dict[str, Any]:
    """The device, its driver and the versions."""
    import jax

    device = jax.devices()[0]
    driver = pathlib.Path("/proc/driver/nvidia/version")
    text = driver.read_text() if driver.is_file() else ""
    found = re.search(r"Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "driver": found[1] if found else "none found",
        "backend": " ".join(str(device.client.platform_version).split()),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax")},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def measure_all(sizes: Sizes, results: dict[str, Any]) -> Iterator[str]:
    """Measure part after part into `results["rows"]`; the name of each when it is done."""
    import jax

    from benchmarks import accelerator_loss, accelerator_step

    rates = results["rates"] = accelerator_loss.product_rates(sizes.product)
    yield "rates"
    keep = results["rows"]
    torch_rows, clock = list(keep), Clock(sizes.seconds[1])
    over_floor: dict[tuple[str, str], float] = {}
    for size in sizes.loss:
        keep += accelerator_loss.measure_loss(size, sizes.dim, rates, clock, over_floor)
        accelerator_loss.compare_torch(torch_rows, keep[len(torch_rows) :])
        yield f"loss at {size:,}"
    clock = Clock(sizes.seconds[2])
    cnn = accelerator_step.generated(sizes.clusters)
    datasets = {"cnn": cnn, "bert": accelerator_step.with_bert(cnn, sizes.bert)}
    for row in accelerator_step.measure_steps(datasets, sizes.step, rates, clock, **sizes.encoder):
        keep.append(row)
    yield "steps"
    clock = Clock(sizes.seconds[3])
    for row in accelerator_step.measure_encoding(
        datasets, clock, questions=sizes.encoded, **sizes.encoder
    ):
        keep.append(row)
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    results["peak_gib"] = None if peak is None else peak / 2**30
    yield "encoding"


def write(results: dict[str, Any], folder: pathlib.Path) -> pathlib.Path:
    """Write the three files; the path of the page."""
    slug = re.sub(r"[^a-z0-9]+", "_", results["facts"]["device"].lower()).strip("_")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"accelerator_{slug}"
    write_json(path.with_suffix(".json"), results)
    save_figure(plot(results), path.with_suffix(".png"))
    with write_atomically(path.with_suffix(".md"), "w") as file:
        file.write("\n".join(page(results, path.with_suffix(".png").name)).rstrip() + "\n")
    return path.with_suffix(".md")


def faults(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The cases that gave wrong values or failed for another reason than memory."""
    return [
        f"{row['part']} {row['variant']} {row['precision']} at {row['size']:,}: {why}"
        for row in rows
        if (why := row.get("wrong") or (row["left_out"] if row.get("failed") else None))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, on any machine")
    parser.add_argument("--out", type=pathlib.Path, help="the folder of the results")
    arguments = parser.parse_args()
    sizes = SMOKE if arguments.smoke else FULL
    folder = arguments.out or (SMOKE_RESULTS if arguments.smoke else RESULTS)
    # Before JAX takes most of the device's memory.
    torch_found = of_torch(sizes, on_cpu=arguments.smoke)

    import jax

    if jax.default_backend() == "cpu" and not arguments.smoke:
        parser.exit(2, "error: expected a GPU or TPU, found none; --smoke runs on any machine\n")
    results: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.accelerator", *sys.argv[1:]]),
        "smoke": arguments.smoke,
        "facts": device_facts(),
        "torch": {name: value for name, value in torch_found.items() if name != "rows"},
        "rows": torch_found["rows"],
        "rates": {},
        "done": [],
    }
    for part in measure_all(sizes, results):
        results["done"].append(part)
        print(f"{part}: {write(results, folder)}", flush=True)
    for goal, verdict in goals(results):
        print(f"{goal}: {verdict}")
    if wrong := faults(results["rows"]):
        raise UserError(f"expected right values of all cases, got {'; '.join(wrong)}")
    return 0


if __name__ == "__main__":
    sys.exit(program(main, measure))
