"""Data sets in parts that share no text, and in the format of BEIR."""

import gzip
import hashlib
import json

import pytest

from qpr_jax.data.beir_tasks import (
    PARTS,
    read_corpus,
    read_qrels,
    read_queries,
    write_beir,
    write_tasks,
)
from qpr_jax.data.generated_questions import synthetic_pairs
from qpr_jax.data.question_pairs import gather_pairs, read_question_pairs, transitive_clusters
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from tests.refused import check_refused

SHARES = {"dev": 0.1, "test": 0.2}


def rows_of(data):
    for (a, b), label in zip(data.pairs.tolist(), data.is_duplicate.tolist(), strict=True):
        yield int(data.ids[a]), int(data.ids[b]), data.questions[a], data.questions[b], label


@pytest.fixture(scope="module")
def log():
    """A generated log, with spellings of the same words, awkward texts and a contradiction."""
    data = synthetic_pairs(clusters=500)
    rows = list(rows_of(data))
    some = [text for _, _, text, _, label in rows if label][:200:4]
    for number, text in enumerate(some):
        # The same words as a question of a cluster: in no cluster, and in another cluster.
        rows.append((10_000 + number, 20_000 + number, f"{text} !", f"x{number}", False))
        rows.append((30_000 + number, 40_000 + number, f"{text} ?!", f"y {number}", True))
    rows += [
        (50_000, 50_001, "two\nlines\tand a tab", '"quoted" at the start', True),
        (50_001, 50_002, '"quoted" at the start', "1\t2\tlike a row", True),
        (50_000, 50_002, "two\nlines\tand a tab", "1\t2\tlike a row", False),  # contradicted
        (50_003, 50_004, " ", "beside a blank one", True),
        (50_003, 50_005, " ", "beside a blank one too", True),
    ]
    return gather_pairs(rows)


@pytest.fixture(scope="module")
def made(log, tmp_path_factory):
    """(the folder, its report)."""
    folder = tmp_path_factory.mktemp("made") / "parts"
    return folder, write_tasks(folder, log, **SHARES)


def test_no_question_and_no_normalized_text_stands_in_two_parts(made):
    seen: dict[str, int] = {}
    for part, name in enumerate(PARTS):
        for text in read_question_pairs(made[0] / f"{name}.tsv").questions:
            assert seen.setdefault(normalized_text(text), part) == part


def test_queries_are_unseen_one_a_cluster_and_all_their_duplicates_stand_in_the_corpus(made, log):
    clusters = transitive_clusters(len(log.questions), log.pairs[log.is_duplicate])
    cluster_of = dict(zip(map(str, log.ids), clusters.tolist(), strict=True))
    folder = made[0] / "beir"
    corpus, queries = dict(read_corpus(folder)), read_queries(folder)
    assert not queries.keys() & corpus.keys()
    words = {normalized_text(text) for text in corpus.values()}
    assert words.isdisjoint(map(normalized_text, queries.values()))
    asked = set()
    for name in SHARES:
        qrels = read_qrels(folder, name)
        assert len({cluster_of[query] for query in qrels}) == len(qrels)
        assert asked.isdisjoint(qrels)
        asked |= qrels.keys()
        for query, relevant in qrels.items():
            of_cluster = log.ids[clusters == cluster_of[query]]
            assert relevant == {str(i): 1 for i in of_cluster if str(i) != query}
            assert relevant.keys() <= corpus.keys()
    assert asked == queries.keys()
    known = zip(map(str, log.ids), map(str.strip, log.questions), strict=True)
    assert corpus | queries == dict(known)


def test_counts_of_the_report(made, log):
    folder, report = made
    assert report == json.loads((folder / "report.json").read_text())
    kept = 0
    for name in PARTS:
        counts = report["parts"][name]
        labeled = read_question_pairs(folder / f"{name}.tsv")
        assert counts["duplicates"] == labeled.is_duplicate.sum()
        kept += len(labeled.pairs)
        if name in SHARES:
            share = SHARES[name] * report["questions"]
            assert 0.95 * share < counts["questions"] <= share
            qrels = read_qrels(folder / "beir", name)
            assert counts["relevant"] == sum(map(len, qrels.values()))
    assert report["questions"] == sum(report["parts"][name]["questions"] for name in PARTS)
    dropped = report["dropped"]
    assert dropped["non_duplicates_of_one_cluster"] >= 1
    assert report["blank_pairs"] == 2
    # Drawn one by one, components of a tenth would keep a hundredth of their non-duplicates.
    every = sum(part["non_duplicates"] for part in report["parts"].values())
    assert report["parts"]["dev"]["non_duplicates"] > 0.05 * every
    left = report["rows"] - report["blank_pairs"] - report["self_pairs"]
    assert kept + sum(dropped.values()) == left


def hash_of(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def test_the_same_bytes_on_every_machine(tmp_path):
    rows = [(2 * i, 2 * i + 1, f"what is {i}", f"tell me of {i}", True) for i in range(40)]
    rows += [(2 * i, 2 * (i + 7) % 80, f"what is {i}", f"what is {(i + 7) % 40}", False)
             for i in range(40)]  # fmt: skip
    for name, given in (("a", rows), ("b", rows[::-1])):
        write_tasks(tmp_path / name, gather_pairs(given), dev=0.2, test=0.2)
    assert hash_of(tmp_path / "a") == HASH
    # The order of the rows decides that of the labeled pairs alone.
    assert hash_of(tmp_path / "a" / "beir") == hash_of(tmp_path / "b" / "beir")


HASH = "7a658afa92b9e192e6cdb563cded5cecf829b9630b01e3b6e648565c8bb7fb6a"


def test_parts_that_cannot_be(tmp_path):
    def make(texts, shares):
        first, second = texts.split()
        rows = ((2 * i, 2 * i + 1, f"{first} {i}", f"{second} {i}", True) for i in range(10))
        write_tasks(tmp_path / "parts", gather_pairs(rows), **shares)

    check_refused(
        make,
        ("a b", {"dev": 0.5, "test": 0.5}, "expected shares below 1 in all, got 1"),
        ("a b", {"dev": 0.05, "test": 0.5}, "expected duplicates in each part, got none for dev"),
        ("a A!", {"dev": 0.3, "test": 0.3}, "expected queries in dev, got none"),
    )


CORPUS = [("d1", "one\ntwo\t3"), ("d 2", ""), ("é", '"quoted"')]
QUERIES = [("q1", "how \u2028 so?"), ("q2", "why")]
QRELS = [("q1", "d1", 2), ("q1", "é", 0), ("q2", "d 2", 1), ("q2", "d1", -1)]


@pytest.fixture
def written(tmp_path):
    write_beir(tmp_path, CORPUS, QUERIES, {"test": QRELS, "dev": []})
    return tmp_path


def test_what_is_written_is_read_packed_or_not(written):
    first = json.loads((written / "corpus.jsonl").read_text().splitlines()[0])
    assert first == {"_id": "d1", "title": "", "text": "one\ntwo\t3"}
    lines = (written / "qrels" / "test.tsv").read_text().splitlines()
    assert lines[:2] == ["query-id\tcorpus-id\tscore", "q1\td1\t2"]
    for _ in range(2):
        assert list(read_corpus(written)) == CORPUS
        assert read_queries(written) == dict(QUERIES)
        assert read_qrels(written, "test") == {"q1": {"d1": 2, "é": 0}, "q2": {"d 2": 1, "d1": -1}}
        for path in [*written.rglob("*.jsonl"), *written.rglob("test.tsv")]:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()


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
    (JUDGED, HEAD, "expected relevant documents, got none; name another with `split`"),
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
