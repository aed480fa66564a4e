"""The pages of measurements are those that the saved tables give."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import report


@pytest.mark.parametrize("name", ["results/benchmarks/README.md", "README.md"])
def test_a_page_has_the_saved_tables(name):
    """If this fails, run `python -m benchmarks --render`."""
    path = report.ROOT / name
    assert path.read_text(encoding="utf-8") == report.rendered()[path]


def test_saved_tables_name_command_machine_and_commit():
    saved = {path.stem: json.loads(path.read_text()) for path in report.RESULTS.glob("*.json")}
    assert saved.keys() == {*report.NAMES, *report.NAMES_GPU}
    for name, found in saved.items():
        assert found["command"].startswith(f"python -m benchmarks.{name.removesuffix('_gpu')}")
        assert "-dirty" not in found["commit"]
        assert found["machine"]
        for table in found["tables"]:
            assert {len(row) for row in table["rows"]} == {len(table["head"])}


def test_finish_saves_and_publishes(tmp_path, monkeypatch, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(report, "README", readme)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["compare", "--save"])
    given = report.parser("Compare.").parse_args()
    table = report.Table("Rates", ["encoder", "rate"], [["ours", "3"]])
    report.finish("compare", given, [table], "| new |\n")
    assert "| ours | 3 |" in capsys.readouterr().out
    assert "| ours | 3 |" in (tmp_path / "results" / "README.md").read_text()
    assert readme.read_text() == "before\n<!-- results -->\n\n| new |\n\n<!-- end -->\nafter\n"
