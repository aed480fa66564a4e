"""Scores: means, intervals, differences and tables, against values worked by hand."""

import numpy as np
import pytest

from experiments.paper_tables import Claim, claim_lines
from experiments.scores import PerQuery, Scores, retrieval, score_rows
from tests.runs import keep_row

CLUSTERS = np.arange(200) // 2


def measured(rate, seed=0, clusters=CLUSTERS):
    rng = np.random.default_rng(seed)
    return {"H@1": PerQuery((rng.random(len(clusters)) < rate).astype(float), clusters)}


def records(rows, minus=()):
    found = score_rows(rows, {row: [m for m in minus if m != row] for row in rows})
    return {(record["row"], record["minus"]): record for record in found}


def test_a_mean_over_pairs_counts_a_query_for_each_of_its_pairs(tmp_path):
    ranks = keep_row(tmp_path, "row", 0.5)
    found = retrieval(tmp_path / "row")[""]
    assert len(found) == 2 * 3 * 2 * 2  # splits, metrics, means, searches
    first = ranks["test_index"] == 1
    pairs = ranks["test_pairs"]
    by_metric = {record["metric"]: record for record in score_rows({"row": [found]}, {})}
    expected = (first * pairs).sum() / pairs.sum()
    assert by_metric["test H@1 per pair, index"]["mean"] == pytest.approx(expected)
    assert by_metric["test H@1 per query, index"]["mean"] == pytest.approx(first.mean())


def test_a_paired_difference_is_narrower_than_the_scores():
    one = measured(0.5)
    better = one["H@1"].values.copy()
    better[:8] = 1
    rows = {"a": [{"H@1": PerQuery(better, CLUSTERS)}], "b": [one]}
    found = records(rows, minus=["b"])
    record = found["a", "b"]
    assert record["difference"] == pytest.approx(better.mean() - one["H@1"].values.mean())
    width = record["difference high"] - record["difference low"]
    assert width < (record["high"] - record["low"]) / 2
    assert ("b", "") in found


def test_seeds_are_averaged_before_they_are_compared():
    rows = {"a": [measured(0.8, 1), measured(0.8, 2), measured(0.8, 3)], "b": [measured(0.5)]}
    record = records(rows, minus=["b"])["a", "b"]
    means = [one["H@1"].values.mean() for one in rows["a"]]
    assert record["seeds"] == 3
    assert record["mean"] == pytest.approx(np.mean(means))
    assert record["spread"] == pytest.approx(np.std(means, ddof=1))
    assert 0 < record["difference low"] < record["difference high"]


def test_numbers_without_queries_have_no_interval():
    record = records({"a": [{"steps": 12.0}], "b": [{"steps": 10.0}]}, minus=["b"])["a", "b"]
    assert record["mean"] == 12
    assert record["difference"] == 2
    assert "low" not in record
    assert "difference low" not in record


def test_rows_of_other_queries_are_not_compared():
    other = CLUSTERS + 1000
    found = records({"a": [measured(0.5)], "b": [measured(0.5, 0, other)]}, minus=["b"])
    assert not any("difference" in record for record in found.values())


def test_the_verdict_of_a_claim(tmp_path):
    def both(rate):
        values = measured(rate)["H@1"]
        return {f"test {name} per pair, index": values for name in ("H@1", "MRR")}

    claims = [Claim("a is better", "a", "b", 4)]
    for gain, verdict in ((0.2, "holds"), (-0.2, "does not hold"), (0.0, "undecided")):
        rows = score_rows({"a": [both(0.5 + gain)], "b": [both(0.5)]}, {"a": ["b"]})
        scores = Scores.read(tmp_path).updated(rows)
        lines = claim_lines(scores, claims)
        assert lines[-2].startswith(f"| a is better | {verdict} | ")
    missing = [Claim("a is better", "a", "c", 4)]
    assert claim_lines(scores, missing) == []
