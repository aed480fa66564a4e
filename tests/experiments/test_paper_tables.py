"""The paper's tables: from finished trials to intervals, verdicts and pages."""

import csv

import numpy as np
import pytest

from experiments import paper_tables
from experiments.paper_numbers import TABLES
from experiments.paper_tables import CHANGES, CONFIGS, IDEAS, LEXICAL, ROWS, row_config
from experiments.study import Trials
from experiments.trials import load
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten
from tests.runs import keep_row, page_of


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_scores_are_means_over_pairs_and_over_queries(tmp_path):
    arrays = keep_row(tmp_path, "sdml", 0.6)
    rank, pairs = arrays["test_index"].astype(float), arrays["test_pairs"]
    reciprocal = np.where(rank > 0, 1 / np.maximum(rank, 1), 0)
    kept = Trials(tmp_path, tmp_path)
    for over, weights in (("pair", pairs), ("query", np.ones(len(pairs)))):
        expected = [
            np.average(rank == 1, weights=weights),
            np.average((rank > 0) & (rank <= 10), weights=weights),
            np.average(reciprocal, weights=weights),
        ]
        np.testing.assert_allclose(kept.scores("test", over).mean("sdml"), expected)


def test_the_interval_is_as_wide_as_the_clusters_say(tmp_path):
    """Clusters of two like-minded queries: the standard error of half as many draws."""
    arrays = keep_row(tmp_path, "sdml", 0.5, queries=4000)
    path = tmp_path / "sdml" / "ranks.npz"
    arrays["test_index"] = np.repeat(arrays["test_index"][::2], 2)
    np.savez_compressed(path, **arrays)
    low, high = Trials(tmp_path, tmp_path).scores("test", "query").interval("sdml")[:, 0]
    rate = (arrays["test_index"] == 1).mean()
    error = np.sqrt(rate * (1 - rate) / 2000)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.08)
    assert low < rate < high


def test_a_difference_is_of_the_same_draws(tmp_path):
    keep_row(tmp_path, "sdml", 0.6)
    keep_row(tmp_path, "mask", 0.6)  # the same hits
    scores = Trials(tmp_path, tmp_path).scores("validation", "query")
    np.testing.assert_array_equal(scores.interval("sdml", "mask"), np.zeros((2, 3)))


def test_pages_say_which_orderings_hold_and_are_made_of_the_rows_alone(tmp_path):
    for name, rate in (("eps_0.0", 0.6), ("eps_0.1", 0.8), ("eps_0.2", 0.5), ("sdml", 0.51)):
        keep_row(tmp_path, name, rate)
    keep_row(tmp_path, "sdml", 0.53, seed=1)
    page = page_of(paper_tables.STUDY, tmp_path)
    claims = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line.endswith(" |")}
    assert claims["smoothing 0.1 is better than none"].endswith("| holds |")
    assert claims["0.2 is better than 0.1"].endswith("| does not hold |")
    # (0.101 + 0.036) / 2 and (0.081 + 0.041) / 2
    assert claims["0.3 is better than 0.2"].endswith("| 2, 1 | not decided, 0.069 / 0.061 |")
    assert "\nPending: 5 seeds of `sdml`, `eps_0.2`.\n" in page
    assert not any("N = 64" in claim for claim in claims)  # those rows are not there
    assert "(2 seeds)" in page
    assert "0.557, +0.0" in page  # the paper's, and the difference
    rows = {(row["row"], row["metric"]): row for row in read_csv(tmp_path / "scores.csv")}
    first = rows["eps_0.0", "validation H@1 per pair, index"]
    assert float(first["low"]) < float(first["mean"]) < float(first["high"])
    assert rows["sdml", "test MRR per query, index"]["seeds"] == "2"
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"eps.png", "losses.png"} | {
        "batch_size.png"
    }
    assert page_of(paper_tables.STUDY, tmp_path) == page


@pytest.mark.parametrize("name", [*ROWS, *CONFIGS])
def test_every_row_is_quora_sdml_but_for_what_it_says(name):
    config = row_config(name, seed=3)
    validate(config)
    plain, changed = flatten(load("quora_sdml")), flatten(config)
    assert plain.keys() == changed.keys()
    if name in ROWS:
        differing = {key for key in plain if plain[key] != changed[key]}
        assert differing == {"seed", *CHANGES, *ROWS[name]}


def test_all_rows_of_tables_claims_and_ideas_exist():
    known = {*ROWS, *CONFIGS, *LEXICAL}
    named = {name for table in TABLES.values() for _, name, _ in table.rows}
    named |= {row for claim in paper_tables.CLAIMS for row in (claim.better, claim.worse)}
    assert named | set(IDEAS) <= known


def test_the_page_says_which_ideas_the_best_config_uses(tmp_path):
    for name in ("sdml", "mask", "decay"):
        keep_row(tmp_path, name, 0.6)
    ranks = keep_row(tmp_path, "quora_best", 0.7)
    settings = flatten(load("quora_best", ROWS["mask"])) | CHANGES
    plain = {key: flatten(load("quora_sdml"))[key] for key in ROWS["decay"]}
    write_json(tmp_path / "quora_best" / "run.json", settings | plain)
    page = page_of(paper_tables.STUDY, tmp_path)
    same = "+0.000 [+0.000, +0.000]"
    assert f"| own-cluster candidates masked | {' | '.join([same] * 4)} | yes |" in page
    assert f"in ten epochs | {' | '.join([same] * 4)} | no |" in page
    scores = [row for row in read_csv(tmp_path / "scores.csv") if row["minus"]]
    assert {(row["row"], row["minus"]) for row in scores} == {("mask", "sdml"), ("decay", "sdml")}
    assert {row["difference low"] for row in scores} == {"0.0"}
    hits = (ranks["test_index"] == 1).mean()
    assert f"`quora_best`, test, per query: H@1 {hits:.3f} [" in page


def test_the_epochs_are_those_of_the_kept_weights(tmp_path):
    keep_row(tmp_path, "sdml", 0.6)
    evaluations = "".join(f'{{"mrr": {mrr}}}\n' for mrr in (0.5, 0.7, 0.6))
    (tmp_path / "sdml" / "evaluations.jsonl").write_text(evaluations)
    assert "| 0.3 | 2 of 3 | " in page_of(paper_tables.STUDY, tmp_path)


def names_of(**flags):
    return [trial.name for trial in paper_tables.trials(paper_tables.STUDY.read_flags(flags))]


def test_flags_choose_the_rows():
    assert names_of(rows=["bm25", "sdml"], seeds=2) == ["bm25", "sdml", "sdml-seed1"]
    assert names_of(table="1") == ["eps_0.0", "eps_0.1", "eps_0.2", "sdml", "eps_0.4"]
    assert names_of() == [*LEXICAL, *ROWS, *CONFIGS]
    trials = paper_tables.trials(paper_tables.STUDY.read_flags({}))
    assert [trial.name for trial in trials if trial.search] == [*LEXICAL]
