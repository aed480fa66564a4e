"""`qpr duplicates`: its files and formats, kills, a second run, files of others."""

import json
import os
import re

import pandas as pd
import pytest

import qpr_jax
from qpr_jax import Retriever
from qpr_jax.files import locked
from qpr_jax.pair_model.plain import SURE
from tests.cli.conftest import QUESTIONS, TABLE
from tests.kills import killed_at
from tests.tables import read_table


def test_files_are_written(done, calibrated_run, table, tmp_path):
    _, stderr = done("duplicates", table, "--encoder", calibrated_run, "--out", "d")
    assert "d: pairs: 0; copies: 2; groups: 1, with 3 rows; rows left: 2 of 4\n" in stderr
    pairs = read_table(tmp_path / "d" / "pairs.csv")
    assert [*pairs[0]] == ["id1", "id2", "score", "distance", "question1", "question2"]
    found = [(p["id1"], p["id2"], p["score"][:4]) for p in pairs]
    assert found == [("7", "a", "1.0"), ("7", "c", "1.0")]
    groups = read_table(tmp_path / "d" / "groups.csv")
    found = [(g["id"], g["kept"], g["votes"]) for g in groups]
    assert found == [("7", "false", "20"), ("a", "true", "3"), ("c", "false", "5")]
    links = {(g["weakest"], g["link1"], g["link2"], g["distance"]) for g in groups}
    assert links == {("1.0", "7", "a", "0.0")}
    kept = read_table(tmp_path / "d" / "deduplicated.csv")
    assert kept == [
        {"id": "a", "question": "learn python", "product": "x", "votes": "3", "rows": "3"},
        {"id": "d", "question": 'cook, "rice"\n', "product": "y", "votes": "1", "rows": "1"},
    ]
    info = json.loads((tmp_path / "d" / "info.json").read_text())
    assert [row["threshold"] for row in info["thresholds"]] == [0.3, 0.5, 0.7, 0.9]
    expected = {"questions": 4, "texts": 2, "pairs": 0, "copies": 2, "groups": 1, "kept": 2}
    assert info.items() >= expected.items()


def test_several_files_and_the_tables_of_a_folder_are_one_table(done, run, tmp_path):
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    (tmp_path / "parts" / "a.csv").write_text("question,tag\nlearn python,x\ncook rice,y\n")
    (tmp_path / "parts" / "deep" / "b.jsonl").write_text('{"text": "Learn Python", "tag": "z"}\n')
    (tmp_path / "parts" / "README").write_text("no table")
    files, how = ("parts/a.csv", "parts/deep/b.jsonl"), ("--encoder", run, "--max-distance", 0)
    done("duplicates", *files, *how, "--out", "files_duplicates")
    done("duplicates", "parts", *how)
    for name in ("files", "parts"):
        kept = read_table(tmp_path / f"{name}_duplicates" / "deduplicated.csv")
        found = [(row["question"], row["rows"]) for row in kept]
        assert found == [("learn python", "2"), ("cook rice", "1")]
    done("duplicates", "parts", *how, "--block-on", "tag", "--out", "blocks")
    assert read_table(tmp_path / "blocks" / "pairs.csv") == []
    (tmp_path / "new.csv").write_text("question\ncook RICE\nrye\n")
    done("duplicates", "new.csv", "--against", "parts", *how)
    groups = read_table(tmp_path / "new_duplicates" / "groups.csv")
    found = {(row["question"], row["of_table"], row["kept"]) for row in groups}
    assert found == {("cook RICE", "true", "false"), ("cook rice", "false", "true")}
    done("index", "i", "parts", "--encoder", run)
    done("add", "i", *files[::-1])
    stored = [(q.id, q.text, q.payload["tag"]) for q in Retriever.load(tmp_path / "i")]
    expected = [(3, "Learn Python", "z"), (4, "learn python", "x"), (5, "cook rice", "y")]
    assert stored[3:] == expected
    assert [value for value, *_ in stored] == [*range(6)]


def test_a_table_alone_gets_a_folder_and_a_summary(refused, done, run, tmp_path):
    (tmp_path / "t.v1.csv").write_text("question\nlearn\x1b python\nlearn a python\ncook\nCook!\n")
    _, stderr = done("duplicates", "t.v1.csv", "--encoder", run, "--max-distance", 9)
    found = read_table(tmp_path / "t_duplicates" / "pairs.csv")
    assert f"pairs: {len(found) - 1}; copies: 1;" in stderr
    assert " rows: " in stderr
    assert "\x1b" not in stderr
    farthest = re.findall("farthest, distance ([0-9.]+)", stderr)
    assert farthest == sorted(farthest, key=float, reverse=True) != []
    assert "`qpr review t_duplicates` shows you" in stderr
    (tmp_path / "c.csv").write_text("question\ncook\nCook!\nplay a\nplay the game\nfly\n")
    _, stderr = done("duplicates", "c.csv", "--encoder", "open_student")
    assert "--threshold     pairs    groups  rows left  share of right pairs (middle half" in stderr
    rows = [line.split()[1:] for line in stderr.splitlines() if " to 0." in line]
    assert [row[0] for row in rows] == ["0.3", "0.5", "0.7", "0.9"]
    (weakest,) = (line for line in stderr.splitlines() if "least sure pair from" in line)
    assert weakest.endswith("--threshold 0.9 on: play a | play the game")
    for texts, threshold, said in (
        ("play a\nplay the game", 0.95, "next: a lower --threshold finds pairs"),
        ("cook\nfly to the moon", 0.5, "next: `--threshold 0.05` shows the pairs"),
        ("cook\nCook", 0.5, "0.9 "),
    ):
        (tmp_path / "c.csv").write_text(f"question\n{texts}\n")
        _, stderr = done("duplicates", "c.csv", "--encoder", "minilm", "--threshold", threshold)
        assert said in stderr.splitlines()[-1], stderr
    refused(
        "name the output folder with --out", "duplicates", "--encoder", run, status=2, given=b"a\n"
    )
    for wrong in ("0,5", "50%", "nan"):
        what = f"expected a number such as 0.5, got '{wrong}'"
        refused(what, "duplicates", "c.csv", "--threshold", wrong, status=2)


@pytest.mark.parametrize("folder", [".", "./", "../here"])
def test_the_folder_of_the_shell_gets_a_folder_beside_it(done, run, tmp_path, monkeypatch, folder):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "t.csv").write_text("question\nlearn python\nlearn a python\n")
    monkeypatch.chdir(tmp_path / "here")
    done("duplicates", folder, "--encoder", run, "--max-distance", 9)
    assert (tmp_path / "here_duplicates" / "pairs.csv").exists()


def test_a_summary_says_how_often_pairs_of_other_tables_were_right(done, tmp_path):
    rows = "question\ndelete my account\nHow do I delete an account?\nfly\n"
    (tmp_path / "t.csv").write_text(rows)
    model = qpr_jax.Retriever.load("minilm").pair_model
    low, high = model.precisions["0.5"]
    said = done("duplicates", "t.csv")[1]
    assert f"  {low:.2f} to {high:.2f}\n" in said
    assert "check the pairs before you delete rows: `qpr review t_duplicates` shows" in said


def test_every_format_says_the_same(done, calibrated_run, table, tmp_path):
    how = ("duplicates", table, "--encoder", calibrated_run, "--out", "d", "--keep", "max:votes")
    said = []
    for output in ("csv", "tsv", "jsonl", "parquet"):
        done(*how, "--output", output)
        names = ("deduplicated", "groups", "pairs")
        written = {path.name for path in (tmp_path / "d").iterdir()}
        assert written == {".lock", "info.json", *(f"{name}.{output}" for name in names)}
        path = str(tmp_path / "d" / f"deduplicated.{output}")
        rows = qpr_jax.read_table(path)
        said.append([(str(row.id), row.question, *map(str, row.payload.values())) for row in rows])
    assert said[0] == said[1] == said[2] == said[3]
    assert said[0][0] == ("7", "Learn Python", "x", "20", "3")
    done("index", "again", "d/deduplicated.parquet", "--encoder", calibrated_run)


def test_columns_keep_their_names_order_and_types(done, run, tmp_path):
    day, texts = pd.to_datetime(["2024-01-01"] * 3), ["learn python", "Learn python?", "rice"]
    table = pd.DataFrame({"Day": day, "Betreff Text": texts, "Nr": [7, 8, 9], "on": day.date})
    table.iloc[:2].to_parquet(tmp_path / "a.parquet")
    table.iloc[2:].to_parquet(tmp_path / "b.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    how = ("--encoder", run, "--max-distance", 0, "--text-column", "Betreff Text", "--out", "d")
    for more, added in (((), ["id", "rows"]), (("--id-column", "Nr"), ["rows"])):
        done("duplicates", "t.csv", *how, *more)
        assert [*pd.read_csv(tmp_path / "d" / "deduplicated.csv")] == [*table, *added]
        done("duplicates", "a.parquet", "b.parquet", *how, *more)
        kept = pd.read_parquet(tmp_path / "d" / "deduplicated.parquet")
        assert [*kept] == [*table, *added]
        assert kept[[*table]].equals(table.iloc[[0, 2]].reset_index(drop=True))
        groups = pd.read_parquet(tmp_path / "d" / "groups.parquet")
        assert groups[[*table]].equals(table.iloc[:2])


def test_lines_of_standard_input(done, run, tmp_path):
    texts = [*[*QUESTIONS.values()][:3], "how can I QUICKLY learn python?"]
    options = ("--encoder", run, "--out", "d", "--output", "jsonl", "--max-distance", 0.2)
    done("duplicates", "-", *options, given="\n".join(texts).encode())
    (pair,) = read_table(tmp_path / "d" / "pairs.jsonl")
    assert pair.pop("distance") < 0.2
    expected = {"id1": 0, "id2": 3, "score": SURE, "question1": texts[0], "question2": texts[3]}
    assert pair == expected


def test_an_index_gets_what_it_lacks(qpr, done, objects, calibrated_run, table, tmp_path):
    (tmp_path / "old.csv").write_text("id,question\n1,LEARN python\n")
    done("index", "i", "old.csv", "--encoder", calibrated_run)
    how = ("duplicates", table, "--incremental", "i", "--out", "d", "--json")
    out, _ = done(*how)
    assert json.loads(out).items() >= {"added": 4, "kept": 1, "questions": 4}.items()
    assert len(Retriever.load(tmp_path / "i")) == 5
    found = (tmp_path / "d" / "groups.csv").read_bytes()
    again = qpr(*how)
    assert json.loads(again[1]) == json.loads(out)
    assert "d: unchanged; " in again[2]
    assert (tmp_path / "d" / "groups.csv").read_bytes() == found
    (tmp_path / "t.csv").write_text("".join(TABLE.splitlines(keepends=True)[:3]))
    assert objects(*how)[0].items() >= {"added": 0, "kept": 0, "pairs": 0}.items()


def test_an_index_that_cannot_be_written_fails_before_the_search(
    refused, done, run, tmp_path, monkeypatch
):
    (tmp_path / "t.csv").write_text("question\nlearn python\ncook rice\n")
    done("index", "i", "t.csv", "--encoder", run)
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK)
    refused("i/index", "duplicates", "t.csv", "--incremental", "i", "--out", "d")
    assert not (tmp_path / "d").exists()


def test_cells_that_spreadsheets_compute_are_marked(done, calibrated_run, tmp_path):
    rows = "id,question,=note\na,=1+1 learn python,+x\nb,=1+1 Learn python,-5\nc,@rice,plain"
    (tmp_path / "q.csv").write_text(rows)
    how = ("duplicates", "q.csv", "--encoder", calibrated_run, "--out", "d")
    done(*how)
    plain = (tmp_path / "d" / "deduplicated.csv").read_text()
    assert plain == "id,question,=note,rows\na,=1+1 learn python,+x,2\nc,@rice,plain,1\n"
    done(*how, "--excel")
    marked = (tmp_path / "d" / "deduplicated.csv").read_text()
    assert marked == "\ufeffid,question,'=note,rows\na,'=1+1 learn python,'+x,2\nc,'@rice,plain,1\n"
    assert "'-5" in (tmp_path / "d" / "groups.csv").read_text()
    (tmp_path / "q.csv").write_text(rows.replace(",", ";"))
    done(*how, "--excel")
    assert (tmp_path / "d" / "deduplicated.csv").read_text() == marked.replace(",", ";")


def test_a_kill_leaves_whole_files_or_none(qpr, done, calibrated_run, table, tmp_path):
    """Killed at each of the renames by which a file appears, among files of a run before."""
    how = ("duplicates", table, "--encoder", calibrated_run)
    names = ("pairs.csv", "groups.csv", "deduplicated.csv")

    def made(folder, *more):
        done(*how, *more, "--out", folder)
        return read(folder)

    def read(folder):
        return {name: (tmp_path / folder / name).read_bytes() for name in names}

    whole = made("whole")
    for renames in range(100):
        before = made("cut", "--threshold", "1")
        with killed_at(renames) as targets:
            qpr(*how, "--out", "cut")
        found = read("cut")
        assert all(found[name] in (before[name], whole[name]) for name in names)
        if json.loads((tmp_path / "cut" / "info.json").read_text())["complete"]:
            assert found in (before, whole)
        assert made("cut") == whole
        if len(targets) <= renames:  # it was not killed
            break
    assert 4 < renames < 99


def test_files_of_the_user_and_of_a_run_that_goes_on_stay(
    refused, done, calibrated_run, table, tmp_path
):
    folder, how = tmp_path / "d", ("duplicates", table, "--encoder", calibrated_run, "--out", "d")
    with locked(folder / ".lock"):
        refused("d: another `qpr duplicates` writes it", *how)
        assert [path.name for path in folder.iterdir()] == [".lock"]
    (folder / "notes.txt").write_text("mine")
    refused("d: expected an empty folder or an earlier result, found other files", *how)
    assert {path.name for path in folder.iterdir()} == {".lock", "notes.txt"}
    (folder / "notes.txt").unlink()
    done(*how, "--output", "parquet")
    (folder / "groups.tsv").write_text("mine")
    (folder / "pairs.jsonl").symlink_to(tmp_path / "t.csv")
    (folder / "pairs.csv").write_text("mine\n")
    refused("pairs.csv is there already", *how)
    assert (folder / "pairs.csv").read_text() == "mine\n"
    (folder / "pairs.csv").unlink()
    for output in ("csv", "parquet"):
        done(*how, "--output", output)
    assert {path.name for path in folder.iterdir()} == {
        *("groups.tsv", "pairs.jsonl", "info.json", ".lock"),
        *("pairs.parquet", "groups.parquet", "deduplicated.parquet"),
    }


def test_an_input_is_never_written(refused, done, calibrated_run, table, tmp_path):
    done("duplicates", table, "--encoder", calibrated_run, "--out", "d")
    path = tmp_path / "d" / "deduplicated.csv"
    before = path.read_bytes()
    for inputs in ((path,), (table, "--against", path)):
        for output in ("csv", "jsonl"):
            how = ("--encoder", calibrated_run, "--out", "d", "--output", output)
            refused("the input is a file of the output folder", "duplicates", *inputs, *how)
            assert path.read_bytes() == before
        done("duplicates", *inputs, "--encoder", calibrated_run, "--out", "e")


def test_labels_decide(done, run, tmp_path):
    (tmp_path / "t.csv").write_text("question\nlearn python\nlearn a python\ncook rice\n")
    rows = "question1,question2,is_duplicate\nLearn a python,learn python,0\ncook rye,bake,1\n"
    (tmp_path / "labels.csv").write_text(rows)
    options = ("--encoder", run, "--max-distance", 4, "--out")
    done("duplicates", "t.csv", *options, "all")
    _, said = done("duplicates", "t.csv", *options, "judged", "--labels", "labels.csv")
    found = [read_table(tmp_path / name / "pairs.csv") for name in ("all", "judged")]
    ids = [{(pair["id1"], pair["id2"]) for pair in pairs} for pairs in found]
    assert ids == [{("0", "1")}, set()]
    assert "labels.csv: 1 label on texts that no row has" in said
