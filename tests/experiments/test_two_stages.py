"""The study of two stages: its rows, and the gains on its page."""

import numpy as np

from experiments import two_stages as study
from qpr_jax.training.checks import validate
from tests.runs import keep_row, page_of


def test_every_row_has_settings_that_are_read():
    flags = study.STUDY.read_flags({"cross_encoder": "judge"})
    trials = study.trials(flags)
    assert [trial.name for trial in trials][:4] == [*study.CONFIGS, "quora_sdml-seed1"]
    assert len(trials) == 7
    for trial in trials:
        validate(trial.config)
        assert trial.config.rerank.candidates
        crossed = trial.name.startswith(study.CROSSED)
        assert trial.config.rerank.cross_encoder == ("judge" if crossed else "")


def test_the_page_has_gains_of_each_stage(tmp_path):
    for name in ("quora_sdml", "quora_distilled"):
        ranks = keep_row(tmp_path, name, 0.5)
        for split in ("validation", "test"):
            for search in ("index", "exact"):
                better = ranks[f"{split}_{search}"].copy()
                better[::2] = 1
                ranks[f"{split}_reranked_{search}"] = better
                if name == study.CROSSED:
                    ranks[f"{split}_reranked_cross_{search}"] = np.ones_like(better)
        np.savez(tmp_path / name / "ranks.npz", **ranks)
    page = page_of(study.STUDY, tmp_path)
    # keep_row finds all by exact search.
    lines = page.partition("## The index")[2].splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    both = study.STAGES["reranked_cross"]
    assert [row[1] for row in rows[1:6]] == ["one", "light", "one", "light", both]
    first, light = rows[1], rows[2]
    assert first[3] == ""
    gain = float(light[2]) - float(first[2])
    assert light[3].startswith(f"{gain:+.3f} [")
    low, high = light[3].partition("[")[2].rstrip("]").split(", ")
    assert 0 < float(low) < gain < float(high)
    assert rows[5][2] == "1.000"
    assert "quora_minilm" not in page
