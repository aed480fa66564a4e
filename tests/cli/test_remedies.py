"""Each error is provoked, and the remedy that it prints is run.

What is run is cut out of the message itself, so a remedy in the words of another program fails.
"""

import ast
import json
import pathlib
import re
import shlex
import shutil
import socket
from types import SimpleNamespace

import click
import pytest
import uvicorn

from qpr_jax.cli.commands import qpr as program
from qpr_jax.data.beir import write_beir
from qpr_jax.errors import UserError
from tests.cli.conftest import JSONL
from tests.cli.test_splits import ROWS, write_pairs
from tests.distant.rows import log_rows, write_rows
from tests.runs import write_reranker

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = ROOT / "tests" / "reranking" / "tiny_cross_encoder"
DROP = object()  # the remedy is to leave the option out


def snippets(line):
    """What stands in backquotes in an error."""
    return re.findall(r"`([^`]+)`", line)


def options_of(name):
    return {o for p in program.commands[name].params if isinstance(p, click.Option) for o in p.opts}


def require_options(name, line):
    """Each option in an error is one of the command that printed it, or of the one it names."""
    for option, _, other in re.findall(r"`(--[a-z-]+)[^`]*`( of `qpr ([a-z]+)`)?", line):
        assert option in options_of(other or name), line


def without(arguments, words):
    """The arguments without an option, of `--set NAME=VALUE` without that of this name."""
    left, rest = [], iter(arguments)
    flags = {o for p in program.commands[arguments[0]].params if p.to_info_dict().get("is_flag")
             for o in p.opts}  # fmt: skip
    for argument in rest:
        if argument != words[0]:
            left.append(argument)
        elif argument not in flags:
            value = next(rest)
            if argument == "--set" and value.partition("=")[0] != words[1].partition("=")[0]:
                left += [argument, value]
    return left


def follow(arguments, line, key, value=None):
    """The command with the first remedy of `line` that contains `key`, and a value if it needs one.

    A name in capitals is an argument, which `value` replaces; they come first in `arguments`.
    """
    snippet = next(text for text in snippets(line) if key in text)
    if snippet.isupper():
        names = [p.human_readable_name for p in program.commands[arguments[0]].params
                 if isinstance(p, click.Argument)]  # fmt: skip
        place = 1 + names.index(snippet)
        return [*arguments[:place], value, *arguments[place + 1 :]]
    words = shlex.split(snippet)
    left = without(arguments, words)
    if value is DROP:
        return left
    if value is not None and words[0] == "--set":
        return [*left, words[0], f"{words[1]}={value}"]
    return [*left, *words, *([] if value is None else [str(value)])]


@pytest.fixture
def remedied(qpr):
    """(arguments, key, value) -> the output once the remedy of the error was followed."""

    def call(arguments, key, value=None, *, given=b""):
        arguments = [*map(str, arguments)]
        status, _, line = qpr(*arguments, given=given)
        assert status == 1, line
        line = line.splitlines()[-1]
        require_options(arguments[0], line)
        status, stdout, stderr = qpr(*follow(arguments, line, key, value), given=given)
        assert status == 0, f"{line} {stderr}"
        return stdout

    return call


@pytest.fixture
def files(tmp_path, run):
    """Files with mistakes."""
    (tmp_path / "a.tsv").write_text("first\tsecond\nhow to cook rice\tx\n")
    (tmp_path / "bad.jsonl").write_text(JSONL + "{\n")
    (tmp_path / "q.jsonl").write_text(JSONL)
    write_pairs(tmp_path / "pairs.tsv")
    with (tmp_path / "pairs.tsv").open("a") as file:
        file.write("one cell\n")
    write_pairs(tmp_path / "good.tsv")
    rows = [json.dumps({"asked": q, "said": a}) + "\n" for q, a in log_rows()]
    (tmp_path / "log.jsonl").write_text("".join(rows))
    write_rows(tmp_path / "bad_log.jsonl", log_rows())
    with (tmp_path / "bad_log.jsonl").open("a") as file:
        file.write("{\n")
    labels = "question1\tquestion2\tis_duplicate\nlearn python\tpython learn\t0\ncook\trice\t1\n"
    (tmp_path / "labels.tsv").write_text(labels)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ("index made a.tsv --run {run}", "column", "first"),
        ("index made bad.jsonl --run {run}", "--skip-bad-rows", None),
        ("index made q.jsonl --run {run} --factory IVF9,PQ4", "IVF9,PQ3", None),
        ("index made q.jsonl --run {run} --probes 0", "--probes", 3),
        ("index made q.jsonl --run none", "--run", "{run}"),
        ("encode {run} bad.jsonl --out v.npy", "--skip-bad-rows", None),
        ("duplicates bad.jsonl --run {run} --out m --max-distance 1", "--skip-bad-rows", None),
        ("duplicates pairs.tsv --run {run} --out m --max-distance 0.01", "--skip-bad-rows", None),
        ("splits pairs.tsv --out parts --dev 0.2 --test 0.2", "--skip-bad-rows", None),
        ("splits good.tsv --out parts --dev 0.9 --test 0.2", "--dev", 0.2),
        ("splits good.tsv --out parts --dev 0.2 --test 0.01", "--test", 0.2),
        ("clusters log.jsonl --out c --answer said", "--question", "asked"),
        ("clusters log.jsonl --out c --question asked", "--answer", "said"),
        ("clusters bad_log.jsonl --out c", "--skip-bad-rows", None),
        ("clusters bad_log.jsonl --skip-bad-rows --out c --min-coherence 1", "--min-coherence", 0),
        ("publish {run} --to {run}", "--to", "public"),
        ("presets best", "NAMES", "quora_best"),
        ("train r none.tsv", "PAIRS", "good.tsv"),
    ],
)
def test_what_a_message_says_works(remedied, files, run, monkeypatch, arguments, key, value):
    monkeypatch.setattr("qpr_jax.training.main.JOBS", {"encoder": _read_data})
    words = [word.replace("{run}", str(run)) for word in arguments.split(" ")]
    remedied(words, key, str(run) if value == "{run}" else value)


def _read_data(config, *arguments):
    from qpr_jax.training.sources import SOURCES

    SOURCES[config.data.source].find(config)
    return {}


@pytest.mark.parametrize(
    ("config", "changes", "key", "value"),
    [
        ("quora_sdml", "loss.implementation=pallas loss.distance=euc", "implementation=", None),
        ("quora_sdml", "loss.implementation=pallas loss.distance=euc", "distance=", None),
        ("quora_sdml", "teacher.model=minilm teacher.vectors=v.npy", "teacher.vectors", DROP),
        ("quora_sdml", "teacher.model=minilm teacher.vectors=v.npy", "teacher.model", DROP),
        ("quora_sdml", "teacher.vectors=v.npy teacher.init_embeddings=true", "embeddings=", None),
        ("quora_sdml", "teacher.model=minilm teacher.epochs=0 max_epochs=0", "teacher.epochs", 1),
        ("quora_sdml", "teacher.model=minilm teacher.epochs=0 max_epochs=0", "max_epochs", 1),
        ("quora_best", "max_epochs=0", "max_epochs=", None),
        ("quora_best", "max_epochs=0", "teacher.model", "minilm"),
        ("quora_sdml", "early_stopping.metric=agreement", "teacher.model", "minilm"),
        ("distill", "data.path=q early_stopping.metric=mrr", "metric=", None),
        ("distill", "data.path=q max_epochs=1", "max_epochs=", None),
        ("quora_minilm_sdml", "encoder.pretrained=", "encoder.kind", "cnn"),
        ("quora_cross_encoder", "distributed.enabled=true", "distributed.enabled=", None),
        ("quora_sdml", "index.factory=IVF2000,PQ7", "index.factory=", None),
    ],
)
def test_what_a_training_says_of_its_settings_works(
    remedied, monkeypatch, config, changes, key, value
):
    jobs = dict.fromkeys(("encoder", "cross_encoder"), lambda *arguments: {})
    monkeypatch.setattr("qpr_jax.training.main.JOBS", jobs)
    sets = [word for change in changes.split(" ") for word in ("--set", change)]
    remedied(["train", "r", "--config", config, *sets], key, value)


def test_a_run_with_other_settings_is_replaced(qpr, finished, tmp_path, monkeypatch):
    """Both ways of the remedy reach the data."""

    def reached(*arguments):
        raise UserError("reached the data")

    monkeypatch.setattr("qpr_jax.training.main.load_dataset", reached)
    shutil.copytree(finished[0], tmp_path / "run")
    arguments = ["train", "run", "--config", "synthetic_sdml:smoke", "--set", "seed=1"]
    _, _, line = qpr(*arguments)
    assert "run holds a run with other settings: seed: 0 there, 1 here; " in line
    for key, value in (("RUN", "another"), ("overwrite", None)):
        assert "reached the data" in qpr(*follow(arguments, line, key, value))[2]


def test_settings_of_a_file_are_named_by_their_lines(qpr, tmp_path, monkeypatch):
    jobs = {"encoder": lambda *arguments: {}}
    monkeypatch.setattr("qpr_jax.training.main.JOBS", jobs)
    path = tmp_path / "mine.toml"
    path.write_text('[loss]\nimplementation = "pallas"\ndistance = "euc"\n')
    _, _, line = qpr("train", "r", "--config", "mine.toml")
    found = re.findall(r"`(\w+ = [^`]+)` under `(\[\w+\])` in mine.toml", line)
    assert found[0] == ('implementation = "xla"', "[loss]")
    path.write_text(f'{found[0][1]}\n{found[0][0]}\ndistance = "euc"\n')
    assert qpr("train", "r", "--config", "mine.toml")[0] == 0


def test_second_stages(remedied, qpr, index, run, tmp_path):
    search = ("search", index, "--query", "rice", "--rerank")
    remedied([*search, "cross_encoder"], "--cross-encoder", TINY)
    # An option of another command.
    write_reranker(index)
    questions = tmp_path / "questions.jsonl"
    made = ("index", "products", questions, "--run", index, "--metric", "ip")
    assert qpr(*made)[0] == 0
    search = ("search", "products", "--query", "rice", "--rerank", "light")
    status, _, line = qpr(*search)
    assert (status, "index with `--metric l2` of `qpr index`" in line) == (1, True)
    require_options("search", line)
    assert qpr(*follow([*map(str, made)], line, "--metric"))[0] == 0
    assert qpr(*search)[0] == 0


def test_margins_need_distances(qpr, run, index, files):
    made = ("index", "products", files / "q.jsonl", "--run", run, "--metric", "ip")
    assert qpr(*made)[0] == 0
    arguments = ["negatives", "products", "good.tsv", "--out", "n.tsv", "--relative-margin", "1"]
    status, _, line = qpr(*arguments)
    assert status == 1
    require_options("negatives", line)
    status, _, stderr = qpr(*follow(arguments, line, "--relative-margin", DROP))
    assert status == 0, stderr


def test_a_bad_pair_in_a_command_that_skips_none(qpr, run, files):
    """The remedy leaves the option out that `negatives` lacks, and what is left works."""
    arguments = ("negatives", run, "pairs.tsv", "--out", "n.tsv")
    status, _, line = qpr(*arguments)
    assert status == 1
    assert "skip" not in line
    require_options("negatives", line)
    lines = (files / "pairs.tsv").read_text().splitlines()
    (files / "pairs.tsv").write_text("\n".join(lines[: 1 + len(ROWS)]) + "\n")
    assert qpr(*arguments)[0] == 0


def test_rankings_of_ids_with_blanks(remedied, run, tmp_path):
    documents = [("d 1", "how to cook rice"), ("d2", "learn python")]
    write_beir(tmp_path / "beir", documents, [("q", "rice")], {"test": [("q", "d 1", 1)]})
    arguments = ("evaluate", run, "--beir", "beir", "--trec", "r.trec")
    remedied(arguments, "--trec", DROP)


def test_an_address_to_serve_at(remedied, index, monkeypatch):
    # It would close pytest's log, and never end.
    monkeypatch.setattr(uvicorn, "Config", lambda *arguments, **options: None)
    server = SimpleNamespace(run=lambda sockets: None, started=False)
    monkeypatch.setattr(uvicorn, "Server", lambda config: server)
    monkeypatch.setattr("gc.freeze", lambda: None)
    remedied(("serve", index, "--port", 0, "--host", ""), "--host 0.0.0.0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        remedied(("serve", index, "--port", taken.getsockname()[1]), "--port", 0)


def test_commands_in_messages_exist():
    texts = [
        node.value
        for path in (ROOT / "qpr_jax").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    names = {name for text in texts for name in re.findall(r"`qpr ([a-z]+)", text)}
    assert {"train", "compact", "clusters"} <= names <= {*program.commands}
