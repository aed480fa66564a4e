import json

import pytest

from qpr_jax.data.pairs import HEADER, read_question_pairs

ROWS = [(2 * i, 2 * i + 1, f"how do i learn {i}", f"learning of {i}", 1) for i in range(40)]
ROWS += [(2 * i, 2 * i + 2, f"how do i learn {i}", f"how do i learn {i + 1}", 0) for i in range(39)]


def write_pairs(path, rows=ROWS):
    lines = ["\t".join(map(str, (number, *row))) for number, row in enumerate(rows)]
    path.write_text("\n".join(["\t".join(HEADER), *lines, ""]))


def test_parts_are_made_and_scored(qpr, run, tmp_path):
    write_pairs(tmp_path / "pairs.tsv")
    status, out, stderr = qpr("splits", "pairs.tsv", "--out", "parts", "--dev", 0.2, "--test", 0.2)
    assert status == 0, stderr
    assert out == ""
    report = json.loads((tmp_path / "parts" / "report.json").read_text())
    assert "dev: 16 questions, 8 components, 8 clusters, 16 clustered_questions, 8 dup" in stderr
    dropped = report["dropped"]["non_duplicates_across_parts"]
    assert f"left out: non-duplicates of two parts: {dropped}, of one cluster: 0; pairs" in stderr
    # What is made is read by the other commands as it is.
    folder = tmp_path / "parts" / "classification"
    assert len(read_question_pairs(folder / "train_pairs.tsv").pairs) == sum(
        report["parts"]["train"][kind] for kind in ("duplicates", "non_duplicates")
    )
    test, dev = folder / "test_pairs.tsv", folder / "dev_pairs.tsv"
    classify = ("evaluate", run, test, "--task", "classification", "--validation", dev)
    status, out, stderr = qpr(*classify)
    assert status == 0, stderr
    assert json.loads(out)["test"]["pairs"] > 8
    status, out, stderr = qpr("evaluate", run, test, "--task", "mining")
    assert status == 0, stderr
    assert json.loads(out)["true_pairs"] == 8
    of_mining = [f"parts/mining/test_{name}.tsv" for name in ("corpus", "duplicates")]
    mining = ("evaluate", run, of_mining[0], "--task", "mining", "--duplicates", of_mining[1])
    status, out, stderr = qpr(*mining)
    assert status == 0, stderr
    scores = json.loads(out)
    assert scores["questions"] == report["parts"]["test"]["questions"]
    assert scores["true_pairs"] == report["parts"]["test"]["linked_duplicates"]
    assert qpr(*mining, "--format", "tsv")[0] == 2
    assert qpr("evaluate", run, "-", "--task", "mining", "--duplicates", "-")[0] == 2
    status, out, stderr = qpr("evaluate", run, "--beir", "parts/beir", "--split", "dev")
    assert status == 0, stderr
    scores = json.loads(out)
    assert scores["queries"] == report["parts"]["dev"]["queries"]
    assert scores["documents"] == report["retrieval_corpus"]
    assert scores["recall@100"] == 1
    corpus = tmp_path / "parts" / "retrieval" / "corpus.tsv"
    assert qpr("index", "mine", corpus, "--run", run)[0] == 0
    status, out, _ = qpr("search", "mine", "--query", "how do i learn 3", "-k", 1)
    qids = {line.split("\t")[0] for line in corpus.read_text().splitlines()[1:]}
    assert str(json.loads(out)["id"]) in qids
    mining = tmp_path / "parts" / "mining" / "dev_corpus.tsv"
    lines = ("--output", "jsonl")
    assert qpr("duplicates", mining, "--run", run, "--out", "m", "--pairs", 1, *lines)[0] == 0
    (pair,) = map(json.loads, (tmp_path / "m" / "pairs.jsonl").read_text().splitlines())
    qids = {line.split("\t")[0] for line in mining.read_text().splitlines()[1:]}
    assert {str(pair["id1"]), str(pair["id2"])} <= qids


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dev", 0.6, "--test", 0.4), "expected shares that leave some to train on, got 0.6 and"),
        (("--dev", 0.001), "expected duplicates in each part, got none for dev, which is 0.001 of"),
        (("--dev-queries", 0), "`dev_queries`: expected 1 or more, got 0"),
        (("--seed", -1), "`seed`: expected 0 or more, got -1"),
    ],
)
def test_sizes_that_cannot_be(qpr, tmp_path, options, said):
    write_pairs(tmp_path / "pairs.tsv")
    status, _, stderr = qpr("splits", "pairs.tsv", "--out", "parts", *options)
    assert status == 1
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert said in stderr
    assert not (tmp_path / "parts").exists()


def test_files_and_folders_that_will_not_do(qpr, tmp_path):
    status, _, stderr = qpr("splits", "none.tsv", "--out", "parts")
    assert status == 1
    assert stderr.startswith(
        "error: none.tsv: cannot be read (No such file or directory); name a file"
    )
    assert qpr("splits", "pairs.tsv")[0] == 2
    write_pairs(tmp_path / "pairs.tsv", [*ROWS, (1, 2, "a\tb", "c", 1)])
    status, _, stderr = qpr("splits", "pairs.tsv", "--out", "parts")
    assert status == 1
    assert "pairs.tsv, line 81: expected 6 fields, as the header, got 7" in stderr
    shares = ("--dev", 0.2, "--test", 0.2)
    status, _, stderr = qpr("splits", "pairs.tsv", "--out", "parts", "--skip-bad-rows", *shares)
    assert status == 0, stderr
    assert json.loads((tmp_path / "parts" / "report.json").read_text())["skipped_rows"] == 1
    status, _, stderr = qpr("splits", "pairs.tsv", "--out", "parts")
    assert status == 1
    assert "`out`: parts exists already; remove it, or name another folder" in stderr
