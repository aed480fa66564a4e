"""`--json` of every command: one object, or a line each; all else is on standard error."""

import json

from qpr_jax.cli.commands import qpr as program

SHOWN_ELSEWHERE = {"train", "review", "serve", "presets", "calibrate"}


def test_every_command_prints_json(objects, run, finished, tmp_path):
    (tmp_path / "some.tsv").write_text("question\tid\nhow to cook rice\t8\n")
    calls = {
        "sample": ("--out", "sample"),
        "index": ("mine", "sample/questions.csv", "--encoder", run),
        "info": ("mine",),
        "search": ("mine", "--query", "rice", "-k", 2),
        "add": ("mine", "some.tsv"),
        "evaluate": ("mine", "some.tsv"),
        "remove": ("mine", "--id", 8),
        "compact": ("mine",),
        "encode": (run, "sample/questions.csv", "--out", "v.npy"),
        "duplicates": (
            "sample/questions.csv",
            "--encoder",
            run,
            "--out",
            "mined",
            "--max-distance",
            0.4,
        ),
        "publish": (run, "--to", "public"),
        "splits": ("sample/pairs.csv", "--out", "parts", "--dev", 0.2, "--test", 0.2),
        "clusters": ("sample/logs.jsonl", "--out", "clusters"),
        "errors": (finished[0], "--out", "e.csv"),
    }
    results = {name: objects(name, *arguments, "--json") for name, arguments in calls.items()}
    assert {*results} | SHOWN_ELSEWHERE == {*program.commands}
    one = {name: rows[0] for name, rows in results.items() if len(rows) == 1}
    assert {*results} - {*one} == {"search"}
    assert [row["query"] for row in results["search"]] == ["rice", "rice"]
    assert one["sample"].keys() == {"out", "questions", "queries", "pairs", "logs"}
    count = one["sample"]["questions"]
    assert one["index"]["folder"] == "mine"
    assert one["index"]["questions"] == one["info"]["questions"] == count > 0
    assert one["add"] == {"id": 8, "question": "how to cook rice"}
    assert one["remove"] == {"folder": "mine", "removed": 1, "questions": count}
    assert one["compact"] == {"folder": "mine", "questions": count}
    assert one["encode"].items() >= {"out": "v.npy", "vectors": count, "dimension": 6}.items()
    assert one["duplicates"].items() >= {"out": "mined"}.items()
    assert one["publish"] == {"folder": "public"}
    assert one["errors"]["queries"] > 0
    assert one["evaluate"]["queries"] == 1
    for name, folder in (("splits", "parts"), ("clusters", "clusters")):
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert one[name] == {"out": folder} | report
