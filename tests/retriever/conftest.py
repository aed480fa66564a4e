import pathlib

import pytest

from qpr_jax.retriever import Retriever
from tests.runs import write_encoder

QUESTIONS = [
    "How can I learn Python quickly?",
    "What is the best way to learn Python?",
    "How to cook rice?",
    "What is rice",
]


@pytest.fixture
def run(tmp_path) -> pathlib.Path:
    write_encoder(tmp_path / "run", steps=3)
    return tmp_path / "run"


@pytest.fixture
def retriever(run) -> Retriever:
    return Retriever.build(QUESTIONS, [7, 8, 3, 4], encoder=run)
