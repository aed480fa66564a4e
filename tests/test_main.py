"""The program as a user meets it."""

import math
import re
import shutil

import numpy as np
import pytest
from flax import nnx

from qpr_jax import Retriever
from qpr_jax.encoders.cnn_encoder import read_cnn
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.evaluator import make_evaluator
from qpr_jax.training.metrics import read_json_lines
from qpr_jax.training.model_families import family_of
from qpr_jax.training.publishing import publish
from qpr_jax.training.run import train_and_evaluate
from qpr_jax.training.train import train
from tests.data.log_rows import log_rows, write_rows
from tests.encoders.examples import encode_rows
from tests.refused import check_refused


def test_a_run_leaves_all_that_it_promises(finished):
    workdir, _ = finished
    names = {path.name for path in workdir.iterdir() if not path.name.startswith(".")}
    assert names == {
        *("run.json", "splits", "metrics.jsonl", "evaluations.jsonl", "tensorboard"),
        *("checkpoints", "export", "index", "ranks.npz", "report.json", "report.md"),
    }
    assert {path.name for path in (workdir / "splits").iterdir()} == {
        *("train.tsv", "validation.tsv", "test.tsv", "questions.tsv"),
        *("labelled_validation.jsonl", "labelled_test.jsonl"),
    }
    steps = read_json_lines(workdir / "metrics.jsonl")
    assert [row["step"] for row in steps] == list(range(1, 13))
    names = {"step", "loss", "grad_norm", "seconds", "pairs_per_second"}
    names |= {"false_negatives", "rows_with_false_negatives"}
    assert all(set(row) == names for row in steps)
    assert len(list((workdir / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_a_run_is_published_with_the_scores_of_its_report(finished, tmp_path, monkeypatch):
    workdir, report = finished
    monkeypatch.setenv("QPR_MODELS", str(tmp_path))
    publish(workdir, tmp_path / "mine", licence="cc0-1.0", data="A generated log.")
    card = (tmp_path / "mine" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: qpr_jax\n")
    for split, name in (("validation", "validation, which chose among checkpoints"), ("test",) * 2):
        for over, title in (("per_pair", "pairs"), ("per_query", "queries")):
            found = report[split]["exact"][over]
            row = next(r for r in card.splitlines() if r.startswith(f"| {name} | {title} |"))
            for cell, metric in zip(
                row.split("|")[3:6], ("hits@1", "hits@10", "mrr@20"), strict=True
            ):
                mean, low, high = (float(n) for n in re.findall(r"[0-9.]+", cell))
                assert mean == pytest.approx(found[metric], abs=5e-4)
                assert low <= mean <= high
    assert "| test, by score | queries | " in card
    assert "by a words model of pairs" in card
    train = report["data"]["splits"]["train"]
    assert f"{train['questions']:,} questions, {train['pairs']:,} pairs" in card
    for text in ('license: "cc0-1.0"', "A generated log.", "`synthetic`", 'Retriever.load("mine")'):
        assert text in card
    retriever, questions = Retriever.load(workdir), ["how can i learn python", "zebra", ""]
    expected = retriever.encode(questions)
    np.testing.assert_array_equal(Retriever.load("mine").encode(questions), expected)
    (hit,) = retriever.search(retriever[7].text, k=1)[0]
    assert (hit.id, hit.distance) == (7, pytest.approx(0, abs=1e-5))


def test_the_report_holds_the_promised_keys_and_sane_numbers(finished):
    workdir, report = finished
    metrics = ("recall", "precision", "map", "ndcg")
    names = {f"{metric}@{k}" for metric in metrics for k in (1, 3, 5, 10, 20)}
    names |= {"hits@1", "hits@10", "mrr@20"}
    for split in ("validation", "test"):
        for found in (report[split], report[split]["exact"]):
            for scores in (found["per_pair"], found["per_query"]):
                assert set(scores) == names
                assert all(0 <= value <= 1 for value in scores.values())
                assert scores["hits@1"] <= scores["mrr@20"] <= scores["hits@10"] + 0.1
        assert 0 <= report[split]["roc_auc"] <= 1
    assert 0 < report["index"]["recall@10"] <= 1
    timing = report["timing"]
    assert all(math.isfinite(value) and value > 0 for value in timing.values())
    assert {"query_ms_p50", "train_seconds", "encode_questions_per_second"} <= set(timing)
    assert report["data"]["questions"] == report["index"]["questions"] == 992
    text = (workdir / "report.md").read_text()
    assert f"| test | index | queries | {report['test']['per_query']['hits@1']:.4f} |" in text
    rows = read_json_lines(workdir / "evaluations.jsonl")
    assert [row["step"] for row in rows] == [5, 10, 12]
    assert all(set(row) == {"step", "roc_auc", "mrr", "hits@1"} for row in rows)


def test_the_exported_encoder_is_the_flax_encoder_of_the_best_step(finished, tmp_path):
    workdir, _ = finished
    config = override(load_config("synthetic_sdml:smoke"), {"early_stopping.metric": "roc_auc"})
    dataset, exported = load_dataset(config, None), read_cnn(workdir / "export")
    rows = read_json_lines(workdir / "evaluations.jsonl")
    best = max(rows, key=lambda row: row["mrr"])
    score = make_evaluator(dataset, config)  # of what is watched and, always, the ROC AUC
    assert score(exported) == {"roc_auc": pytest.approx(best["roc_auc"])}
    # It only restores the best. Of a copy, since it adds a file of events.
    shutil.copytree(workdir / "checkpoints", tmp_path / "checkpoints")
    params = train(load_config("synthetic_sdml:smoke"), dataset, tmp_path)
    graph, _ = family_of(None).init(config, dataset)
    expected = encode_rows(nnx.merge(graph, params), dataset.token_ids[:200])
    found = exported.encode(dataset.data.questions[:200])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_data_of_a_run():
    """Words of validation and test are not in the vocabulary."""
    changes = {"text.vocabulary_size": 10**6}
    dataset = load_dataset(override(load_config("synthetic_sdml:smoke"), changes), None)
    splits = dataset.splits
    of_training = np.array(dataset.data.questions, object)[splits.split_of == 0]
    assert {*dataset.tokenizer.words} == {word for text in of_training for word in tokenize(text)}


def test_a_training_by_similarities_learns(tmp_path):
    changes = {
        "loss.names": ("ranking",),
        "loss.smoothing": 0.0,
        "loss.mask_own_cluster": True,
        "loss.symmetric": True,
        "batch.sampling": "clusters",
        "encoder.normalize": True,
        "max_steps": 60,
        "early_stopping.every_steps": 30,
        "optimizer.learning_rate": 1e-2,
        "rerank.candidates": 0,
        "devices": 2,
    }
    config = override(load_config("synthetic_sdml:smoke"), changes)
    report = train_and_evaluate(config, tmp_path / "run")
    losses = [row["loss"] for row in read_json_lines(tmp_path / "run" / "metrics.jsonl")]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert report["test"]["exact"]["per_query"]["mrr@20"] > 0.4


@pytest.mark.slow
def test_logs_of_questions_and_answers_train(tmp_path):
    config = load_config("openqa_sdml:smoke")
    config.rerank.candidates = 0
    config.data.path = write_rows(tmp_path / "logs.jsonl", log_rows())
    report = train_and_evaluate(config, tmp_path / "run")
    counts = report["data"]["distant_supervision"]
    assert report["data"]["questions"] == counts["questions"]
    assert counts["method"]["coherence"] == "pairwise"
    for split, numbers in counts["splits"].items():
        assert report["data"]["splits"][split]["pairs"] == numbers["pairs"] > 0
    # A folder that was made before gives the same, and no second one is made.
    config.data.path = str(tmp_path / "run" / "clusters")
    again = train_and_evaluate(config, tmp_path / "again")
    assert again["test"] == report["test"]
    assert not (tmp_path / "again" / "clusters").exists()
    config.data.coherence = "paper"
    said = "`data.coherence`: .*: expected clusters made with paper, got"
    check_refused(train_and_evaluate, (config, tmp_path / "fourth", said))
    assert not (tmp_path / "fourth" / "run.json").exists()
    # Another training in the same folder has clusters of its own.
    others = [(f"OTHER {question}", answer) for question, answer in log_rows()]
    config.data.path = write_rows(tmp_path / "others.jsonl", others)
    train_and_evaluate(config, tmp_path / "run", overwrite=True)
    assert "OTHER" in (tmp_path / "run" / "clusters" / "pairs_train.tsv").read_text()
    config.data.path = str(tmp_path / "none")
    said = "expected logs of questions and answers, found none at"
    check_refused(train_and_evaluate, (config, tmp_path / "third", said))
