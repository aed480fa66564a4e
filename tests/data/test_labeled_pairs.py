import json

import pytest

from qpr_jax.data.labeled_pairs import read_duplicates, read_labeled
from qpr_jax.errors import UserError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_json_lines(tmp_path):
    rows = [("a", "b", 1), ("b", "c", False), ("a", "a", "1")]
    names = ("question1", "question2", "is_duplicate")
    text = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    labeled = read_labeled(write(tmp_path / "a.jsonl", text))
    assert labeled.questions == ["a", "b", "c"]
    assert labeled.pairs.tolist() == [[0, 1], [1, 2], [0, 0]]
    assert labeled.is_duplicate.tolist() == [True, False, True]


def test_quoras_own_format_is_known_by_its_header(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = write(tmp_path / "a.tsv", header + '0\t1\t2\t"a ""quoted""\tone"\tb\t0\n')
    assert read_labeled(path).questions == ['a "quoted"\tone', "b"]


def test_other_tsv(tmp_path):
    path = write(tmp_path / "a.tsv", "question1\tis_duplicate\tquestion2\na\ttrue\tb\n")
    assert read_labeled(path).is_duplicate.tolist() == [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question1\tquestion2\tis_duplicate\na\tb\t2\n", "line 2: expected two questions and 0"),
        ("question1\tquestion2\tis_duplicate\na\tb\n", "line 2: .*expected 3 fields"),
        ("question1\tquestion2\n", "expected a column `is_duplicate`"),
        ("question1\tquestion2\tis_duplicate\n", "expected labeled pairs, got none"),
        ("", "expected a header"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_labeled(write(tmp_path / "a.tsv", text))


def test_duplicates_of_a_corpus(tmp_path):
    corpus = write(tmp_path / "c.tsv", 'qid\tquestion\n7\ta\n3\t"b\tc"\n5\td\n')
    labeled = read_duplicates(corpus, write(tmp_path / "d.tsv", "qid1\tqid2\n3\t7\n"))
    assert labeled.questions == ["a", "b\tc", "d"]
    assert labeled.pairs.tolist() == [[1, 0]]
    assert labeled.is_duplicate.tolist() == [True]


@pytest.mark.parametrize(
    ("corpus", "duplicates", "message"),
    [
        ("7\ta\n7\tb\n", "7\t7\n", r"c.tsv, line 3: expected an id of its own, got 7 again"),
        ("7\ta\n3\tb\n", "7\t8\n", r"d.tsv, line 2: expected two questions of .*got \['7', '8'\]"),
        ("7\ta\n3\tb\n", "7\t7\n", r"d.tsv, line 2: expected two questions"),
        ("7\ta\n3\tb\n", "7\n", r"d.tsv, line 2: .*expected 2 fields"),
        ("7\ta\n3\tb\n", "", r"d.tsv: expected pairs of duplicates, got none"),
    ],
)
def test_duplicates_that_cannot_be_read(tmp_path, corpus, duplicates, message):
    paths = (
        write(tmp_path / "c.tsv", "qid\tquestion\n" + corpus),
        write(tmp_path / "d.tsv", "qid1\tqid2\n" + duplicates),
    )
    with pytest.raises(UserError, match=message):
        read_duplicates(*paths)


def test_labeled_pairs_are_no_duplicates(tmp_path):
    corpus = write(tmp_path / "c.tsv", "qid\tquestion\n7\ta\n3\tb\n")
    names, row = "qid1\tqid2\tquestion1\tquestion2\tis_duplicate\n", "3\t7\tb\ta\t0\n"
    with pytest.raises(UserError, match="expected pairs of duplicates alone, got labeled pairs"):
        read_duplicates(corpus, write(tmp_path / "d.tsv", names + row))


def test_a_corpus_without_ids(tmp_path):
    corpus = write(tmp_path / "c.tsv", "question\na\n")
    with pytest.raises(UserError, match=r"line 2: expected an id; give a file with the header"):
        read_duplicates(corpus, write(tmp_path / "d.tsv", "qid1\tqid2\n"))
