import dataclasses
import hashlib
import json

import numpy as np
import pytest

from qpr_jax.data.beir import read_corpus, read_qrels, read_queries
from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.labels import read_labeled
from qpr_jax.data.pairs import gather_pairs, read_question_pairs
from qpr_jax.data.questions import read_questions
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.data.tables import read_rows
from qpr_jax.data.task_splits import EVAL_PARTS, PARTS, Sizes, make_tasks, write_tasks
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

SIZES = Sizes(dev=0.1, test=0.2, dev_queries=20, test_queries=1000, seed=3)


def rows_of(data):
    for (a, b), label in zip(data.pairs.tolist(), data.is_duplicate.tolist(), strict=True):
        yield int(data.ids[a]), int(data.ids[b]), data.questions[a], data.questions[b], label


@pytest.fixture(scope="module")
def log():
    """A generated log, with spellings of the same words, awkward texts and a contradiction."""
    data = synthetic_pairs(clusters=500)
    rows = list(rows_of(data))
    questions = dict(zip(data.ids.tolist(), data.questions, strict=True))
    some = [a for a, _, _, _, label in rows if label][:200:4]
    for number, qid in enumerate(some):
        # The same words as a question of a cluster: in no cluster, and in another cluster.
        rows.append((10_000 + number, 20_000 + number, questions[qid] + " !", f"x{number}", False))
        rows.append((30_000 + number, 40_000 + number, questions[qid] + " ?!", f"y {number}", True))
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
    return folder, write_tasks(folder, make_tasks(log, SIZES))


def texts_of(path):
    return {entry.id: entry.question for entry in read_questions(str(path))}


def qids_of(path, columns):
    return [
        tuple(int(fields[name]) for name in columns)
        for _, fields in read_rows(str(path), columns, format="tsv")
    ]


def check_no_overlap(folder, data):
    """No question and no normalised text in two parts; the corpora are the rest of the parts."""
    texts = [read_question_pairs(folder / "classification" / f"{part}_pairs.tsv") for part in PARTS]
    seen: dict[str, int] = {}
    for part, pairs in enumerate(texts):
        for text in pairs.questions:
            assert seen.setdefault(normalized_text(text), part) == part
    for part, name in enumerate(EVAL_PARTS, start=1):
        corpus = texts_of(folder / "mining" / f"{name}_corpus.tsv")
        assert set(texts[part].ids.tolist()) <= set(corpus)
        for text in corpus.values():
            assert seen.setdefault(normalized_text(text), part) == part


def check_mining(folder, data):
    """All duplicates by transitivity, and no more, within each corpus."""
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    cluster_of = dict(zip(data.ids.tolist(), clusters.tolist(), strict=True))
    for name in EVAL_PARTS:
        corpus = sorted(texts_of(folder / "mining" / f"{name}_corpus.tsv"))
        members: dict[int, list[int]] = {}
        for qid in corpus:
            if cluster_of[qid] >= 0:
                members.setdefault(cluster_of[qid], []).append(qid)
        expected = [(a, b) for of in members.values() for a in of for b in of if a < b]
        found = qids_of(folder / "mining" / f"{name}_duplicates.tsv", ["qid1", "qid2"])
        assert found == sorted(expected)
        for cluster, of in members.items():  # a cluster is in one part as a whole
            assert len(of) == (clusters == cluster).sum()


def check_retrieval(folder, data):
    """Queries are unseen, one a cluster, and all their duplicates stand in the corpus."""
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    cluster_of = dict(zip(data.ids.tolist(), clusters.tolist(), strict=True))
    corpus = texts_of(folder / "retrieval" / "corpus.tsv")
    words = {normalized_text(text) for text in corpus.values()}
    for name in EVAL_PARTS:
        queries = texts_of(folder / "retrieval" / f"{name}-queries.tsv")
        rows = qids_of(folder / "retrieval" / f"{name}-relevant.tsv", ["qid", "corpus_qid"])
        assert not queries.keys() & corpus.keys()
        assert not {normalized_text(text) for text in queries.values()} & words
        assert len({cluster_of[qid] for qid in queries}) == len(queries)
        expected: dict[int, set[int]] = {}
        for qid, relevant in rows:
            expected.setdefault(qid, set()).add(relevant)
        assert expected.keys() == queries.keys()
        for qid, found in expected.items():
            of_cluster = set(data.ids[clusters == cluster_of[qid]].tolist())
            assert found == of_cluster - {qid}
            assert found <= corpus.keys()


def test_no_question_and_no_text_stands_in_two_parts(made, log):
    check_no_overlap(made[0], log)


def test_duplicates_are_complete(made, log):
    check_mining(made[0], without_blank(log))


def test_queries_are_new_and_can_be_found(made, log):
    check_retrieval(made[0], without_blank(log))


def without_blank(data):
    return gather_pairs(row for row in rows_of(data) if row[2].strip() and row[3].strip())


def test_counts_of_the_report(made, log):
    folder, report = made
    assert report == json.loads((folder / "report.json").read_text())
    assert report["settings"] == dataclasses.asdict(SIZES)
    assert report["blank_questions"] == 1
    kept = 0
    corpus = 0
    for name in PARTS:
        counts = report["parts"][name]
        labeled = read_labeled(str(folder / "classification" / f"{name}_pairs.tsv"))
        assert counts["duplicates"] == labeled.is_duplicate.sum()
        assert counts["non_duplicates"] == (~labeled.is_duplicate).sum()
        kept += len(labeled.pairs)
        corpus += counts["questions"]
        if name in EVAL_PARTS:
            share = getattr(SIZES, name) * report["questions"]
            assert 0.95 * share < counts["questions"] <= share
            mining = texts_of(folder / "mining" / f"{name}_corpus.tsv")
            duplicates = qids_of(folder / "mining" / f"{name}_duplicates.tsv", ["qid1", "qid2"])
            queries = texts_of(folder / "retrieval" / f"{name}-queries.tsv")
            rows = qids_of(folder / "retrieval" / f"{name}-relevant.tsv", ["qid", "corpus_qid"])
            assert counts["questions"] == len(mining)
            assert counts["clustered_questions"] == len({qid for row in duplicates for qid in row})
            assert counts["linked_duplicates"] == len(duplicates)
            assert counts["queries"] == len(queries)
            assert counts["relevant"] == len(rows)
            corpus -= len(queries)
    assert report["parts"]["dev"]["queries"] == SIZES.dev_queries
    assert report["retrieval_corpus"] == corpus
    assert report["retrieval_corpus"] == len(texts_of(folder / "retrieval" / "corpus.tsv"))
    dropped = report["dropped"]
    assert dropped["non_duplicates_of_one_cluster"] >= 1
    assert dropped["pairs_with_a_blank_question"] == 2
    assert kept + sum(dropped.values()) == report["rows"] - report["self_pairs"]
    assert report["duplicates"] == sum(report["parts"][name]["duplicates"] for name in PARTS)


def test_non_duplicates_are_kept_where_they_can_be(made):
    # Drawn one by one, components of a tenth would keep a hundredth of their non-duplicates.
    report = made[1]
    dev = report["parts"]["dev"]
    assert dev["non_duplicates"] > 0.05 * report["non_duplicates"]


def test_texts_survive(made, log):
    written = texts_of(made[0] / "retrieval" / "corpus.tsv")
    for name in EVAL_PARTS:
        written |= texts_of(made[0] / "retrieval" / f"{name}-queries.tsv")
    known = dict(zip(log.ids.tolist(), log.questions, strict=True))
    assert written == {qid: text for qid, text in known.items() if text.strip()}


def test_the_same_in_beirs_format(made):
    folder = made[0] / "beir"
    corpus = texts_of(made[0] / "retrieval" / "corpus.tsv")
    assert dict(read_corpus(folder)) == {f"{qid}": text for qid, text in corpus.items()}
    queries = read_queries(folder)
    for name in EVAL_PARTS:
        rows = qids_of(made[0] / "retrieval" / f"{name}-relevant.tsv", ["qid", "corpus_qid"])
        qrels = read_qrels(folder, name)
        assert [(int(q), int(d)) for q, of in qrels.items() for d in of] == rows
        assert {score for of in qrels.values() for score in of.values()} == {1}
        assert qrels.keys() <= queries.keys()


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
    sizes = Sizes(0.2, 0.2)
    write_tasks(tmp_path / "a", make_tasks(gather_pairs(rows), sizes))
    assert hash_of(tmp_path / "a") == HASH
    # The order of the rows decides that of the pairs for classification alone.
    write_tasks(tmp_path / "b", make_tasks(gather_pairs(rows[::-1]), sizes))
    for name in ("mining", "retrieval", "beir"):
        assert hash_of(tmp_path / "a" / name) == hash_of(tmp_path / "b" / name)
    other = make_tasks(gather_pairs(rows), dataclasses.replace(sizes, seed=1))
    assert not np.array_equal(other.part_of, make_tasks(gather_pairs(rows), sizes).part_of)


HASH = "84299d899dfd1be294778d6fc01005f2ac744c15251c19267e16f1ee111b1f91"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"dev": 0.5, "test": 0.5}, "expected shares that leave some to train on, got 0.5 and 0.5"),
        ({"dev": 0}, "`dev`: expected a share between 0 and 1, got 0"),
        ({"test": float("nan")}, "`test`: expected a share between 0 and 1, got nan"),
        ({"test_queries": 0}, "`test_queries`: expected 1 or more, got 0"),
        ({"seed": -1}, "`seed`: expected 0 or more, got -1"),
    ],
)
def test_sizes_that_cannot_be(sizes, said):
    with pytest.raises(UserError) as error:
        Sizes(**sizes)
    assert said in str(error.value)


def test_parts_that_get_nothing():
    pairs = gather_pairs((2 * i, 2 * i + 1, f"a {i}", f"b {i}", True) for i in range(10))
    with pytest.raises(UserError, match=r"expected duplicates in each part, got none for dev, whi"):
        make_tasks(pairs, Sizes(dev=0.05, test=0.5))
    same = gather_pairs((2 * i, 2 * i + 1, f"a {i}", f"A {i}!", True) for i in range(10))
    with pytest.raises(UserError, match="expected queries in dev, got none"):
        make_tasks(same, Sizes(dev=0.3, test=0.3))


@pytest.mark.slow
def test_the_real_file(quora_file, tmp_path):
    data = read_question_pairs(quora_file)
    report = write_tasks(tmp_path / "parts", make_tasks(data, Sizes()))
    check_no_overlap(tmp_path / "parts", data)
    check_mining(tmp_path / "parts", data)
    check_retrieval(tmp_path / "parts", data)
    assert report["questions"] == 165_493
    assert report["dropped"]["non_duplicates_across_parts"] < 0.02 * report["non_duplicates"]
    for name, share in (("dev", 0.05), ("test", 0.1)):
        assert report["parts"][name]["questions"] == int(share * 165_493)
        assert report["parts"][name]["non_duplicates"] > 1000
