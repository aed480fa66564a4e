import json

import pytest

from qpr_jax.data.splits import SPLITS
from qpr_jax.distant.folder import (
    content_hash,
    histogram,
    make_folder,
    read_clusters,
    score_verdicts,
    wilson,
)
from qpr_jax.distant.logs import Logs, log_files
from qpr_jax.distant.method import Cluster, Method
from qpr_jax.errors import UserError
from tests.distant.rows import log_rows, write_rows


@pytest.fixture
def folder(tmp_path):
    files = (write_rows(tmp_path / "rows.jsonl", log_rows()),)
    make_folder(tmp_path / "made", Logs(files), Method(least=0.2))
    return tmp_path / "made"


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_written_holds_together_and_is_read(folder):
    clusters = objects(folder / "clusters.jsonl")
    data, found, splits = read_clusters(folder)
    assert [cluster["cluster"] for cluster in clusters] == [*range(len(clusters))]
    report = json.loads((folder / "report.json").read_text())
    texts = [row["question"] for row in objects(folder / "questions.jsonl")]
    assert len(texts) == report["questions"] == len({*texts})
    assert report["questions"] == (
        report["undecided_questions"] + report["questions_alone"] + report["clustered_questions"]
    )
    assert report["rows"] == report["questions"] + report["repeated_rows"]
    of = {}
    for cluster in clusters:
        assert {*cluster["questions"]} <= {*texts} - of.keys()
        of |= dict.fromkeys(cluster["questions"], cluster)
        places = [data.questions.index(text) for text in cluster["questions"]]
        assert {*found[places]} == {cluster["cluster"]}
        assert {*splits.split_of[places]} == {SPLITS.index(cluster["split"])}
    assert (found >= 0).sum() == len(of)
    for split in SPLITS:
        header, *pairs = (folder / f"pairs_{split}.tsv").read_text().splitlines()
        assert header == "question1\tquestion2"
        given = [pair.split("\t") for pair in pairs]
        assert [[data.questions[i] for i in pair] for pair in splits.pairs[split]] == given
        assert all(of[first] is of[second] for first, second in given)
        assert {of[first]["split"] for first, _ in given} == {split}
        assert report["splits"][split]["pairs"] == len(pairs)


def test_a_damaged_folder_is_refused(folder):
    for name, text in (
        ("clusters.jsonl", '{"split": "train", "questions": ["x"]}\n'),
        ("clusters.jsonl", '{"split": "other", "questions": []}\n'),
        ("pairs_test.tsv", "question1\tquestion2\nunknown\tother\n"),
        ("report.json", "[1]"),
    ):
        kept = (folder / name).read_text()
        (folder / name).write_text(text)
        with pytest.raises(UserError, match=r"(made|report\.json): .*make the folder again"):
            read_clusters(folder)
        (folder / name).write_text(kept)
    (folder / "questions.jsonl").unlink()
    with pytest.raises(UserError, match=r"questions.jsonl: .*make the folder again"):
        content_hash(folder)


def test_a_split_that_overlap_empties_is_refused(tmp_path):
    # The same words in another order everywhere: whatever is held out, training has it too.
    forms = ("a {} b", "b a {}", "{} b a", "b {} a")
    rows = [(form.format(i), f"{form} {i % 3}") for form in forms for i in range(30)]
    files = (write_rows(tmp_path / "rows.jsonl", rows),)
    with pytest.raises(UserError, match=r"expected clusters in each split, got none for .*"):
        make_folder(tmp_path / "made", Logs(files), Method(least=0.0))
    assert not (tmp_path / "made").exists()


def test_logs_of_a_folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.jsonl", "deep/a.csv.gz", "c.parquet", "README.md", "d.tsv.zst"):
        (tmp_path / name).write_text("")
    assert log_files([str(tmp_path)]) == tuple(
        str(tmp_path / name) for name in ("b.jsonl", "c.parquet", "d.tsv.zst", "deep/a.csv.gz")
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="expected a folder with tables"):
        log_files([str(tmp_path / "empty")])
    (tmp_path / "empty" / "part-0").write_text("")
    (tmp_path / "empty" / "_SUCCESS").write_text("")
    found = log_files([str(tmp_path / "empty")], format="jsonl")
    assert found == (str(tmp_path / "empty" / "part-0"),)
    with pytest.raises(UserError, match="got an empty name"):
        log_files([""])


def test_the_histogram_counts_each_cluster_once():
    clusters = [("a", 2, 0.0), ("b", 3, 0.049), ("c", 4, 0.05), ("d", 5, 1.0)]
    found = histogram(Cluster(a, ["q"] * size, coherence) for a, size, coherence in clusters)
    assert [(row["clusters"], row["questions"]) for row in found[:2]] == [(2, 5), (1, 4)]
    assert found[-1] == {"from": 0.95, "to": 1.0, "clusters": 1, "questions": 5}


def test_wilsons_interval():
    # Newcombe (1998), table I: 81 of 263, by the score method.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 10) == pytest.approx((0, 1 - wilson(10, 10)[0]))


def test_verdicts_become_an_accuracy(folder):
    path = folder / "sample.tsv"
    head, *rows = path.read_text().splitlines()
    assert head == "verdict\tanswer\tsize\tcoherence\tquestions"
    with pytest.raises(UserError, match="expected verdicts, got"):
        score_verdicts(str(path))
    filled = [f"{verdict}{row}" for verdict, row in zip(["1", "Yes", "0"], rows, strict=False)]
    path.write_text("\n".join([head, *filled, *rows[3:]]))
    scores = score_verdicts(str(path))
    assert (scores["judged"], scores["coherent"]) == (3, 2)
    assert scores["not_judged"] == len(rows) - 3
    assert (scores["low"], scores["high"]) == wilson(2, 3)
    path.write_text("\n".join([head, "perhaps" + rows[0]]))
    with pytest.raises(UserError, match="line 2: expected a `verdict` 1 or yes, 0 or no"):
        score_verdicts(str(path))
