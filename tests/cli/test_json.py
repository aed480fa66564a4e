"""`--json` of every command: one object, or a line each; all else is on standard error."""

import json

from qpr_jax.cli.commands import qpr as program
from tests.cli.conftest import JSONL, TINY
from tests.cli.test_data import write_pairs
from tests.distant.rows import log_rows, write_rows
from tests.languages import write_extended

SHOWN_ELSEWHERE = {"train", "review", "serve", "presets", "calibrate"}


def test_every_command_prints_json(objects, run, finished, tmp_path):
    (tmp_path / "q.jsonl").write_text(JSONL)
    write_pairs(tmp_path / "pairs.tsv")
    write_rows(tmp_path / "log.jsonl", log_rows())
    write_extended(run, tmp_path / "words", "reis", "kochen")
    (tmp_path / "some.tsv").write_text("question\tid\nhow to cook rice\t8\n")
    calls = {
        "index": ("mine", "q.jsonl", "--run", run),
        "info": ("mine",),
        "search": ("mine", "--query", "rice", "-k", 2),
        "add": ("mine", "some.tsv"),
        "evaluate": ("mine", "some.tsv"),
        "remove": ("mine", "--id", 8),
        "compact": ("mine",),
        "extend": ("mine", "--run", "words"),
        "encode": (run, "q.jsonl", "--out", "v.npy"),
        "duplicates": ("q.jsonl", "--run", run, "--out", "mined", "--pairs", 1),
        "publish": (run, "--to", "public"),
        "sample": ("--out", "sample"),
        "splits": ("pairs.tsv", "--out", "parts", "--dev", 0.2, "--test", 0.2),
        "negatives": (run, "pairs.tsv", "--out", "n.tsv", "--count", 1),
        "rerank": (TINY, "parts/dev.tsv"),
        "clusters": ("log.jsonl", "--out", "clusters"),
        "errors": (finished[0], "--out", "e.json"),
    }
    results = {name: objects(name, *arguments, "--json") for name, arguments in calls.items()}
    assert {*results} | SHOWN_ELSEWHERE == {*program.commands}
    one = {name: rows[0] for name, rows in results.items() if len(rows) == 1}
    assert {*results} - {*one} == {"search", "rerank"}
    assert [row["query"] for row in results["search"]] == ["rice", "rice"]
    assert {"question1", "question2", "score"} == {*results["rerank"][0]}
    assert one["index"]["folder"] == "mine"
    assert one["index"]["questions"] == one["info"]["questions"] == 4
    assert one["add"] == {"id": 8, "question": "how to cook rice"}
    assert one["remove"] == {"folder": "mine", "removed": 1, "questions": 3}
    assert one["compact"] == {"folder": "mine", "questions": 3}
    assert one["extend"] == {"folder": "mine", "extended": True}
    assert one["encode"].items() >= {"out": "v.npy", "vectors": 4, "dimension": 6}.items()
    assert one["duplicates"].items() >= {"out": "mined", "pairs": 1}.items()
    assert one["sample"].pop("out") == "sample"
    assert {*one["sample"]} == {"questions", "queries", "pairs", "logs"}
    assert min(one["sample"].values()) > 0
    assert one["publish"] == {"folder": "public"}
    assert one["negatives"]["negatives"] >= one["negatives"]["queries"] > 0
    assert one["errors"]["queries"] > 0
    assert one["evaluate"]["queries"] == 1
    for name, folder in (("splits", "parts"), ("clusters", "clusters")):
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert one[name] == {"out": folder} | report
