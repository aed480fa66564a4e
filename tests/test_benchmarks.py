"""The pages of measurements are those that the saved tables give."""

import pytest

from benchmarks import report


@pytest.mark.parametrize("name", ["results/benchmarks/README.md", "README.md"])
def test_a_page_has_the_saved_tables(name):
    """If this fails, run `python -m benchmarks --render`."""
    path = report.ROOT / name
    text = path.read_text(encoding="utf-8")
    assert text == report.rendered()[path]
    assert "-dirty" not in text  # of a commit


def test_every_program_has_saved_tables():
    saved = {path.stem for path in report.RESULTS.glob("*.json")}
    assert saved == {*report.NAMES, *report.NAMES_GPU}
