"""The pages of measurements are those that the saved tables give."""

from __future__ import annotations

import json

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
