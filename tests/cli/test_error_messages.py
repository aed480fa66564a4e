"""Errors say what is wrong, where, and what to do, on one line; their wording is free."""

import ast
import json
import pathlib
import re

import pytest

from qpr_jax.cli.commands import qpr as program
from tests.cli.conftest import JSONL
from tests.cli.test_splits import write_pairs
from tests.distant.rows import log_rows, write_rows

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture
def files(tmp_path):
    """Files with mistakes."""
    (tmp_path / "a.tsv").write_text("first\tsecond\nhow to cook rice\tx\n")
    (tmp_path / "bad.jsonl").write_text(JSONL + "{\n")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    (tmp_path / "q.jsonl").write_text(JSONL)
    write_pairs(tmp_path / "good.tsv")
    (tmp_path / "pairs.tsv").write_text((tmp_path / "good.tsv").read_text() + "one cell\n")
    (tmp_path / "deep.toml").write_text("seed = " + "[" * 50_000)
    (tmp_path / "mine.toml").write_text("seed = 'x'\n")
    rows = [json.dumps({"asked": question, "said": answer}) for question, answer in log_rows()]
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    write_rows(tmp_path / "bad_log.jsonl", log_rows())
    with (tmp_path / "bad_log.jsonl").open("a") as file:
        file.write("{\n")
    (tmp_path / "evil.csv").write_text("id,\x1b[2J\u202equestion\nerror: all is well,x\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "where", "remedy"),
    [
        ("index made a.tsv --run {run}", "a.tsv", "--text-column"),
        ("index made bad.jsonl --run {run}", "bad.jsonl, line 5", "--skip-bad-rows"),
        ("index made deep.jsonl --run {run}", "deep.jsonl, line 1", "--skip-bad-rows"),
        ("index made evil.csv --run {run} --column x", "evil.csv", "--text-column"),
        ("index made q.jsonl --run {run} --factory LSH", "factory", "HNSW32"),
        ("index made q.jsonl --run {run} --probes 0", "probes", ""),
        ("index made q.jsonl --run none", "`run`", "another folder"),
        ("encode {run} bad.jsonl --out v.npy", "bad.jsonl, line 5", "--skip-bad-rows"),
        ("duplicates bad.jsonl --run {run} --out m --max-distance 1", "line 5", "--skip-bad-rows"),
        ("splits pairs.tsv --out p --dev 0.2 --test 0.2", "pairs.tsv, line", "--skip-bad-rows"),
        ("splits good.tsv --out parts --dev 0.9 --test 0.2", "", "--dev"),
        ("clusters log.jsonl --out c --answer said", "log.jsonl", "question_column"),
        ("clusters bad_log.jsonl --out c", "bad_log.jsonl, line", "--skip-bad-rows"),
        ("clusters bad_log.jsonl --skip-bad-rows --out c --min-coherence 1", "", "min_coherence"),
        ("sample --out new --seed -1", "`seed`", ""),
        ("sample --out new --clusters 0", "clusters", ""),
        ("publish {run} --to {run}", "`to`", "another folder"),
        ("info none", "none", ""),
        ("train r none.tsv", "none.tsv", ""),
        ("train r --config deep.toml", "deep.toml", "fix the file"),
        ("train r --config mine.toml", "seed", ""),
        ("train r --config synthetic_sdml --set loss.scale=-1", "loss.scale", ""),
        ("train r --config synthetic_sdml --set lose.scale=1", "lose.scale", "loss.scale"),
    ],
)
def test_an_error_is_one_line_that_says_where_and_what_to_do(
    qpr, files, run, arguments, where, remedy
):
    words = [word.replace("{run}", str(run)) for word in arguments.split(" ")]
    status, stdout, stderr = qpr(*words)
    assert (status, stdout) == (1, "")
    line = stderr.splitlines()[-1]
    assert line.startswith("error: ")
    assert line.isprintable()
    assert stderr.count("error: ") == 1 + stderr.count("error: all is well")
    assert where in line
    assert remedy in line
    assert len(line) < 700
    assert not list(files.glob("made*")) or not list(files.glob("made*/index/manifest.json"))


def test_commands_in_messages_exist():
    texts = [
        node.value
        for path in (ROOT / "qpr_jax").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    names = {name for text in texts for name in re.findall(r"`qpr ([a-z]+)", text)}
    assert {"train", "compact", "clusters"} <= names <= {*program.commands}
