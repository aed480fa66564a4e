"""Errors are one line: what is wrong, where, what to do; how programs end; their help."""

import errno
import re
import shutil
import signal
import time

import click
import pytest

from qpr_jax.cli.commands import qpr as program
from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError, counted
from qpr_jax.files import read_manifest, write_folder
from tests.cli.conftest import JSONL, TABLE
from tests.cli.test_data import write_pairs
from tests.data.log_rows import log_rows, write_rows
from tests.runs import ROOT, write_encoder
from tests.tables import write_table

PAIR = '{"question1": "rice", "question2": "cook rice", "is_duplicate": 1}\n'


@pytest.fixture
def files(index, run, tmp_path):
    """Files with mistakes; the index `mine` and the run `run`, of one encoder."""
    write_encoder(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "later")
    (manifest,) = (tmp_path / "later").rglob("manifest.json")
    manifest.write_text(manifest.read_text().replace("model 1", "model 2"))
    write_pairs(tmp_path / "good.tsv")
    write_rows(tmp_path / "bad_log.jsonl", log_rows())
    write_table(tmp_path / "log.jsonl", ("asked", "said"), log_rows())
    contents = {
        "a.tsv": "first\tsecond\nhow to cook rice\tx\n",
        "bad.jsonl": JSONL + "{\n",
        "twice.tsv": "id\tquestion\n5\ta\n7\tb\n5\tc\n",
        "some_ids.jsonl": '{"question": "a", "id": 5}\n{"question": "b"}\n',
        "t.csv": TABLE,
        "tab": "id\tquestion\n1\ta\n",
        "packed": "PAR1",
        "format.csv": "format,payload\na,b\n",
        "pairs.tsv": (tmp_path / "good.tsv").read_text() + "one cell\n",
        "pairs.jsonl": PAIR,
        "other.tsv": "question1\tquestion2\tis_duplicate\na\tb\t0\n",
        "ids.tsv": "question\tid\na\t5\nb\t77\n",
        "lists.tsv": "question\tid\na\t5\nb\t5; 8\n",
        "no_id.tsv": "question\tid\na\t\n",
        "blank.tsv": "question\tid\na\t5\n\t5\n",
        "deep.toml": "seed = " + "[" * 50_000,
        "bad_log.jsonl": (tmp_path / "bad_log.jsonl").read_text() + "{\n",
        "lab.csv": "question1,question2,label\nrice,cook rice,1\n",
        "evil.csv": "id,\x1b[2J\u202equestion\nerror: all is well,x\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    return tmp_path


# (words of the command, where the mistake is, what the line names as remedy); tests of the library
# have the mistakes that it names.
MISTAKES = (
    # index, search, add, remove
    ("index made a.tsv --encoder run", "a.tsv", "--text-column"),
    ("index made bad.jsonl --encoder run", "bad.jsonl, line 5", "--skip-bad-rows"),
    ("index made evil.csv --encoder run --text-column x", "evil.csv", "--text-column"),
    ("index made twice.tsv --encoder run", "twice.tsv, line 4", "`--no-ids`"),
    ("index made some_ids.jsonl --encoder run", "some_ids.jsonl, line 2", "`--no-ids`"),
    ("index made t.csv --id-column x --encoder run", "t.csv", "(`--id-column`)"),
    ("index made t.csv --payload x --encoder run", "t.csv", "`--payload`"),
    ("index made tab --encoder run", "tab: expected lines", "`--format`"),
    ("index made packed --encoder run", "packed: ", "`--format parquet`"),
    ("index mine gone.csv --encoder run", "gone.csv", "name a file"),
    ("index made runs --encoder run", "runs: does not exist;", "name a file"),
    ("search god.tsv --query a", "found none at god.tsv;", "makes one"),
    ("review good.ts --port 0", "good.ts: found none;", "`qpr duplicates TABLE` finds some"),
    ("train r good.tsv --labels mine", "`data.labels`: mine: expected labels, got an index", ""),
    ("index made tt.csv --encoder run", "tt.csv: does not exist (did you mean `t.csv`?)", ""),
    ("index made t.csv --text-column Qestion", "`Qestion` (did you mean `question`?)", ""),
    ("index made t.csv --payload PRODUCTS", "`PRODUCTS` (did you mean `product`?)", ""),
    ("index made t.csv --encoder all-MiniLM-L6-v2", "`minilm`", "/all-MiniLM-L6-v2"),
    ("index made t.csv --encoder org/name", "found none", "as hf://org/name"),
    ("index made t.csv --encoder minilmm", "at minilmm (did you mean `minilm`?)", ""),
    ("index made t.csv --encoder later", "later", "a later version of qpr_jax wrote it"),
    ("search minee --query a", "at minee (did you mean `mine`?)", ""),
    ("search mine qustions.jsonl", "no such file (did you mean `questions.jsonl`?)", "--query"),
    ("remove mine qustions.jsonl", "no such file (did you mean `questions.jsonl`?)", "`--id`"),
    ("train r god.tsv", "none at god.tsv (did you mean `good.tsv`?)", ""),
    ("index some_ids.jsonl/made t.csv --encoder run", "some_ids.jsonl/made", "another folder"),
    ("index mine/index t.csv --encoder run", "mine/index", "this index: mine"),
    ("index made format.csv --encoder run", "got `format`, `payload`;", "(`--text-column`)"),
    ("encode run t.csv --out /proc/x.npy", "/proc: cannot be written", "another folder"),
    ("search gone --query a", "gone", ""),
    ("search mine/index --query a", "mine/index", "this index: mine"),
    ("duplicates gone --text-column a --out made", "gone: does not exist;", "name a file"),
    # duplicates
    ("duplicates other.tsv --encoder run --out made", "other.tsv", "`qpr evaluate --task mining`"),
    ("duplicates t.csv --encoder run --out made --max-distance 1 --keep max:Vote", "`votes`?", ""),
    ("duplicates t.csv --encoder run --out made --max-distance 1 --keep max:likes", "`--keep`", ""),
    ("duplicates t.csv --encoder run --out made --block-on id", "`id` that is", "`--no-ids`"),
    ("duplicates t.csv --out made --incremental mine --encoder run", "got encoder", "leave one"),
    (
        "duplicates t.csv --incremental gone --out made",
        "none at gone",
        "`qpr index FOLDER TABLE` makes one",
    ),
    ("review - --port 0", "`PAIRS`", ""),
    ("serve gone --port 0", "gone", ""),
    ("serve gone --port 0 --token-file good.tsv", "good.tsv", "token"),
    # data
    ("splits pairs.tsv --out made --dev 0.2 --test 0.2", "pairs.tsv, line", "--skip-bad-rows"),
    ("splits good.tsv --out run", "`--out`", "another folder"),
    ("clusters log.jsonl --out made --answer said", "log.jsonl", "`--question` and `--answer`"),
    ("clusters bad_log.jsonl --out made", "bad_log.jsonl, line", "--skip-bad-rows"),
    (
        "clusters bad_log.jsonl --skip-bad-rows --out made --min-coherence 1",
        "",
        "lower `--min-coherence`, or use `--coherence pairwise`",
    ),
    ("clusters log.jsonl --out made --spark local[x]", "`--spark`", ""),
    ("calibrate minilm pairs.jsonl", "minilm", "--out"),
    ("calibrate run pairs.tsv --out made", "pairs.tsv, line", "--skip-bad-rows"),
    # evaluate, errors, publish
    ("evaluate mine no_id.tsv", "no_id.tsv: expected ids", "--id-column"),
    ("evaluate mine blank.tsv", "blank.tsv, line 3", "correct it"),
    ("evaluate mine ids.tsv", "not in mine: 1 of 2, such as 77", "remove their rows"),
    ("evaluate mine lists.tsv", "one id in a row, got several of mine: 5; 8", "in a row for each"),
    ("evaluate run pairs.jsonl --task classification --validation pairs.jsonl", "pairs.", ""),
    ("evaluate run pairs.tsv --task mining", "pairs.tsv, line", "--skip-bad-rows"),
    ("errors mine --out made.md", "mine", ""),
    ("publish run --to run", "`--to`", "another folder"),
    ("publish run --to .", "`--to`", ""),
    # train
    ("train r gone.tsv", "`data.path`", ""),
    ("train r lab.csv", "lab.csv", "name its columns"),
    ("train r pairs.tsv", "pairs.tsv, line", "`data.skip_bad_rows=True`"),
    ("train r --encoder minilm", "", "`qpr train r pairs.tsv --encoder minilm`"),
    ("train r --config fine_tune", "", "`qpr train r pairs.tsv --encoder open_student`"),
    ("train r --config distill", "`data.path`", ""),
    ("train r --config deep.toml", "deep.toml", "fix the file"),
    ("train r --config synthetic_sdml --set devices=9", "at most 8, got 9", ""),
    ("train r --config synthetic_sdml --labels gone.csv", "`data.labels`", ""),
    ("train r --config synthetic_sdml --encoder gone", "`encoder.pretrained`", ""),
)


def test_an_error_is_one_line_that_says_where_and_what_to_do(qpr, files):
    before = {path.name for path in files.iterdir()}
    for arguments, where, remedy in MISTAKES:
        status, stdout, stderr = qpr(*arguments.split(" "))
        assert (status, stdout) == (1, ""), (arguments, stderr)
        line = stderr.splitlines()[-1]
        assert line.startswith("error: "), arguments
        assert line.isprintable(), arguments
        assert stderr.count("error: ") == 1 + stderr.count("error: all is well"), arguments
        assert where in line, arguments
        assert remedy in line, arguments
        options = [
            flag for one in program.commands[arguments.split()[0]].params for flag in one.opts
        ]
        assert remedy != "--skip-bad-rows" or remedy in options, arguments
        assert len(line) < 700, arguments
        assert {path.name for path in files.iterdir()} == before, arguments


WRONG_OPTIONS = (
    ("serch mine", "no command serch; did you mean search? see"),
    ("search mine --kk 3", "no option --kk; did you mean -k? see"),
    ("duplicates t.csv --text-colum a", "no option --text-colum; did you mean --text-column? see"),
    ("index f t.csv --xyzzy", "no option --xyzzy; see"),
    ("search mine --queries q.csv -k 2", "as an argument: qpr search FOLDER QUERIES; see"),
    ("duplicates --input=t.csv", "no option --input; give it as an argument: qpr dup"),
    ("search mine --encoder minilm", "--encoder; leave it out, since FOLDER has its own"),
    (f"search mine --asked {__file__}", "--asked; give it as an argument: qpr search"),
    ("search mine --asked q.csv", "no option --asked; see"),
    (f"duplicates x --agianst={__file__}", "no option --agianst; did you mean --against? see"),
    ("train r --config quora_sdlm", "'quora_sdlm' (did you mean `quora_sdml`?)"),
    ("index f t.csv --encoder", "option '--encoder' requires an argument"),
    ("index f t.csv --format xlsx", "invalid value for '--format': 'xlsx' is not one of"),
    ("splits pairs.tsv", "missing option '--out'"),
    ("search mine --query rice --cross-encoder x", "--rerank cross_encoder"),
    ("search mine ", "expected the path of a file or a folder, got ''"),
    ("duplicates t.csv --out -", "expected the path of a file or a folder, got '-'"),
    ("encode run x.tsv --out y.npy --spark local[1]", "folder of Parquet files"),
    ("duplicates t.csv --out d --excel --output jsonl", "--excel needs --output csv or tsv"),
    ("splits pairs.tsv --out made --dev 0", "'--dev'"),
    ("clusters", "give LOGS and --out"),
    ("clusters rows.jsonl --out made --labels sample.tsv", "give LOGS and --out"),
    ("evaluate run p.tsv --task classification", "needs --validation"),
    ("evaluate run p.tsv --validation p.tsv", "--validation does not go with retrieval"),
    ("evaluate run p.tsv --task mining --other-texts", "--other-texts does not go with mining"),
    ("evaluate run p.tsv --task translation --format tsv", "--format"),
    ("evaluate run --split dev", "--split does not go with retrieval"),
    ("evaluate run --beir set --format tsv", "--format does not go with --beir"),
    ("evaluate run p.tsv --beir set", "--beir"),
    ("evaluate run --beir set --task mining", "--beir"),
    ("index f t.csv --id-column id --no-ids", "give --id-column or --no-ids, not both"),
    ("presets --all", "--all"),
    ("index f t.csv --factory LSH", "'--factory': expected `auto`, `Flat`, `HNSW32`"),
    ("index f t.csv --metric cosine", "'cosine' is not one of 'l2', 'ip'"),
    ("duplicates t.csv --out made --keep best", "'--keep': expected first, longest"),
    ("duplicates t.csv --text-column a --text-column b", "join them in one column"),
    ("duplicates t.csv --replace", "--replace goes with --incremental only"),
    ("splits good.tsv --out made --dev 0.6 --test 0.5", "have a sum below 1, got 1.1"),
    ("train r --config synthetic_sdml --set loss.scale", "--set takes NAME=VALUE"),
    ("train r --config synthetic_sdml --set batch_size=-1", "must be greater than or equal to 0"),
    ("train r --config synthetic_sdml --set bacth_size=3", "did you mean `batch_size`?"),
    ("search mine rice --query a", "give QUERIES or --query, not both"),
    ("search mine --query a --id-column x", "give --id-column or --query, not both"),
    ("remove mine ids.txt --id 3", "give IDS or --id, not both"),
    ("review found --sample 9", "--sample goes with --queries only"),
)


def test_a_number_out_of_its_range_is_a_wrong_use(qpr, tmp_path):
    """Of every option with numbers in every command: status 2, before any file is read."""
    tried = 0
    for name, command in program.commands.items():
        needed = [
            word
            for parameter in command.params
            if parameter.required
            for word in (*parameter.opts[:1], "x")[isinstance(parameter, click.Argument) :]
        ]
        for option in command.params:
            if "integer" not in option.type.name and "float" not in option.type.name:
                continue
            kind, flag = option.type, max(option.opts, key=len)
            assert kind.min is not None, (name, flag)  # each has a range
            below = kind.min if kind.min_open else kind.min - 1
            above = [] if kind.max is None else [kind.max if kind.max_open else kind.max * 2 + 1]
            for value in (below, *above, "nan", "inf", "-inf", "1e400", "x", ""):
                status, out, said = qpr(name, *needed, f"{flag}={value}")
                assert (status, out) == (2, ""), (name, flag, value, said)
                assert said.startswith(f"error: invalid value for '{flag}'"), said
                tried += 1
    assert tried > 100
    assert [*tmp_path.iterdir()] == []


def test_the_library_names_parameters_and_a_command_its_options():
    for path in (ROOT / "qpr_jax").rglob("*.py"):
        if path.parent.name != "cli":
            assert not re.search(r"`--[a-z]", path.read_text("utf-8")), path
    for name, python, expected in (
        ("duplicates", "(see `clean=False`)", "(see `--no-clean`)"),
        ("duplicates", "`ignore_numbers=True` joins them", "`--ignore-numbers` joins them"),
        ("duplicates", 'as `encoder="%s"`, or', "as `--encoder %s`, or"),
        ("index", 'or none with `id_column=""`', "or none with `--no-ids`"),
        ("index", "raise `nprobe`, `clean=True`", "raise `--nprobe`, `--clean`"),
        ("search", "`k`: expected; `cross_encoder`", "`-k`: expected; `--cross-encoder`"),
        ("clusters", 'use `coherence="paper"`', "use `--coherence paper`"),
        ("review", "`pairs` and `labels`", "`PAIRS` and `--labels`"),
        ("train", "`overwrite=True`, `seed`, `qpr train`", "`--overwrite`, `seed`, `qpr train`"),
    ):
        assert program.commands[name].in_options(python) == expected


def test_a_line_of_a_log_names_options_and_keeps_texts(done, run, tmp_path):
    rows = "<b>open it</b>,x\nclose 1 of it,y\nclose 2 of it,y\n"
    (tmp_path / "a.csv").write_text(f"question,format\n{rows}")
    _, stderr = done("duplicates", "a.csv", "--encoder", run, "--max-distance", 9)
    assert "rows that are compared without their HTML (see `--no-clean`): 1\n" in stderr
    assert "2 texts differ from others in numbers only, so all are kept; `--ignore-num" in stderr
    assert "payload `format`\n" in stderr


def test_numbers_and_nouns_agree():
    found = [counted(n, "query") for n in (0, 1, 2_000)]
    assert found == ["0 queries", "1 query", "2,000 queries"]


def test_what_a_later_version_wrote_is_named(tmp_path):
    write_folder(tmp_path / "a", {}, format="kind 10")
    for expected, remedy in (
        ("kind 9", "a later version"),
        ("kind 11", "make the"),
        ("x 1", "make"),
    ):
        with pytest.raises(UserError) as caught:
            read_manifest(tmp_path / "a", format=expected)
        assert caught.value.remedy.startswith(remedy)


def test_a_wrong_use_of_options_is_named(qpr, tmp_path):
    before = [*tmp_path.iterdir()]
    for arguments, said in WRONG_OPTIONS:
        status, stdout, stderr = qpr(*arguments.split(" "))
        assert (status, stdout) == (2, ""), arguments
        (line,) = stderr.splitlines()
        assert line.startswith("error: "), arguments
        name = arguments.split()[0]
        help = f"qpr {name} --help" if name in program.commands else "qpr --help"
        assert line.endswith(f" see `{help}`"), arguments
        assert said in line, arguments
        assert [*tmp_path.iterdir()] == before, arguments


def test_commands_in_messages_exist():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "qpr_jax").rglob("*.py"))
    names = {*re.findall(r"`qpr ([a-z]+)", source)}
    assert {"train", "compact", "clusters"} <= names <= {*program.commands}


def test_a_full_disk_is_one_line_and_a_bug_keeps_its_traceback(capsys):
    def fail(error):
        raise error

    full = OSError(errno.ENOSPC, "No space left on device", "a.npy")
    assert run_program(lambda: fail(full)) == 1
    assert re.fullmatch(r"error: No space left on device: 'a.npy'; .*\n", capsys.readouterr().err)
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: fail(ZeroDivisionError()))


def test_ctrl_c_where_python_ignores_errors_is_raised_again(capsys):
    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    def main():
        Interrupted()
        time.sleep(30)
        return 0

    # A program that a shell starts in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run_program(main) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "stopped\n"


def test_help_is_plain_lines_with_an_example(qpr, monkeypatch):
    """At the width that is given, 80 by default, without control characters."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for name in ("", *program.commands):
        status, stdout, stderr = qpr(*filter(None, [name]), "--help")
        assert (status, stderr) == (0, "")
        assert f"Example: qpr {name} " in stdout or not name
        assert all(character.isprintable() or character == "\n" for character in stdout)
        assert max(map(len, stdout.splitlines())) <= 100
