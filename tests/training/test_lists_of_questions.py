"""Trainings on a list of questions, by the vectors of a teacher."""

import numpy as np
import pytest

from qpr_jax import Retriever
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.errors import UserError
from qpr_jax.training import rerank_data
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.sources import listed_files, read_listed


@pytest.fixture
def listed(tmp_path):
    """A list of 400 questions, some of them twice, and vectors: sums of those of their words."""
    rng = np.random.default_rng(0)
    words = ["how", "can", "i", "learn", "python", "cook", "rice", "fix", "my", "bike", "now"]
    questions = [" ".join(rng.choice(words, rng.integers(2, 6))) for _ in range(390)]
    questions += questions[:10]
    (tmp_path / "questions.txt").write_text("".join(f"{question}\n" for question in questions))
    vectors = rng.normal(size=(len(words), 16)).astype(np.float32)
    counts = [[question.split().count(word) for word in words] for question in questions]
    np.save(tmp_path / "vectors.npy", np.float32(counts) @ vectors)
    return tmp_path


@pytest.mark.slow
def test_a_list_of_questions_makes_a_student_that_agrees(tmp_path, listed, monkeypatch):
    monkeypatch.setattr(rerank_data, "MIN_QUERIES", 20)
    changes = {
        "data.path": str(listed / "questions.txt"),
        "teacher.model": str(listed / "no.npy"),
        "teacher.epochs": 1,
        "data.spliced": 0,
        "optimizer.learning_rate": 1e-2,
        "teacher.batch_size": 64,
        "rerank.candidates": 50,
        "devices": 2,
    }
    config = load_config("distill:smoke", changes)
    config.max_steps = 300
    config.early_stopping.every_steps = config.checkpoint_every = 100
    with pytest.raises(UserError, match=r"no.npy: expected a .npy file of floats, 400 rows"):
        train_and_evaluate(config, tmp_path / "run")
    config.teacher.model = str(listed / "vectors.npy")  # and the same command resumes
    report = train_and_evaluate(config, tmp_path / "run")
    assert report["test"]["agreement"] > 0.3
    assert report["data"]["splits"]["test"]["questions"] >= 30
    text = (tmp_path / "run" / "report.md").read_text()
    assert "Agreement" in text
    assert "none of them held out" in text
    retriever = Retriever.load(tmp_path / "run")
    assert isinstance(retriever.encoder, CnnEncoder)
    vectors = retriever.encode(["how can i cook rice", ""])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    # Its re-ranker learns to find the nearest question of the teacher.
    assert 20 <= report["reranker"]["relevant_hits"] <= report["reranker"]["queries"]
    assert retriever.search(["how can i cook"])[0][0].score is not None
    # A student is like its teacher on what it never saw.
    assert len(retriever.search(["how can i learn to cook"], k=3)[0]) == 3


def test_a_list_too_short_to_split_is_refused(tmp_path):
    path = tmp_path / "few.txt"
    path.write_text("one?\nOne\ntwo?\n")
    config = load_config("distill")
    config.data.path = str(path)
    with pytest.raises(UserError, match="expected at least 10 different questions, got 2"):
        load_dataset(config, path)


def test_a_list_may_be_several_files_and_one_side_of_translations(tmp_path):
    (tmp_path / "a, b.txt").write_text("one?\ntwo?\n")
    (tmp_path / "more.jsonl").write_text('{"question": "three?", "answer": "3"}\n')
    (tmp_path / "both.tsv").write_text("four\tvier\nfour\tviere\nfive\tfünf\n")
    config = load_config("distill")
    more = f"{tmp_path / 'more.jsonl'}, en-de:{tmp_path / 'both.tsv'}"
    for path, expected in (
        (f"{tmp_path / 'a, b.txt'}", ["one?", "two?"]),
        (more, ["three?", "four", "five"]),
    ):
        config.data.path = path
        assert [*read_listed(config, "data.path")] == expected
    assert [file.name for file in listed_files(config, "data.path")] == ["more.jsonl", "both.tsv"]
    config.data.path = f"{more},{tmp_path / 'none'}"
    with pytest.raises(UserError, match=r"`data.path`: expected a file of questions .* none at"):
        listed_files(config, "data.path")
