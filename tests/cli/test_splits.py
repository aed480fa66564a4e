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
    assert "dev: 16 questions, 8 clusters, 8 duplicates" in stderr
    dropped = report["dropped"]["non_duplicates_across_parts"]
    assert f"left out: {dropped} non duplicates across parts, 0 non duplicates of one" in stderr
    # What is made is read by the other commands as it is.
    counts = report["parts"]["train"]
    train = read_question_pairs(tmp_path / "parts" / "train.tsv")
    assert len(train.pairs) == counts["duplicates"] + counts["non_duplicates"]
    classify = ("--task", "classification", "--validation", "parts/dev.tsv")
    status, out, stderr = qpr("evaluate", run, "parts/test.tsv", *classify)
    assert status == 0, stderr
    assert json.loads(out)["test"]["pairs"] > 8
    status, out, stderr = qpr("evaluate", run, "parts/test.tsv", "--task", "mining")
    assert status == 0, stderr
    assert json.loads(out)["true_pairs"] == 8
    status, out, stderr = qpr("evaluate", run, "--beir", "parts/beir", "--split", "dev")
    assert status == 0, stderr
    scores = json.loads(out)
    assert scores["queries"] == report["parts"]["dev"]["queries"]
    assert scores["documents"] == report["corpus"]
    assert scores["recall@100"] == 1
