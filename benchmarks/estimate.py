"""Estimate the time of the train step and of the loss on a TPU that is not there.

    pip install --no-deps 'libtpu==0.0.42.*'
    python -m benchmarks.estimate --platform tpu --topology v5e:2x4 [--quick] [--sizes 512 262144]
        [--batches 512 8192]

libtpu compiles for a TPU on any machine, and writes into the program how many cycles it estimates
for an operation. Nothing runs: all times are estimates. They leave out collectives, what happens
on the host, and sorts, scatters and gathers, for which libtpu has no estimate: the table counts
them. A loop counts as often as it repeats; of a condition no branch counts. With `--save` the saved
rows that a call does not estimate stay.
"""

from __future__ import annotations

import collections
import functools
import importlib.util
import json
import math
import os
import re
import sys
import time
from typing import Any, NamedTuple
from unittest import mock

from benchmarks import report
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError

SIZES, DEVICES, DIM = (512, 4096, 16_384, 65_536, 262_144), (1, 8), 300
PRESETS = ("quora_sdml", "quora_distilled")
CLOCK, PEAK = 1.5e9, 197e12  # of a v5e: cycles, and bfloat16 operations, a second
HEAD = ["what", "devices", "estimated ms", "products at the peak, ms", "of it, ms"]
HEAD += ["collectives", "MB moved", "temporary MB", "compile, s"]
NOTE = "Estimated by the compiler in several calls, the last above; nothing ran on a TPU. Of the "
NOTE += "products of a step, XLA counts those of a loop once."
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # it cannot read what it keeps
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # as nothing runs, programs share no chip
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
_COLLECTIVE = re.compile(
    r"= (.+?) (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_UNTIMED = re.compile(r" (sort|scatter|gather)\(")
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f64": 8, "s64": 8, "u64": 8}


class Estimate(NamedTuple):
    """Seconds by kind of operation, collectives by their bytes, and what has no estimate."""

    seconds: dict[str, float]
    moved: list[int]  # the bytes that each collective gives a device
    untimed: dict[str, int]  # operations by kind


def read_program(text: str) -> Estimate:
    """Add up what the text of a compiled program says."""
    bodies: dict[str, list[str]] = {}
    body: list[str] = []
    entry = ""
    for line in text.splitlines():
        if start := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$", line):
            body = bodies.setdefault(start[2], [])
            entry = start[2] if start[1] else entry
        else:
            body.append(line)
    found = Estimate(collections.defaultdict(float), [], collections.Counter())

    def count_untimed(line: str, times: int) -> None:
        if untimed := _UNTIMED.search(line):
            found.untimed[untimed[1]] += times
        if fused := re.search(r" fusion\(.*calls=%?([\w.\-]+)", line):
            for part in bodies.get(fused[1], []):
                count_untimed(part, times)

    def add(name: str, times: int) -> None:
        for line in bodies.get(name, []):
            if loop := re.search(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)", line):
                limits = re.findall(r"constant\((\d+)\)", "\n".join(bodies[loop[1]]))
                add(loop[2], times * max(map(int, limits), default=1))
            count_untimed(line, times)
            if moved := _COLLECTIVE.search(line):
                found.moved.extend(times * [_bytes(moved[1])])
            if cycles := re.search(r'"estimated_cycles":"(\d+)"', line):
                path = re.search(r'op_name="([^"]*)"', line)
                kind = path[1].rpartition("/")[2].partition(".")[0] if path else "other"
                found.seconds[kind] += times * int(cycles[1]) / CLOCK

    add(entry, 1)
    return found


def _bytes(shapes: str) -> int:
    """Return the bytes of shapes such as `(f32[4,8]{1,0}, s32[2]{0})`."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    return sum(_BYTES.get(k, 4) * math.prod(map(int, filter(None, s.split(",")))) for k, s in found)


def row(name: str, devices: int, function: Any, arguments: Any, operations: float) -> list[str]:
    """Compile a jitted function for TPUs; `operations`: of its products, 0 for what XLA counts."""
    import jax

    start = time.perf_counter()
    with mock.patch.object(jax, "default_backend", return_value="tpu"):
        compiled = function.lower(*arguments).compile()
    compile_seconds = time.perf_counter() - start
    found = read_program(compiled.as_text())
    operations = operations or compiled.cost_analysis()["flops"]
    longest = sorted(found.seconds.items(), key=lambda item: -item[1])[:4]
    kinds = ", ".join(f"{kind} {1e3 * seconds:.3g}" for kind, seconds in longest)
    if found.untimed:
        counts = (f"{count} {kind}s" for kind, count in sorted(found.untimed.items()))
        kinds += f"; without {', '.join(counts)}"
    cells = [name, f"{devices}", f"{1e3 * sum(found.seconds.values()):.4g}"]
    cells += [f"{1e3 * operations / PEAK:.3g}", kinds]
    cells += [f"{len(found.moved)}", f"{sum(found.moved) / 1e6:.3g}"]
    cells += [
        f"{compiled.memory_analysis().temp_size_in_bytes / 1e6:,.0f}",
        f"{compile_seconds:.0f}",
    ]
    print(" | ".join(cells), flush=True)
    return cells


def loss_row(mesh: Any, size: int, symmetric: bool, precision: str) -> list[str]:
    """Estimate value and gradient of SDML."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from qpr_jax.losses import batch_loss, sdml_loss

    split = PartitionSpec("data")
    loss = functools.partial(batch_loss, sdml_loss, symmetric=symmetric, axis_name="data")
    mapped = jax.shard_map(loss, mesh=mesh, in_specs=split, out_specs=PartitionSpec())
    side = jax.ShapeDtypeStruct((size, DIM), "float32", sharding=NamedSharding(mesh, split))
    name = f"loss, {size:,} pairs{', both directions' if symmetric else ''}"
    operations = 6 * size**2 * DIM / mesh.size  # of both directions, too, at the least
    with jax.default_matmul_precision(precision):
        function = jax.jit(jax.value_and_grad(mapped, (0, 1)))
        return row(name, mesh.size, function, (side, side), operations)


def step_rows(meshes: list[Any], preset: str, precision: str, pairs: int) -> list[list[str]]:
    """Estimate the last phase of the training of a preset; a teacher's vectors are ones.

    pairs: of a batch; 0: as many as the preset has.
    """
    import dataclasses

    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from qpr_jax.training import train_step
    from qpr_jax.training.batches import Loader
    from qpr_jax.training.config import load_config
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.model_families import family_of
    from qpr_jax.training.objectives import make_objectives
    from qpr_jax.training.sources import find_quora
    from qpr_jax.training.teacher import Teacher

    config = load_config(
        preset, {"precision": precision} | ({"batch_size": pairs} if pairs else {})
    )
    path = find_quora() if config.data.source == "quora" else None
    dataset = load_dataset(config, path)
    if config.teacher.model:
        shape = len(dataset.data.questions), config.encoder.output_dim
        ones = np.broadcast_to(np.ones((), np.float32), shape)
        dataset = dataclasses.replace(dataset, teacher=Teacher((ones,), None, None))
    objectives = make_objectives(config, dataset)
    objectives = [each for each in objectives if each.steps == objectives[-1].steps]
    graph, params = family_of(dataset.start).init(config, dataset)
    optimizer = train_step.make_optimizer(config.optimizer.learning_rate, config.optimizer)
    state = jax.eval_shape(functools.partial(train_step.init_state, optimizer=optimizer), params)
    rows = []
    for mesh in meshes:
        loader = Loader(config, dataset, objectives, devices=mesh.size)
        batch, _ = loader.load(objectives[0].steps.start)
        loss = train_step.make_loss(graph, mesh, objectives, precision=precision)
        step = train_step.make_train_step(loss, optimizer, seed=0)

        def place(tree: Any, spec: Any, mesh: Any = mesh) -> Any:
            sharding = NamedSharding(mesh, spec)
            return jax.tree.map(
                lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), tree
            )

        arguments = place(state, PartitionSpec()), place(batch, PartitionSpec("data"))
        name = f"step of `{preset}`, {loader.pairs:,} pairs"
        rows.append(row(name, mesh.size, step, arguments, 0))
    return rows


def kept(title: str, rows: list[list[str]]) -> list[list[str]]:
    """Add the saved rows of the same title that were not estimated again; sort by pairs."""
    path = report.RESULTS / "estimate.json"
    tables = json.loads(path.read_text())["tables"] if path.is_file() else []
    new = {(row[0], row[1]) for row in rows}
    old = [r for table in tables if table["title"] == title for r in table["rows"]]
    rows = rows + [row for row in old if (row[0], row[1]) not in new]

    def order(row: list[str]) -> tuple[bool, int, str, int]:
        pairs = re.findall(r"([\d,]+) pairs", row[0])[0]
        return row[0].startswith("loss"), int(pairs.replace(",", "")), row[0], int(row[1])

    return sorted(rows, key=order)


def main() -> int:
    """Estimate."""
    parser = report.parser(__doc__)
    parser.add_argument("--platform", choices=["tpu"], default="tpu")
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--presets", nargs="*", default=PRESETS)
    parser.add_argument("--batches", nargs="+", type=int, default=[0], help="pairs of a step")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--devices", nargs="+", type=int, default=DEVICES)
    parser.add_argument("--precision", default="default")
    options = parser.parse_args()
    if importlib.util.find_spec("libtpu") is None:
        remedy = "pip install --no-deps 'libtpu==0.0.42.*'"
        raise UserError("the compiler for TPUs is not installed", remedy=remedy)
    os.environ.update(_ENVIRONMENT)
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    if options.quick:
        options.presets, options.sizes = ["synthetic_sdml:smoke"], options.sizes[:1]
    found = topologies.get_topology_desc(
        platform=options.platform, topology_name=options.topology
    ).devices
    meshes = [Mesh(np.array(found[:count]), ("data",)) for count in options.devices]
    rows = [
        r
        for preset in options.presets
        for pairs in options.batches
        for r in step_rows(meshes, preset, options.precision, pairs)
    ]
    rows += [
        loss_row(mesh, size, symmetric, options.precision)
        for size in options.sizes
        for mesh in meshes
        for symmetric in (False, True)
        if not (symmetric and options.quick)
    ]
    title = f"Estimates for {options.topology}, precision `{options.precision}`"
    report.finish("estimate", options, [report.Table(title, HEAD, kept(title, rows), NOTE)])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
