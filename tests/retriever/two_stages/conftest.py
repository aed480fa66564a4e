"""A retriever whose encoder has a re-ranker."""

import pytest

from qpr_jax.retriever import Retriever
from tests.runs import write_encoder, write_reranker

ASKED = ["how do i cook rice", "learn python in 2015"]
QUESTIONS = {
    i: f"how {verb} i {what}"
    for i, (verb, what) in enumerate(
        (verb, what)
        for verb in ("can", "cannot", "do")
        for what in ("learn python", "cook rice", "cook rye", "learn rice in 2016", "rust")
    )
}


@pytest.fixture
def run(tmp_path):
    write_encoder(tmp_path / "run")
    write_reranker(tmp_path / "run", candidates=6)
    return tmp_path / "run"


@pytest.fixture
def retriever(run):
    return Retriever.build([*QUESTIONS.values()], [*QUESTIONS], run=run)
