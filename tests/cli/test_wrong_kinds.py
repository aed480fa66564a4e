"""Each argument that takes an index, an encoder, a table, labels or pairs, given another thing."""

import gzip
import json
import shlex

import pytest

from qpr_jax import Retriever, find_duplicates, kinds
from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.errors import UserError
from qpr_jax.evaluation.answers import COLUMNS
from qpr_jax.locations import read_encoder
from tests.cli.conftest import TABLE
from tests.cli.test_data import write_pairs
from tests.runs import write_encoder

MADE = {  # names of things of each kind
    kinds.INDEX: "mine",
    kinds.ENCODER: "enc",
    kinds.RUN: "run",
    kinds.PAIRS: "found",
    kinds.LABELS: "labels.tsv",
    kinds.TABLE: "t.csv",
    kinds.VECTORS: "v.npy",
    kinds.GROUPS: "found/groups.csv",
    kinds.PACKED: "t.csv.gz",
}
# What is wanted -> what else is taken, the commands that take it, and a word of the remedy.
WANTED = {
    kinds.INDEX: (
        (),
        "search X --query a; add X t.csv; remove X --id 1; compact X; info X; serve X --port 0; "
        "evaluate X q.csv; review X --queries t.csv; duplicates t.csv --incremental X --out o",
        "`qpr index FOLDER ",
    ),
    kinds.ENCODER: (
        (kinds.INDEX, kinds.RUN),
        "encode X t.csv --out w.npy; index i t.csv --encoder X; calibrate X labels.tsv --out o; "
        "duplicates t.csv --encoder X --out o; publish X --to o; train r labels.tsv --encoder X; "
        "evaluate X labels.tsv --task mining",
        "name `minilm`, `open_student`, or the folder",
    ),
    kinds.RUN: ((kinds.INDEX,), "errors X --out e.csv", "`qpr train` makes one"),
    kinds.PAIRS: ((kinds.PACKED,), "review X --port 0", "`qpr "),
    kinds.LABELS: (
        (kinds.TABLE, kinds.PACKED),  # of which the columns decide
        "calibrate minilm X --out o; evaluate minilm X --task mining; splits X --out o; "
        "train r X --config synthetic_sdml:smoke",
        "`qpr review ",
    ),
    kinds.TABLE: (
        (kinds.LABELS, kinds.GROUPS, kinds.VECTORS, kinds.PACKED),  # files, whose columns decide
        "index i X; add mine X; duplicates X --out o; evaluate mine X; remove mine X; "
        "duplicates t.csv --against X --out o; clusters X --out o; encode minilm X --out o",
        "name ",
    ),
}


@pytest.fixture
def things(index, done, tmp_path):
    write_encoder(tmp_path / "enc")
    write_encoder(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{}")
    write_pairs(tmp_path / "labels.tsv")
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "q.csv").write_text("question,id\na,5\n")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    (tmp_path / "v.npy").write_bytes(b"\x93NUMPY")
    done("duplicates", "t.csv", "--encoder", "enc", "--max-distance", "1", "--out", "found")
    return tmp_path


def wrong_ones(wanted):
    return [(k, name) for k, name in MADE.items() if k not in (wanted, *WANTED[wanted][0])]


def test_a_wrong_kind_is_named_and_the_right_one_is_shown(qpr, things):
    before = {path.name for path in things.iterdir()}
    assert {kinds.kind_of(things / name): name for name in MADE.values()} == MADE
    for wanted, (_, commands, remedy) in WANTED.items():
        for command in commands.split("; "):
            for kind, name in wrong_ones(wanted):
                status, out, said = qpr(*shlex.split(command.replace("X", name)))
                case = (command, name, said)
                assert (status, out) == (1, ""), case
                assert f"{name}: expected {wanted}, got {kind}; " in said, case
                assert remedy in said, case
                assert {path.name for path in things.iterdir()} == before, case
    assert "expected a column `question1`" in qpr("calibrate", "minilm", "t.csv", "--out", "o")[2]
    for words in (("calibrate", "minilm"), ("calibrate", "minilm", "gone.csv", "--out", "o")):
        assert "`qpr review loose` make some, in loose/labels.csv" in qpr(*words)[2]


def test_the_same_in_python(things):
    for wanted, call in (
        (kinds.INDEX, lambda path: Retriever.load(path, indexed=True)),
        (kinds.ENCODER, read_encoder),
        (kinds.ENCODER, lambda path: Retriever.build(["a"], encoder=path)),
        (kinds.ENCODER, lambda path: find_duplicates(["a", "b"], encoder=path)),
        (kinds.LABELS, read_question_pairs),
    ):
        for kind, name in wrong_ones(wanted):
            with pytest.raises(UserError, match=f"{name}: expected {wanted}, got {kind}; "):
                call(things / name)


def test_an_output_is_never_mixed_into_a_folder_of_another_kind(qpr, things):
    def files():
        there = (path for path in things.rglob("*") if path.is_file())
        return {path: path.stat().st_mtime_ns for path in there}

    before, folders = files(), ("mine", "enc", "run", "found")
    for command, taken in (
        ("duplicates t.csv --encoder enc --max-distance 1 --out X", ("found",)),
        ("index X t.csv --encoder enc", ("mine", "enc", "run")),
        ("train X labels.tsv --config synthetic_sdml:smoke", ("run",)),
        ("train X labels.tsv --config synthetic_sdml:smoke --overwrite", ("run",)),
        ("sample --out X", ()),
        ("clusters q.csv --out X", ()),
        ("splits labels.tsv --out X", ()),
        ("publish enc --to X", ()),
        ("calibrate enc labels.tsv --out X", ()),
        ("encode enc t.csv --out X", ()),
    ):
        for name in {*folders} - {*taken}:
            status, out, said = qpr(*shlex.split(command.replace("X", name)))
            assert (status, out) == (1, ""), (command, name, said)
            assert said.splitlines()[-1].startswith("error: "), (command, name, said)
            assert files() == before, (command, name)
    for command in ("errors mine --out X", "evaluate enc --beir gone --trec X"):
        for name in ("t.csv", "labels.tsv", "found/pairs.csv"):
            assert f"{name}: holds " in qpr(*shlex.split(command.replace("X", name)))[2]
    (things / "e.csv").write_text(",".join(COLUMNS))
    assert "holds" not in qpr("errors", "mine", "--out", "e.csv")[2]
    (things / "e.csv").unlink()
    (things / "r.txt").write_text("q1 Q0 d1 1 0.5 qpr_jax\n")
    assert "holds" not in qpr("evaluate", "enc", "--beir", "gone", "--trec", "r.txt")[2]
    (things / "r.txt").unlink()
    retriever = Retriever.load("mine")
    pairs = find_duplicates(["a", "A"], encoder="enc", max_distance=1)
    for write, name in ((retriever.save, "found"), (pairs.write, "mine"), (pairs.write, "enc")):
        with pytest.raises(UserError, match=f"{name}: holds "):
            write(things / name)
    assert files() == before


def test_what_an_unclear_file_holds_is_left_to_its_reader(things):
    (things / "info.json").write_text(json.dumps({"files": "none"}))
    for name in (".", "gone", "q.csv/x"):
        assert kinds.kind_of(things / name) == ""
    for text in ("", "question1,question2,label\n", "question1\nq,distance,is_duplicate\n"):
        (things / "unclear.csv").write_text(text)
        assert kinds.kind_of(things / "unclear.csv") == ""
    (things / "unclear.csv").write_text("question1,distance\n", "utf-16")
    assert kinds.kind_of(things / "unclear.csv") == kinds.PACKED
    (things / "info.json").write_text("[")
    assert kinds.kind_of(things) == ""
