import json

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
