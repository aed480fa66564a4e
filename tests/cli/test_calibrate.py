"""Probabilities of found pairs, fitted to verdicts."""

import json

import numpy as np
import pytest

from qpr_jax.retriever import Retriever
from tests.runs import WORDS, write_encoder


@pytest.fixture
def verdicts(tmp_path):
    """A file of pairs that are duplicates where they share all words but one."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(120):
        words = rng.choice(WORDS, 6)
        duplicate = rng.random() < 0.5
        other = (
            np.concatenate([words[:5], rng.choice(WORDS, 1)]) if duplicate else rng.choice(WORDS, 6)
        )
        rows.append((" ".join(words), " ".join(other), int(duplicate)))
    names = ("question1", "question2", "is_duplicate")
    path = tmp_path / "verdicts.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, r, strict=True))) + "\n" for r in rows))
    return path


def test_a_run_gets_a_calibration(qpr, verdicts, tmp_path):
    write_encoder(tmp_path / "run")
    status, out, err = qpr("calibrate", "run", verdicts, "--json")
    assert status == 0, err
    facts = json.loads(out)
    assert (facts["verdicts"], facts["before"]) == (120, None)
    assert facts["after"]["brier"] < facts["after"]["base_brier"]
    assert "after: calibration error" in err
    stages = Retriever.load(tmp_path / "run" / "export").stages
    known = stages.require_calibration()
    assert known.settings["verdicts"] == 120
    distances = np.array([0.0, known.reach])
    near, far = known.probabilities(np.stack([np.sqrt(distances), distances], axis=1))
    assert far < 0.3 < 0.6 < near
    # The same verdicts do not count twice.
    status, out, err = qpr("calibrate", "run", verdicts, "--json", "--out", "copy")
    assert status == 0, err
    assert json.loads(out)["before"]["ece"] < 0.2
    copied = Retriever.load(tmp_path / "copy").stages
    again = copied.require_calibration()
    assert again.identity == known.identity
    assert again.reach == known.reach
