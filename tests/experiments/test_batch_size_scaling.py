"""The batch-size study: its rows, the page from made-up ones, and the measurements."""

import json

import numpy as np
import pytest

from experiments import batch_size_scaling as study
from experiments.trials import shrink
from qpr_jax.errors import UserError
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.overrides import override
from tests.runs import keep_row, page_of


@pytest.mark.parametrize("rule", study.RULES)
@pytest.mark.parametrize("size", study.SIZES)
def test_all_rows_but_those_to_early_stop_see_the_same_pairs(size, rule):
    config = study.row_config(size, rule)
    validate(config)
    if rule == "stop":
        assert config.max_steps == 0
        return
    assert abs(config.max_steps * size - study.EXAMPLES) < size
    # The last evaluation is at the end, and none is left out by early stopping.
    assert config.max_steps // config.early_stopping.every_steps <= config.early_stopping.patience


def keep_trial(results, size, rule, rate=0.5):
    name = f"n_{size}_{rule}"
    keep_row(results, name, rate)
    timing = {"steps": 10, "pairs_per_second": 1234.5}
    report = {"settings": {"batch_size": size}, "timing": timing}
    write_json(results / name / "report.json", report)
    rng = np.random.default_rng(size)
    steps = [
        {"false_negatives": rng.random(), "rows_with_false_negatives": rng.random()}
        for _ in range(10)
    ]
    lines = "".join(f"{json.dumps(step)}\n" for step in steps)
    (results / name / "metrics.jsonl").write_text(lines)
    return steps


def test_the_page_is_made_of_the_rows(tmp_path):
    steps = keep_trial(tmp_path, 64, "mask")
    for size, rule in ((32, "mask"), (32, "sqrt"), (64, "stop")):
        keep_trial(tmp_path, size, rule)
    page = page_of(study.STUDY, tmp_path)
    assert page.count("| by the root, own cluster masked | ") == 2
    rules = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| ")][1:]
    labels = [
        (study.RULES[rule][0], size)
        for rule, size in (("sqrt", "32"), ("mask", "32"), ("mask", "64"), ("stop", "64"))
    ]
    assert [(label[2:], size) for label, size in rules] == labels
    assert f"| {np.mean([step['false_negatives'] for step in steps]):.3%} |" in page
    assert f"| {np.mean([step['rows_with_false_negatives'] for step in steps]):.1%} |" in page
    for plot in ("quality", "false_negatives"):
        assert (tmp_path / "plots" / f"{plot}.png").stat().st_size > 1000
    assert "## Time and memory of a step" not in page

    keep_trial(tmp_path, 64, "cube")
    with pytest.raises(UserError, match="n_64_cube: not a trial of this study"):
        page_of(study.STUDY, tmp_path)


def test_flags_choose_sizes_and_rules():
    def names(**flags):
        return {trial.name for trial in study.trials(study.STUDY.read_flags(flags))}

    assert names(sizes=["32", "64"], rules=["mask"]) == {"n_32_mask", "n_64_mask"}
    # At the size of the config all rules give the same learning rate.
    assert names(sizes=["512"]) == {"n_512_sqrt", "n_512_mask", "n_512_stop"}
    assert len(names()) == 3 + 6 * 5
    (trial,) = study.trials(study.STUDY.read_flags({"sizes": ["64"], "rules": ["mask"]}))
    assert trial.config.batch_size == 64
    assert trial.config.optimizer.learning_rate_scaling == "sqrt"


@pytest.mark.slow  # compiles steps as a benchmark does
def test_steps_are_measured_and_the_page_is_made_of_them(tmp_path, generated_data, monkeypatch):
    plain = study.bench_config

    def small(size):
        return override(shrink(plain(size)), {"batch_size": size, "devices": 1})

    monkeypatch.setenv("QPR_DATA_DIR", str(generated_data))
    monkeypatch.setattr(study, "bench_config", small)
    monkeypatch.setattr(study, "run", lambda module, arguments: study.measure(**arguments))
    monkeypatch.setattr(study, "ENCODE_CHUNK", 40)
    monkeypatch.setattr(study, "BENCH_PAIRS", 200)
    other = {"batch_size": 72, "seconds": 1.0, "peak_gib": 0.5}
    (tmp_path / study.BENCH_FILE).write_text(json.dumps(other) + "\n")
    assert study.STUDY.run(bench=True, sizes=["64"], results=tmp_path, workdir=tmp_path) == 0
    rows = [json.loads(row) for row in (tmp_path / study.BENCH_FILE).read_text().splitlines()]
    assert [row["batch_size"] for row in rows] == [64, 72]
    assert rows[0]["encode_chunk"] == 40
    assert plain(40).batch.encode_chunk == 0
    assert all(row["seconds"] > 0 and row["peak_gib"] > 0 for row in rows)
    assert "## Time and memory of a step" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "plots" / "cost.png").exists()
    # What was measured is measured again only where it is named.
    monkeypatch.setattr(study, "BENCH_SIZES", (64, 72))
    monkeypatch.setattr(study, "run", None)
    assert study.STUDY.run(bench=True, results=tmp_path, workdir=tmp_path) == 0
