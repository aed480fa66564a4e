import gzip
import json

import pytest

from qpr_jax.data.beir import read_corpus, read_qrels, read_queries, write_beir
from qpr_jax.errors import UserError
from tests.refused import check_refused

CORPUS = [("d1", "one\ntwo\t3"), ("d 2", ""), ("é", '"quoted"')]
QUERIES = [("q1", "how \u2028 so?"), ("q2", "why")]
QRELS = [("q1", "d1", 2), ("q1", "é", 0), ("q2", "d 2", 1), ("q2", "d1", -1)]


@pytest.fixture
def written(tmp_path):
    write_beir(tmp_path, CORPUS, QUERIES, {"test": QRELS, "dev": []})
    return tmp_path


def test_what_is_written_is_read(written):
    assert list(read_corpus(written)) == CORPUS
    assert read_queries(written) == dict(QUERIES)
    assert read_qrels(written, "test") == {"q1": {"d1": 2, "é": 0}, "q2": {"d 2": 1, "d1": -1}}
    first = json.loads((written / "corpus.jsonl").read_text().splitlines()[0])
    assert first == {"_id": "d1", "title": "", "text": "one\ntwo\t3"}
    lines = (written / "qrels" / "test.tsv").read_text().splitlines()
    assert lines[:2] == ["query-id\tcorpus-id\tscore", "q1\td1\t2"]


def test_titles_stand_before_texts(tmp_path):
    rows = [
        {"_id": "a", "title": "Title", "text": "text", "metadata": {"url": ""}},
        {"_id": "b", "title": None, "text": " text "},
        {"_id": "c", "text": "text"},
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [text for _, text in read_corpus(tmp_path)] == ["Title text", "text", "text"]


def test_judgements_under_any_header_and_ids_that_are_numbers(tmp_path):
    (tmp_path / "qrels").mkdir()
    for header in ("", "query_id\tcorpus_id\trelevance\n"):
        (tmp_path / "qrels" / "test.tsv").write_text(f"{header}7\t0\t1 \r\n\n7\t5\t-1\n")
        assert read_qrels(tmp_path, "test") == {"7": {"0": 1, "5": -1}}
    (tmp_path / "queries.jsonl").write_text('{"_id": 7, "text": "why"}\n')
    assert read_queries(tmp_path) == {"7": "why"}


def test_gzip(written):
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        path = written / name
        (written / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert list(read_corpus(written)) == CORPUS
    assert read_queries(written) == dict(QUERIES)
    assert len(read_qrels(written, "test")["q1"]) == 2


HEAD = "query-id\tcorpus-id\tscore\n"
QUERY, DOCUMENT, JUDGED = "queries.jsonl", "corpus.jsonl", "qrels/test.tsv"
TWICE = '{"_id": "a", "text": ""}\n{"_id": "a", "text": "b"}\n'
WRONG = [
    (DOCUMENT, TWICE, "line 2: expected distinct ids, got a"),
    (DOCUMENT, '\n{"_id": 5.0, "text": "b"}\n', "line 2: expected a string as `_id`"),
    (DOCUMENT, '{"_id": "\\ud800", "text": "b"}\n', "line 1: expected a string as `_id`"),
    (DOCUMENT, '{"_id": "a", "text": null}\n', "line 1: expected strings as `text` and"),
    (DOCUMENT, '{"_id": "a", "text": "", "title": 1}\n', "line 1: expected strings as"),
    (QUERY, '{"_id": "a"}\n', "line 1: expected the key `text`"),
    (JUDGED, "q1 d1 1\n", "line 1: expected two ids and a whole number, separated by tabs"),
    (JUDGED, f"{HEAD}q1\td1\t1.5\n", "line 2: expected two ids and a whole number"),
    (JUDGED, f"{HEAD}q1\td1\t1\nq1\td1\t2\n", "line 3: query q1 and d1 have two"),
    (JUDGED, HEAD, "expected relevant documents, got none; name another with `--split`"),
]


def test_what_is_wrong_is_said(tmp_path):
    read = {
        QUERY: read_queries,
        DOCUMENT: lambda folder: list(read_corpus(folder)),
        JUDGED: lambda folder: read_qrels(folder, "test"),
    }
    (tmp_path / "qrels").mkdir()
    for name, text, said in WRONG:
        (tmp_path / name).write_text(text)
        check_refused(read[name], (tmp_path, f"{name}.*{said}"))


def test_files_that_are_not_there(written):
    with pytest.raises(UserError, match=r"qrels/train.tsv in it, found none \(splits: dev, te"):
        read_qrels(written, "train")
    with pytest.raises(UserError, match=r"expected corpus.jsonl in it, found none; give a folder"):
        list(read_corpus(written / "qrels"))
