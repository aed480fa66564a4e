import json
import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import accelerator, accelerator_loss, accelerator_step
from benchmarks.accelerator_page import goals, measured, page
from benchmarks.loss import pairs
from benchmarks.measuring import Clock, seconds_in_turns
from qpr_jax.losses import sdml_loss

RATES = {"highest": 1e9}


def loss_rows(size=64, clock=None):
    return accelerator_loss.measure_loss(size, 8, RATES, clock or Clock(600), {})


def results(rows, **facts):
    facts = {
        "device": "NVIDIA H-9 (80GB)",
        "driver": "1",
        "backend": "cuda",
        "date": "today",
    } | facts
    return {
        "command": "python -m benchmarks.accelerator",
        "smoke": False,
        "facts": facts | {"versions": {"jax": "0"}},
        "torch": {"torch": "not installed"},
        "rows": rows,
        "rates": {"bf16": 1e12},
        "done": [],
    }


def loss_row(size, variant, seconds, floor=1.0, precision="bf16", **more):
    row = {"part": "loss", "size": size, "variant": variant, "precision": precision}
    return row | {"seconds": seconds, "floor": floor, "error": 1e-3, "gib": 1.0} | more


def step_row(waited, size=512):
    row = {"part": "step", "size": size, "variant": "cnn", "precision": "float32", "gib": 1.0}
    return row | {"seconds": 1.0, "loop_seconds": 1.0, "waited": waited, "encode_chunk": 0}


def test_the_reference_is_the_loss_and_its_gradient():
    x, y = pairs(48, 5)
    value, gradients = accelerator_loss.exact_loss(x, y)
    assert value == pytest.approx(float(sdml_loss(jnp.asarray(x), jnp.asarray(y))), rel=1e-5)
    step = 1e-6
    for side, gradient in enumerate(gradients):
        for place in ((0, 0), (17, 3), (47, 4)):
            moved = []
            for sign in (1, -1):
                both = [np.array(a, np.float64) for a in (x, y)]
                both[side][place] += sign * step
                moved.append(accelerator_loss.exact_loss(*both)[0])
            assert gradient[place] == pytest.approx((moved[0] - moved[1]) / 2 / step, abs=1e-8)


def test_every_variant_is_timed_and_compared():
    rows = loss_rows()
    assert [row["variant"] for row in rows] == ["tiles", "kernel", "plain"]
    for row in rows:
        assert "left_out" not in row, row["left_out"]
        assert row["seconds"] > 0
        assert row["error"] < 1e-5
        assert row["gradient_error"] < 1e-4
        assert row["floor"] == 6 * 64**2 * 8 / 1e9
    assert accelerator.faults(rows) == []


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_wrong_kernel_fails_and_is_not_ranked(monkeypatch, factor):
    def wrong(*vectors, implementation, **how):
        return (factor if implementation == "pallas" else 1) * sdml_loss(*vectors, **how)

    monkeypatch.setattr(accelerator_loss, "sdml_loss", wrong)
    rows = loss_rows()
    found = results(rows)
    (fault,) = accelerator.faults(rows)
    assert fault.startswith("loss kernel highest at 64: the value is off by ")
    assert {row["variant"] for row in measured(found, "loss")} == {"tiles", "plain"}
    assert sum("WRONG" in line for line in page(found, "a.png")) == 1


def test_a_case_that_fails_leaves_the_others(monkeypatch):
    def failing(*vectors, implementation, tile="auto", **how):
        if implementation == "pallas":
            raise RuntimeError("RESOURCE_EXHAUSTED: Shared memory size limit exceeded")
        if tile is None:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
        return sdml_loss(*vectors, **how)

    monkeypatch.setattr(accelerator_loss, "sdml_loss", failing)
    tiles, kernel, plain = rows = loss_rows()
    assert "seconds" in tiles
    assert "Shared memory" in kernel["left_out"]
    assert plain["left_out"] == "out of memory"
    assert len(accelerator.faults(rows)) == 1  # too little memory is no fault


def test_what_has_no_time_or_memory_is_left_out_with_the_reason(monkeypatch):
    rows = loss_rows(clock=Clock(0))
    assert {row["left_out"] for row in rows} == {"the time of this part is spent"}
    assert accelerator.faults(rows) == []
    monkeypatch.setattr(accelerator_loss, "free_memory", lambda device: 10)
    assert all(row["left_out"].startswith("needs 0.0 GiB") for row in loss_rows())


def test_goals_are_met_or_not_or_not_measured():
    assert [verdict for _, verdict in goals(results([]))] == ["not measured"] * 3
    rows = [loss_row(n, "tiles", 5.0) for n in (1024, 16_384, 65_536)]
    rows += [loss_row(n, "kernel", 2.5) for n in (16_384, 65_536)]
    met = [verdict for _, verdict in goals(results([*rows, step_row(0.01)]))]
    assert met[0] == "met (N = 65,536: 2.50)"
    assert met[1].startswith("met (N = 16,384 bf16: 2.00 times as fast; N = 65,536")
    assert met[2] == "met (CNN, 512, float32 1.0%)"
    # A wrong kernel meets no goal, however fast.
    rows[-1] |= {"wrong": "by far", "seconds": 0.1}
    slower = loss_row(262_144, "kernel", 9.0), loss_row(262_144, "tiles", 8.0)
    found = [verdict for _, verdict in goals(results([*rows, *slower, step_row(0.2)]))]
    assert found[0] == "NOT met (N = 65,536: 5.00; N = 262,144: 8.00)"
    assert found[1].startswith("NOT met (N = 16,384")
    assert found[2].startswith("NOT met")
    assert goals(results([step_row(0.9, size=64)]))[2][1] == "not measured"


def test_files_are_named_by_the_device(tmp_path):
    found = results([loss_row(1024, "kernel", 2.0), step_row(0.5)])
    path = accelerator.write(found, tmp_path)
    names = {f"accelerator_nvidia_h_9_80gb.{end}" for end in ("json", "md", "png")}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert json.loads(path.with_suffix(".json").read_text()) == found
    text = path.read_text()
    for part in ("# NVIDIA H-9 (80GB)", "| highest | not measured |", "| 1,024 | bf16 | fused"):
        assert part in text


def test_a_crash_keeps_the_parts_before_it(monkeypatch, tmp_path):
    def crash(*_, **__):
        raise MemoryError

    monkeypatch.setattr(accelerator_step, "generated", crash)
    monkeypatch.setattr(sys, "argv", ["accelerator", "--smoke", "--out", str(tmp_path)])
    monkeypatch.setattr(accelerator, "SMOKE", accelerator.SMOKE._replace(loss=(32,), product=32))
    with pytest.raises(MemoryError):
        accelerator.main()
    kept = json.loads((tmp_path / "accelerator_cpu.json").read_text())
    assert kept["done"] == ["rates", "loss at 32"]
    assert "tiny shapes, no measurement" in (tmp_path / "accelerator_cpu.md").read_text()


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["accelerator", "--out", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        accelerator.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "error: expected a GPU or TPU, found none; --smoke runs on any machine"
    assert not (tmp_path / "none").exists()


@pytest.mark.slow  # compiles steps as a benchmark does
def test_steps_and_encoding_of_a_generated_log():
    datasets = {"cnn": accelerator_step.generated(60)}
    sizes = {"embedding_dim": 8, "filters": 8, "output_dim": 8, "kernel_sizes": (3,)}
    rows = [
        *accelerator_step.measure_steps(
            datasets, [16, 10_000], RATES, Clock(600), steps=3, **sizes
        ),
        *accelerator_step.measure_encoding(datasets, Clock(600), questions=32, **sizes),
    ]
    steps, encoded = (
        [r for r in rows if r["part"] == part and r["size"] < 10_000]
        for part in ("step", "encoding")
    )
    assert [(row["precision"], "floor" in row) for row in steps] == [
        ("float32", True),
        ("bfloat16", False),
    ]
    for row in steps:
        assert 0 <= row["waited"] <= 1
        assert row["loop_seconds"] > 0
    assert [row["precision"] for row in encoded] == ["host", "float32", "bfloat16"]
    assert accelerator.faults(encoded) == []
    too_many = [row for row in rows if row["size"] == 10_000]
    assert all("expected 10000 pairs" in row["left_out"] for row in too_many)


def test_calls_take_turns_until_the_time_is_spent():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    assert set(seconds_in_turns(calls, rounds=3)) == {"a", "b"}
    assert "".join(order) == "ababab"
    order.clear()
    seconds_in_turns(calls, rounds=3, limit=0)
    assert "".join(order) == "ab"


@pytest.mark.slow
def test_the_smoke_run_ends_without_a_fault(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["accelerator", "--smoke", "--out", str(tmp_path)])
    assert accelerator.main() == 0
    kept = json.loads((tmp_path / "accelerator_cpu.json").read_text())
    assert {"steps", "encoding"} <= set(kept["done"])
    bert = [row for row in kept["rows"] if row["variant"] == "bert" and row["part"] == "step"]
    assert all("seconds" in row or "time" in row["left_out"] for row in bert)
