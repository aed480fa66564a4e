"""Does a larger batch help? The paper stopped at 1,024 pairs; this goes on to 32,768.

    python -m experiments.batch_size_scaling              train all rows, then page and plots
    python -m experiments.batch_size_scaling --sizes=512,4096 --rules=sqrt
    python -m experiments.batch_size_scaling --bench      time and memory of a step, to 131,072;
                                                          --sizes=512 --bench measures one anew
    python -m experiments.batch_size_scaling --rebuild    page and plots from what is kept

All rows of a rule see the same number of pairs. The rules say how the learning rate grows with
the batch ("none", "sqrt", "linear"); "mask" is "sqrt" with the candidates of an anchor's own
cluster masked, "stop" is "sqrt" trained to its early stop, however many pairs that takes.
Rows are kept in `results/batch_size/rows/`; interrupted anywhere, the same command goes on, and
started twice at once, the two share the rows.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from absl import flags

from experiments.batch_size_results import BENCH_FILE, write_results
from experiments.batch_size_rows import RULES, SIZES, row_config
from experiments.configs import quora_sdml
from experiments.measuring import program, run
from experiments.rows import Row, finish_study, log, make_rows, training_row
from qpr_jax.cli.program import run_absl, use_huge_pages
from qpr_jax.errors import UserError
from qpr_jax.files import sha256_of, write_atomically
from qpr_jax.training.metric_writer import read_json_lines

_HERE = pathlib.Path(__file__).parent.parent

# Of the paper's encoder at full size.
BENCH_SIZES = (512, 1024, 4096, 16_384, 32_768, 65_536, 131_072)
BENCH_PAIRS = 16_384  # in all the steps of a size that are timed, one at least
ENCODE_CHUNK = 4096

_SIZES = flags.DEFINE_list("sizes", [], "Only these batch sizes.")
_RULES = flags.DEFINE_list("rules", [], f"Only these of {', '.join(RULES)}.")
_WORKDIR = flags.DEFINE_string("workdir", "runs/batch_size", "Where the rows are trained.")
_RESULTS = flags.DEFINE_string(
    "results", str(_HERE / "results" / "batch_size"), "Where rows are kept, and the page is made."
)
_BENCH = flags.DEFINE_bool("bench", False, "Measure a step's time and memory, train nothing.")
_REBUILD = flags.DEFINE_bool("rebuild", False, "Train and measure nothing.")


def chosen_rows(workdir: pathlib.Path) -> list[Row]:
    """The rows that the flags ask for, small batches first."""
    sizes = _numbers("sizes", _SIZES.value) or SIZES
    unknown = sorted({*_RULES.value} - {*RULES})
    if unknown:
        raise UserError(f"`--rules`: expected some of {', '.join(RULES)}, got {unknown[0]!r}")
    rules = _RULES.value or list(RULES)
    rows = []
    for size in sizes:
        for rule in rules:
            if size == quora_sdml.get_config().batch_size and rule in ("none", "linear"):
                continue  # the same rate by any rule
            name = f"n_{size}_{rule}"
            rows.append(training_row(name, row_config(size, rule), workdir / name))
    return rows


def _numbers(name: str, values: list[str]) -> tuple[int, ...]:
    for value in values:
        if not value.isdecimal() or int(value) < 1:
            raise UserError(f"`--{name}`: expected positive whole numbers, got {value!r}")
    return tuple(map(int, values))


def measure(size: int) -> dict[str, Any]:
    """Seconds of a step of `quora_sdml` at `size` pairs, and the peak memory, in this process."""
    import statistics
    import time

    import jax
    import jax.numpy as jnp

    from experiments.measuring import peak_gib
    from qpr_jax.data.sources import find_quora
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.stages import build_plan

    config = quora_sdml.get_config()
    config.batch_size, config.batch.encode_chunk = size, ENCODE_CHUNK if size > ENCODE_CHUNK else 0
    training = build_plan(config, load_dataset(config, find_quora()))
    mesh, state, (stage,) = training.mesh, training.state, training.stages
    feed, train = stage.objectives[0]
    first = feed.batch(0, mesh)
    step = train.step.compile(state, first)
    times = []
    for number in range(max(1, BENCH_PAIRS // size)):
        start = time.perf_counter()
        batch = feed.batch(number % feed.epoch, mesh)
        if jax.tree.map(jnp.shape, batch) != jax.tree.map(jnp.shape, first):
            continue  # one that is laid out otherwise would have to be compiled
        state, metrics = step(state, batch)
        value = float(metrics["loss"])
        times.append(time.perf_counter() - start)
    return {
        "batch_size": size,
        "filters": config.encoder.filters,
        "encode_chunk": config.batch.encode_chunk,
        "seconds": statistics.median(times),
        "peak_gib": peak_gib(),
        "loss": value,
        "device": jax.devices()[0].device_kind,
        "devices": mesh.size,
    }


def bench(results: pathlib.Path) -> list[str]:
    """Measure each size in a process of its own, and keep it beside those measured before.

    Those are measured anew only where `--sizes` names them. Returns the sizes that could not be
    measured, each with the reason.
    """
    path, failed = results / BENCH_FILE, []
    known = {row["batch_size"] for row in read_json_lines(path)}
    left = [size for size in BENCH_SIZES if size not in known]
    for size in _numbers("sizes", _SIZES.value) or left:
        try:
            row = run("experiments.batch_size_scaling", {"size": size})
        except UserError as error:
            log.error("N = %s: %s", f"{size:,}", error)
            failed.append(f"N = {size}: {error}")
            continue
        rate = size / row["seconds"]
        log.info(
            "N = %s: %.2f s a step, %s pairs/s, %.2f GiB",
            *(f"{size:,}", row["seconds"], f"{rate:,.0f}", row["peak_gib"]),
        )
        rows = {row["batch_size"]: row for row in read_json_lines(path)} | {size: row}
        with write_atomically(path, "w") as file:
            file.writelines(json.dumps(rows[size]) + "\n" for size in sorted(rows))
    return failed


def study() -> int:
    """Make rows or measure, then the page; the exit status."""
    if _BENCH.value and _REBUILD.value:
        raise UserError("`--bench`, `--rebuild`: expected one of the two, got both; leave one out")
    results, workdir = pathlib.Path(_RESULTS.value), pathlib.Path(_WORKDIR.value)
    rows = chosen_rows(workdir)

    def make() -> list[str]:
        if _BENCH.value:
            return bench(results)
        if not _REBUILD.value:
            from qpr_jax.data.sources import find_quora

            path = find_quora(log=log.info)
            return make_rows(rows, workdir, results, path, sha256_of(path))
        return []

    return finish_study(make, write_results, results)


def main() -> int:
    """The program; the exit status."""
    return run_absl(study, sys.argv)


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(program(main, measure))
