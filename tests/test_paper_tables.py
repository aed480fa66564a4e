"""The paper's tables: from rows kept to intervals, verdicts, pages; and rows made and resumed."""

import csv
import json

import numpy as np
import pytest

from experiments import quora_rows, tables
from experiments.configs import quora_sdml
from experiments.paper_numbers import TABLES
from experiments.paper_scores import read_rows
from experiments.trials import is_done
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import Scores
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten, identity
from tests.runs import keep_row


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_scores_are_means_over_pairs_and_over_queries(tmp_path):
    arrays = keep_row(tmp_path, "sdml", 0.6)
    rank, pairs = arrays["test_index"].astype(float), arrays["test_pairs"]
    reciprocal = np.where(rank > 0, 1 / np.maximum(rank, 1), 0)
    rows = read_rows(tmp_path / "rows")
    for over, weights in (("pair", pairs), ("query", np.ones(len(pairs)))):
        expected = [
            np.average(rank == 1, weights=weights),
            np.average((rank > 0) & (rank <= 10), weights=weights),
            np.average(reciprocal, weights=weights),
        ]
        np.testing.assert_allclose(Scores(rows, "test", over).mean("sdml"), expected)


def test_the_interval_is_as_wide_as_the_clusters_say(tmp_path):
    """Clusters of two like-minded queries: the standard error of half as many draws."""
    arrays = keep_row(tmp_path, "sdml", 0.5, queries=4000)
    path = tmp_path / "rows" / "sdml" / "ranks.npz"
    arrays["test_index"] = np.repeat(arrays["test_index"][::2], 2)
    np.savez_compressed(path, **arrays)
    low, high = Scores(read_rows(tmp_path / "rows"), "test", "query").interval("sdml")[:, 0]
    rate = (arrays["test_index"] == 1).mean()
    error = np.sqrt(rate * (1 - rate) / 2000)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.08)
    assert low < rate < high


def test_a_difference_is_of_the_same_draws(tmp_path):
    keep_row(tmp_path, "sdml", 0.6)
    keep_row(tmp_path, "mask", 0.6)  # the same hits
    scores = Scores(read_rows(tmp_path / "rows"), "validation", "query")
    np.testing.assert_array_equal(scores.interval("sdml", "mask"), np.zeros((2, 3)))


def test_pages_say_which_orderings_hold_and_are_made_of_the_rows_alone(tmp_path):
    for name, rate in (("eps_0.0", 0.6), ("eps_0.1", 0.8), ("eps_0.2", 0.5), ("sdml", 0.51)):
        keep_row(tmp_path, name, rate)
    keep_row(tmp_path, "sdml", 0.53, seed=1)
    tables.write_results(tmp_path)
    page = (tmp_path / "README.md").read_text()
    claims = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line.endswith(" |")}
    assert claims["smoothing 0.1 is better than none"].endswith("| holds |")
    assert claims["0.2 is better than 0.1"].endswith("| does not hold |")
    assert claims["0.3 is better than 0.2"].endswith("| 2, 1 | not decided |")
    assert not any("N = 64" in claim for claim in claims)  # those rows are not there
    rows = read_csv(tmp_path / "table_1.csv")
    first = next(row for row in rows if row["row"] == "eps_0.0" and row["metric"] == "H@1")
    assert float(first["paper"]) == 0.5568
    assert float(first["ours"]) - 0.5568 == pytest.approx(float(first["difference"]), abs=1e-4)
    assert float(first["low"]) < float(first["ours"]) < float(first["high"])
    twice = next(row for row in rows if row["row"] == "sdml" and row["metric"] == "H@1")
    assert (twice["seeds"], float(twice["deviation"]) > 0) == ("2", True)
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"eps.png", "losses.png"} | {
        "batch_size.png"
    }
    before = page, (tmp_path / "table_1.md").read_bytes()
    tables.write_results(tmp_path)
    assert before == ((tmp_path / "README.md").read_text(), (tmp_path / "table_1.md").read_bytes())


def test_rows_scored_on_other_queries_are_refused(tmp_path):
    keep_row(tmp_path, "averaging", 0.6, queries=300)
    keep_row(tmp_path, "mask", 0.6)
    keep_row(tmp_path, "sdml", 0.6)
    with pytest.raises(UserError, match="averaging: the row was scored on other queries"):
        tables.write_results(tmp_path)


def test_the_half_of_a_row_that_a_kill_left_is_not_read(tmp_path):
    keep_row(tmp_path, "sdml", 0.6)
    half = tmp_path / "rows" / ".mask.part" / "ranks.npz"
    half.parent.mkdir()
    half.write_bytes(b"half")
    assert list(read_rows(tmp_path / "rows")) == ["sdml"]


def test_no_rows_are_told(tmp_path):
    with pytest.raises(UserError, match="expected rows, found none"):
        tables.write_results(tmp_path)


@pytest.mark.parametrize("name", [*quora_rows.ROWS, *quora_rows.CONFIGS])
def test_every_row_is_quora_sdml_but_for_what_it_says(name):
    config = quora_rows.row_config(name, seed=3)
    validate(config)
    plain, changed = flatten(quora_sdml.get_config()), flatten(config)
    assert plain.keys() == changed.keys()
    if name in quora_rows.ROWS:
        differing = {key for key in plain if plain[key] != changed[key]}
        assert differing == {"seed", *quora_rows.STUDY, *quora_rows.ROWS[name]}


def test_all_rows_of_tables_claims_and_ideas_exist():
    known = {*quora_rows.ROWS, *quora_rows.CONFIGS, *quora_rows.LEXICAL}
    named = {name for table in TABLES.values() for _, name, _ in table.rows}
    named |= {row for _, _, better, worse in tables.CLAIMS for row in (better, worse)}
    assert named | set(tables.IDEAS) <= known
    for name, (_, defining) in tables.IDEAS.items():
        assert set(defining) <= set(quora_rows.ROWS[name])


def test_an_unknown_row_is_named():
    with pytest.raises(UserError, match=r"expected one of the rows .*, got 'sdm'"):
        quora_rows.row_config("sdm")


def test_a_row_made_otherwise_is_not_taken_for_done(tmp_path):
    row = tmp_path / "mask"
    wanted = identity(quora_rows.row_config("mask"))
    assert not is_done(row, wanted, "abc")
    config = json.loads(json.dumps(flatten(quora_rows.row_config("mask"))))
    write_json(row / "config.json", config | {"data.sha256": "abc"})
    assert is_done(row, wanted, "abc")
    with pytest.raises(UserError, match=r"expected `data\.sha256` 'abd', got 'abc'"):
        is_done(row, wanted, "abd")
    write_json(row / "config.json", config | {"data.sha256": "abc", "smoothing": 0.2})
    with pytest.raises(UserError, match=r"expected `smoothing` 0\.3, got 0\.2; remove the folder"):
        is_done(row, wanted, "abc")
    # A setting that came later than the row had its default's effect.
    old = {key: value for key, value in config.items() if key != "symmetric"}
    write_json(row / "config.json", old | {"data.sha256": "abc"})
    assert is_done(row, wanted, "abc")


SMALL = """
import sys
from experiments import paper_tables, quora_rows
from experiments.configs import synthetic_sdml_smoke
from qpr_jax.cli.program import run_absl

plain = quora_rows.row_config

def small(name, seed=0):
    config = synthetic_sdml_smoke.shrink(plain(name, seed))
    if name == "mask":
        config.optimizer.learning_rate = 1e30
    return config

quora_rows.row_config = small
sys.exit(run_absl(paper_tables.main, sys.argv))
"""


def test_rows_are_made_kept_and_not_made_again(tmp_path, run_study):
    status, first = run_study(SMALL, "--rows=bm25,sdml,tl_hard_ssd")
    assert status == 0, first
    assert "3 rows left; next: bm25" in first
    kept = tmp_path / "results" / "rows"
    assert {path.name for path in kept.iterdir()} == {"bm25", "sdml", "tl_hard_ssd"}
    assert {path.name for path in (kept / "sdml").iterdir()} == {
        *("config.json", "report.json", "ranks.npz", "evaluations.jsonl", "metrics.jsonl"),
    }
    assert not (tmp_path / "runs" / "rows" / "sdml").exists()
    status, second = run_study(SMALL, "--rows=sdml", "--seeds=2")
    assert status == 0, second
    assert "1 rows left, about" in second
    assert "next: sdml-seed1" in second
    page = (tmp_path / "results" / "README.md").read_text()
    assert "(2 seeds)" in page
    reports = [json.loads((kept / f"sdml{s}" / "report.json").read_text()) for s in ("", "-seed1")]
    hits = [report["test"]["per_pair"]["hits@1"] for report in reports]
    table = read_csv(tmp_path / "results" / "table_4.csv")
    ours = next(row for row in table if row["row"] == "sdml" and row["metric"] == "H@1")
    assert float(ours["ours"]) == pytest.approx(np.mean(hits), abs=1e-4)
    assert "next" not in run_study(SMALL, "--rebuild")[1]


def test_a_row_that_fails_does_not_keep_the_others_from_being_made(tmp_path, run_study):
    status, told = run_study(SMALL, "--rows=mask,tfidf")
    assert status == 1
    assert "error: 1 rows could not be made: mask: expected finite numbers" in told
    assert "Traceback" not in told
    assert [path.name for path in (tmp_path / "results" / "rows").iterdir()] == ["tfidf"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["rebuild"], "error: expected flags only, got 'rebuild'; did you mean --rebuild?"),
        (["--rebuild", "--rows=sdm"], "error: expected one of the rows"),
        (["--rows=sdml", "--table=1"], "error: `--rows`, `--table`: expected one of the two"),
        (["--rebuild"], "rows: expected rows, found none; train some first"),
    ],
)
def test_mistakes_are_run_absl(flags, message, run_study):
    status, told = run_study(SMALL, *flags)
    assert status == 1
    assert message in told
    assert "Traceback" not in told
