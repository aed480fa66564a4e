"""The re-rankers of a run: trained, resumed after a kill, and reported."""

import shutil

import numpy as np
import pytest

from qpr_jax.data.splits import TEST, TRAIN
from qpr_jax.errors import UserError
from qpr_jax.evaluation.metrics import read_ranks
from qpr_jax.files import read_json, write_json
from qpr_jax.reranking.calibration import CALIBRATION
from qpr_jax.reranking.calibration import WEIGHTS as CALIBRATED
from qpr_jax.reranking.light import LIGHT, WEIGHTS, read_light
from qpr_jax.training import encoder_job, rerank_data
from qpr_jax.training.config import load_config
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.rerank_data import relevant_hits


def test_the_second_stage_is_reported_beside_the_first(finished):
    workdir, report = finished
    ranks = read_ranks(workdir / "ranks.npz")
    text = (workdir / "report.md").read_text()
    for split in ("validation", "test"):
        found = report[split]["reranked"]
        assert {*found} == {"per_pair", "per_query", "exact", "gain"}
        for search, scores in (("index", found), ("exact", found["exact"])):
            first = report[split] if search == "index" else report[split]["exact"]
            for over in ("per_pair", "per_query"):
                assert scores[over].keys() == first[over].keys()
                for name, (gain, low, high) in found["gain"][search][over].items():
                    assert gain == pytest.approx(scores[over][name] - first[over][name])
                    assert low <= gain <= high
            reranked = ranks[f"{split}_reranked_{search}"]
            assert np.mean(reranked == 1) == pytest.approx(scores["per_query"]["hits@1"])
        hits = found["per_query"]["hits@1"]
        assert hits > report[split]["per_query"]["hits@1"]  # the first stage has seen 12 steps
        assert f"| {split} | index, re-ranked | queries | {hits:.4f} |" in text
    facts = report["reranker"]
    assert facts["queries"] == 188
    assert facts["seconds"] > 0
    model = read_light(workdir / "export" / "reranker")
    assert model.encoder == report["encoder"]
    assert model.candidates == 50


class SharedWords:
    """A cross-encoder that counts the words that both questions have, and its calls."""

    identity = "shared words"

    def __init__(self, calls):
        self.calls = calls

    def predict(self, pairs):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        return np.array([len({*a.split()} & {*b.split()}) for a, b in pairs], np.float32)


def test_killed_second_stages_are_trained_again_to_the_same_bits(finished, tmp_path, monkeypatch):
    """The light re-ranker, and one that is stacked on a cross-encoder."""
    workdir, report = finished
    shutil.copytree(workdir, tmp_path / "run")
    (tmp_path / "run" / "report.json").unlink()
    export = tmp_path / "run" / "export"
    paths = [export / LIGHT / WEIGHTS, export / CALIBRATION / CALIBRATED]
    expected = [path.read_bytes() for path in paths]
    for path in paths:
        shutil.rmtree(path.parent)
    settings = read_json(workdir / "run.json")
    write_json(tmp_path / "run" / "run.json", settings | {"cross_encoder.identity": "shared words"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(rerank_data, "PART", 1000)
    monkeypatch.setattr(rerank_data, "MIN_QUERIES", 20)
    config = load_config("synthetic_sdml:smoke")
    config.devices = 2
    splits = []

    def label(dataset, lists):
        splits.append(dataset.splits.split_of[lists.rows])
        return relevant_hits(dataset, lists)

    def run(calls):
        splits.clear()
        scorer = SharedWords(calls)
        with monkeypatch.context() as patch:
            patch.setattr(encoder_job, "read_scorer", lambda config: scorer)
            patch.setattr(rerank_data, "relevant_hits", label)
            return train_and_evaluate(config, tmp_path / "run"), calls - scorer.calls

    with pytest.raises(KeyboardInterrupt):
        run(3)
    again, calls = run(100)
    assert 2 <= calls <= 9  # in all, 188 and 102 queries have 20 hits each
    # Nothing is learned from test questions, and first weights from training questions alone.
    found, pretrained = splits[:2]
    assert 0 < np.sum(found != TEST) == again["reranker"]["hits"] < len(found)
    assert (pretrained == TRAIN).all()
    assert run(0) == (again, 0)
    assert [path.read_bytes() for path in paths] == expected
    assert again["reranker_cross"]["cross_encoder"] == "shared words"
    text = (tmp_path / "run" / "report.md").read_text()
    for split in ("validation", "test"):
        assert {*again[split]["reranked_cross"]} == {"per_pair", "per_query", "exact", "gain"}
        assert f"| {split} | exact, with cross-encoder |" in text
        del again[split]["reranked_cross"]
        assert again[split] == report[split]
    model = read_light(export / "reranker_cross")
    assert (model.cross_encoder, model.candidates) == ("shared words", 20)
    assert model.features[-1] == "cross"
    with pytest.raises(UserError, match=r"cross_encoder\.identity: 'shared words' there"):
        train_and_evaluate(config, tmp_path / "run")


def test_of_too_few_queries_no_re_ranker_is_made(finished, tmp_path, monkeypatch, caplog):
    shutil.copytree(finished[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "export" / "reranker")
    (tmp_path / "run" / "report.json").unlink()
    config = load_config("synthetic_sdml:smoke")
    config.devices = 2
    monkeypatch.setattr(rerank_data, "MIN_QUERIES", 1000)
    report = train_and_evaluate(config, tmp_path / "run")
    assert "no re-ranker: expected 1000 validation questions or more" in caplog.text
    assert "reranker" not in report
    assert "reranked" not in report["test"]
    assert not (tmp_path / "run" / "export" / "reranker").exists()
