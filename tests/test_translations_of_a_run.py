"""A whole run learns a made-up language from its teacher's vectors of English sentences."""

import pytest

from qpr_jax.files import read_json
from qpr_jax.training.main import train_and_evaluate
from tests.made_up_language import LANGUAGE
from tests.translation_runs import translated_config

LEARNED = {
    "data.glossed": 1,
    "text.vocabulary_size": 2000,
    "text.hash_bins": 300,
    "teacher.epochs": 8,
    "teacher.batch_size": 128,
    "optimizer.learning_rate": 0.01,
    "teacher.weight": 1.0,
    "batch.translations": 0.5,
    "batch.subword_dropout": 0.1,
    "max_steps": 8,
    "devices": 4,
}


@pytest.mark.slow
def test_it_finds_every_translation(tmp_path):
    config = translated_config(tmp_path, sentences=900, words=200, **LEARNED)
    report = train_and_evaluate(config, tmp_path / "run")
    assert read_json(tmp_path / "run" / "report.json") == report
    found = report["translations"]
    assert [(s["language"], s["name"]) for s in found["sets"]] == [
        (LANGUAGE, "validation"),
        (LANGUAGE, "test"),
    ]
    for scores in found["sets"]:
        assert scores["sentences"] == 50
        assert scores["to_source"] == scores["to_target"] == 1
        assert scores["cosine_source"] > 0.9
        assert scores["cosine_target"] > 0.9
        assert scores["retrieval"]["hits@1"] > 0.9
    assert 0.5 < found["known"][LANGUAGE] <= 1
    # The files by name, without their folder.
    files = {file["name"]: file for file in found["files"]}
    assert files.keys() == {"sentences.tsv", "words.tsv"}
    assert [file["dictionary"] for file in files.values()] == [False, True]
    counts = found["counts"][LANGUAGE]
    assert files["sentences.tsv"]["rows"] == counts["trained_sentences"]
    assert files["words.tsv"]["language"] == LANGUAGE
