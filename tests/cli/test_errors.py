import json

import numpy as np
import pytest

from qpr_jax import Retriever
from qpr_jax.evaluation.retrieval import exact_search, rank
from tests.runs import write_encoder

WAYS = ("how can i {}", "what is the best way to {}", "how do people {} in 2016?", "I {}. How?")
THINGS = ("learn python", "cook rice", "mend a bike", "not sleep", "<script>alert(1)</script>")
TEXTS = [way.format(thing) for thing in THINGS for way in WAYS]
QUESTIONS = {10 * i + 7: text for i, text in enumerate(TEXTS)}


def make_run(folder, seed, questions=QUESTIONS):
    write_encoder(folder, seed)
    Retriever.build([*questions.values()], [*questions], run=folder).save(folder)
    return folder


@pytest.fixture
def runs(tmp_path):
    """Two runs of other encoders on the same questions, in another order; splits in the first."""
    first = make_run(tmp_path / "first", 0)
    second = make_run(tmp_path / "second", 1, dict(reversed(QUESTIONS.items())))
    (first / "splits").mkdir()
    ids = [*QUESTIONS]
    pairs = [(a, b) for i in range(0, 20, 4) for a in ids[i : i + 4] for b in ids[i : i + 4]]
    lines = [f"{a}\t{b}\n" for a, b in pairs if a < b]
    (first / "splits" / "test.tsv").write_text("id1\tid2\n" + "".join(lines))
    (first / "splits" / "validation.tsv").write_text("id1\tid2\n7\t17\n")
    (first / "splits" / "train.tsv").write_text("id1\tid2\n")
    return first, second


def failing_by_exact_search(run):
    """Ids of the queries whose nearest other question is of another thing."""
    positions = np.array([i for i in range(20) if i % 4 < 3])  # the last heads no pair
    nearest = rank(exact_search(Retriever.load(run).encode(TEXTS)), positions, 1)[:, 0]
    return [10 * i + 7 for i in positions[nearest // 4 != positions // 4].tolist()]


def test_two_runs_side_by_side(qpr, runs, tmp_path):
    status, out, stderr = qpr("errors", *runs, "--out", "made/errors.json")
    assert (status, out) == (0, "")
    value = json.loads((tmp_path / "made" / "errors.json").read_text())
    assert value["runs"] == ["first", "second"]
    wrong = [
        [case["id"] for case in value["failing"] if case["answers"][run]["failed"]]
        for run in (0, 1)
    ]
    assert wrong == [*map(failing_by_exact_search, runs)]
    assert value["queries"] == 15
    assert "unseen" in value["groups"]
    assert f"both at {len({*wrong[0]} & {*wrong[1]})}\n" in stderr


def test_pages_of_one_run_and_of_two(qpr, runs, tmp_path):
    for name in ("errors.html", "errors.md"):
        assert qpr("errors", *runs, "--out", name)[0] == 0
        both = (tmp_path / name).read_text()
        assert "<script>" not in both
        assert "script" in both
        assert qpr("errors", runs[0], "--out", name, "--examples", "1")[0] == 0
        assert "second" not in (tmp_path / name).read_text()


def test_runs_that_cannot_be_compared(qpr, runs, tmp_path):
    first, _ = runs
    other = make_run(tmp_path / "other", 0, {**QUESTIONS, 7: "another"})
    for second, said in ((first, "`other`"), (other, "another text for id 7")):
        status, out, stderr = qpr("errors", first, second, "--out", "e.md")
        assert (status, out, said in stderr) == (1, "", True), stderr
    assert not (tmp_path / "e.md").exists()
