"""The figures of the pages come from files, and a wrong one is found."""

import importlib
import json
import re
import subprocess
import sys

import pytest

from benchmarks import front_picture
from benchmarks.all import figures_in
from benchmarks.figure_sources import KNOWN, Sources, Unknown, evaluate
from benchmarks.figures import PAGES, ROOT, Figure, check, figures_of, shown_like
from benchmarks.jobs import JOBS
from experiments.measuring import facts_of_measurement

RESULTS = ROOT / "results"


def found_in(text):
    """The numbers that count as figures, and whether they have a tag."""
    return [(f.text, f.source is not None) for f in figures_of(text) if isinstance(f, Figure)]


def test_all_pages_in_a_second_without_jax():
    code = (
        "import sys; sys.argv[1:] = ['--check']; from benchmarks.figures import main; "
        "status = main(); sys.exit(status or 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"\d+ figures of {len(PAGES)} pages; 0 wrong\n", done.stdout)


@pytest.mark.parametrize("page", PAGES)
def test_an_altered_digit_is_found(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    tagged = []
    for figure in figures_of(text):
        if not isinstance(figure, Figure):
            tagged += [number for number in figure.numbers if number.start >= figure.labels[-1][1]]
        elif figure.source:
            tagged.append(figure)
    for figure in tagged[:1] + tagged[-1:]:
        end = figure.start + len(figure.text)
        digit = str((int(text[end - 1]) + 5) % 10)
        found = check(page, text[: end - 1] + digit + text[end:], RESULTS)
        line = text.count("\n", 0, figure.start) + 1
        wrong = figure.text[:-1] + digit
        assert any(problem.startswith(f"{page}:{line}: {wrong}: ") for problem in found.problems)
        assert found.text == text or figure.text.endswith("00")
    assert tagged or not re.search(r"<!--(=|rows |row )", text)


def test_what_a_figure_is():
    numbers = [number for number, _ in found_in("In 2 s, 11 and 23 ms; 3 of 40; 50 %; 5 rows.")]
    assert numbers == ["2", "11", "23", "3", "50"]
    assert [number for number, _ in found_in("MRR .58 of 165,493, 1e-6 off, 4 times")] == [
        *(".58", "165,493", "4"),
    ]
    for text in (
        *("Python 3.11 and 0.10.2", "`0.5 s`", "[a](0.5)", "<!-- 0.5 -->", "H@1 of x86-64"),
        *("    took 0.5 s", "```\n0.5 s\n```", "seven in 2019", "it took 17:13"),
    ):
        assert found_in(text) == []
    table = "| a | b 7 |\n|---|---|\n| x | 1 |\n| y | 2<!--constant--> |\n"
    assert found_in(table) == [("1", False), ("2", True)]
    assert found_in(f"<!--constants: by definition-->\n{table}\n1.5") == [
        *(("1", True), ("2", True), ("1.5", False)),
    ]


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        (0.8532, "0.853", "0.853"),
        (0.8538, "0.853", "0.854"),
        (83412, "83,000", "83,000"),
        (83612, "83,000", "84,000"),
        (83612, "83,001", "83,612"),
        (83612, "83,610", "83,612"),
        (1412, "1,000", "1,400"),
        (280, "300", "280"),
        (0.013, "+0.020", "+0.013"),
        (0.58, ".60", ".58"),
        (-0.5, "-.40", "-.50"),
        (1234.5, "999", "1,234"),
        (10, "12", "10"),
        (2.3e-6, "2e-6", "2e-6"),
    ],
)
def test_as_many_digits_as_are_shown(value, text, expected):
    assert shown_like(value, text) == expected


def test_a_page_and_its_sources(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    facts = {"command": "x", "commit": None, "machine": None, "date": None}
    table = {"one": {"s": 1.5, "both": [2, 3]}, "two, 7": {"s": 2.5, "both": [4, 5]}}
    speed = {"measured": facts, "figures": {"table": table}}
    (tmp_path / "benchmarks" / "speed.json").write_text(json.dumps(speed))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "facts.json").write_text('{"rate": 7}')
    (tmp_path / "measured.json").write_text('{"old": {"command": "x"}}')
    page = (
        "In 1.5<!--=speed.table.one.s--> s, 2.0<!--=mean(ratio.both) / 2--> times, "
        "8<!--=old.facts.rate--> s, 9<!--=no.such--> s, and 9 s.\n\n"
        "<!--rows speed.table-->\n| a | b | s | both |\n|---|---|---|---|\n"
        "| one | | 1.5 | 2, 4 |\n| `two` | 7 | 2.5 | 4, 5 |\n| three | | 1 | 2, 3 |\n\n"
        "| a | s |\n|---|---|\n| y 8<!--row speed.table.one: both[1], s * 2--> | 3 | 3 |\n\n"
        '<!--where ratio = speed.table["two, 7"]; speed = speed-->\n'
    )
    found = check("page", page, tmp_path)
    assert [re.sub(r"[;(].*", "", problem).strip() for problem in found.problems] == [
        "page:1: 2.0: its source says 2.2",
        "page:1: 8: its source says 7",
        "page:1: 9: `no.such` has no value",
        "page:1: 9: expected its source or `<!--constant-->`, got none",
        "page:6: 4: its source says 3",
        "page:8: 1: `speed.table` has no row 'three'",
        "page: results/old does not say its commit, machine, date",
    ]
    assert found.sourced == 11
    changes = (("2.0<", "2.2<"), ("8<!--=", "7<!--="), ("| 2, 4", "| 2, 3"))
    for before, after in changes:
        page = page.replace(before, after)
    assert found.text == page


def test_only_arithmetic_is_evaluated():
    assert evaluate("-a.b[0] * 2 + max(1, 3)", {"a": {"b": [4]}}.__getitem__) == -5
    assert evaluate("stdev(a[1:4])", {"a": [9, 1, 2, 3]}.__getitem__) == 1
    for wrong in ("__import__('os')", "a.__class__", "(lambda: 1)()", "1 if 1 else 2", "a[", "b"):
        with pytest.raises(Unknown):
            evaluate(wrong, {"a": {"b": [4]}}.__getitem__)


def test_what_a_benchmark_printed():
    lines = [
        *("2 cores", "", "| run | by | H@1 | s |", "|---|---|---|---|"),
        *("| `runs/x` | a | 0.5 (+0.1 to .2) | 1,000 |", "| x | b | | 2 |", ""),
        *('{"s": 1.5}', "ours: 105.0 ms a step, 4,876 pairs/s", "7 done in 3 s"),
    ]
    both = {"h_1": [0.5, 0.1, 0.2], "s": 1000}
    assert figures_in(lines) == {
        "table": {"x, a": both, "x, b": {"h_1": None, "s": 2}},
        "json": {"s": 1.5},
        "text": {"cores": [2], "ours": [105.0, 4876], "done_in": [7, 3]},
    }
    for job in JOBS.values():
        importlib.import_module(job.module)


def test_what_a_file_says_about_its_measurement():
    facts = facts_of_measurement("python -m benchmarks.x")
    assert {*facts} > {*KNOWN}
    assert facts["command"] == "python -m benchmarks.x"
    assert facts["machine"]["cpus"] > 0


def test_the_first_picture_has_a_point_for_each_encoder(tmp_path):
    found = front_picture.points(Sources(RESULTS))
    teacher, student = found["all-MiniLM-L6-v2"], found["quora_distilled"]
    assert teacher[0] > student[0] > found["BM25"][0]
    assert student[1] > 50 * teacher[1]
    front_picture.draw(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
