"""Text from files cannot act on a terminal, forge a line of it, or become a formula."""

import json
import logging

from hypothesis import given, settings
from hypothesis import strategies as st

from qpr_jax.cli.command import as_lines
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError, printable, shortened

EVIL = "a\x1b[2J\u202etxt\nerror: all is well\x9b\ud800\u2028\x7f"


def test_what_a_terminal_would_act_on_is_escaped():
    for text, shown in (
        ("how? 😀 नमस्ते é", "how? 😀 नमस्ते é"),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("a\x1b[31m", r"a\x1b[31m"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\ud800\U000e0041", r"\ud800\U000e0041"),
    ):
        assert printable(text) == shown


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_printable_text_is_one_line_of_valid_unicode(text):
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    shown.encode()
    assert printable(shown) == shown
    assert len(shortened(text, 10)) <= 10


def test_an_error_is_one_line_whatever_a_file_says(capsys):
    def fail() -> int:
        logging.getLogger("qpr_jax").warning("%s", EVIL)
        raise UserError(f"{EVIL}: expected a question", remedy=EVIL)

    assert run_program(fail) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert lines[1].startswith(r"error: a\x1b[2J\u202etxt\nerror: all is well\x9b\ud800")


def test_a_row_of_a_table_is_one_line():
    fields = {"id": EVIL, "question": EVIL, "payload": {"x": EVIL}, "score": None}
    (_, row) = as_lines([fields], "tsv")
    assert row.count("\n") == 1
    assert row.removesuffix("\n").replace("\t", "").isprintable()
    assert row.split("\t")[1] == r"a\x1b[2J\u202etxt error: all is well\x9b\ud800 \x7f"
    (_, row) = as_lines([{"id": "a  b", "question": "c  d"}], "tsv")
    assert row == "a  b\tc d\n"
    (line,) = as_lines([{"question": f"é {EVIL}"}], "jsonl")
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line)["question"] == f"é {EVIL}"
    assert "é" in line
