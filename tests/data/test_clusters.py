"""Clusters of a log: by hand, and the folder of them."""

import itertools
import json
import random
from collections import Counter, defaultdict

import pytest

from qpr_jax.cli.data import score_labels
from qpr_jax.data.log_clusters import (
    Cluster,
    Method,
    content_hash,
    draw,
    find_clusters,
    make_folder,
    pairwise_coherence,
    paper_coherence,
    read_clusters,
    remove_overlap,
    sample_pairs,
    split_clusters,
)
from qpr_jax.data.logs import UNDECIDED, LogRow, Logs, Question, distinct_questions
from qpr_jax.data.splits import SPLITS
from qpr_jax.evaluation.scores import wilson
from tests.data.log_rows import log_rows, write_rows
from tests.refused import check_refused
from tests.tables import read_table

# Three questions; the union has five words.
WORDS = [["play", "some", "jazz"], ["play", "jazz"], ["start", "music"]]


def test_the_papers_coherence_by_hand():
    assert paper_coherence(WORDS) == pytest.approx((3 / 5 + 2 / 5 + 2 / 5) / 3)
    assert paper_coherence([["a"], ["b"], ["c"], ["d"]]) == pytest.approx(1 / 4)
    assert paper_coherence([["a", "b"]] * 3) == 1


def test_the_pairwise_coherence_is_what_it_says():
    # Of all ordered pairs of questions: the share of the first one's weight that the other has.
    draws = random.Random(1)
    weights = {f"w{i}": draws.random() for i in range(30)}
    words = [draws.sample(sorted(weights), draws.randint(1, 8)) for _ in range(12)]
    shared = whole = 0.0
    for one, other in itertools.permutations(words, 2):
        shared += sum(weights[word] for word in one if word in other)
        whole += sum(weights[word] for word in one)
    assert pairwise_coherence(words, weights) == pytest.approx(shared / whole)
    equal = defaultdict(lambda: 1.0)
    assert pairwise_coherence([["a"], ["b"]], equal) == 0
    assert pairwise_coherence([["a", "b"]] * 7, equal) == 1


def test_each_question_stands_once_with_the_answer_it_got_most_often():
    rows = [
        LogRow("who sang it", "abba", "who sang it"),
        LogRow("how tall", "2 m", "how tall?"),
        LogRow("who sang it", "abba", "Who sang it?"),
        LogRow("how tall", "3 m", "How tall?"),
        LogRow("who sang it", "queen", "who  sang it"),
    ]
    assert [*distinct_questions(rows)] == [
        Question("Who sang it?", "abba", 2),
        Question("How tall?", UNDECIDED, 2),
    ]


def test_clusters_have_two_questions_or_more_sorted_by_answer():
    texts = {"a b": "y", "a b c": "y", "b": "x", "a": "x", "alone": "z", "none": UNDECIDED}
    questions = [Question(text, answer, 1) for text, answer in texts.items()]
    found = find_clusters(questions, Method("paper"))
    assert found == [Cluster("x", ["a", "b"], 1 / 2), Cluster("y", ["a b", "a b c"], 5 / 6)]


def test_a_tenth_each_is_held_out_by_draws_that_are_the_same_everywhere():
    clusters = [Cluster(f"answer {i}", [], 1.0) for i in range(1000)]
    split_of = split_clusters(clusters, Method())
    assert Counter(split_of.values()) == {"train": 800, "validation": 100, "test": 100}
    assert split_of == split_clusters(clusters[::-1], Method())
    assert split_of != split_clusters(clusters, Method(seed=1))
    assert {*split_clusters(clusters[:3], Method()).values()} == {*SPLITS}
    few = "expected 3 clusters or more.* got 2"
    check_refused(split_clusters, (clusters[:2], Method(), few))
    assert draw("split", 0, "abba") == 9203755730560173837
    assert draw("split", 1, "abba") != draw("split", 0, "abba") != draw("sample", 0, "abba")


def test_held_out_questions_with_the_words_of_one_that_trains_are_removed():
    clusters = [
        Cluster("train", ["how to cook rice", "cook rice"], 1.0),
        Cluster("validation", ["Cook rice how to?", "boil rice", "rice, in water"], 1.0),
        Cluster("test", ["in water rice", "rice cook"], 1.0),
    ]
    found = remove_overlap(clusters, {name: name for name in SPLITS})
    # Validation and test may overlap: neither trains.
    assert [cluster.questions for cluster in found] == [
        ["how to cook rice", "cook rice"],
        ["boil rice", "rice, in water"],
        ["in water rice"],
    ]


def test_pairs_are_all_or_a_draw():
    questions = [f"question {i}" for i in range(20)]
    every = [frozenset(pair) for pair in sample_pairs(questions, "a", Method(pairs=190))]
    assert {*every} == {*map(frozenset, itertools.combinations(questions, 2))}
    assert len(every) == 190
    some = list(sample_pairs(questions, "a", Method(pairs=50)))
    assert len({*map(frozenset, some)}) == 50
    assert some == list(sample_pairs(questions, "a", Method(pairs=50)))
    assert some != list(sample_pairs(questions, "a", Method(pairs=50, seed=1)))
    ways = [questions.index(a) < questions.index(b) for a, b in some]
    assert {*ways} == {True, False}


@pytest.fixture
def folder(tmp_path):
    files = (write_rows(tmp_path / "rows.jsonl", log_rows()),)
    make_folder(tmp_path / "made", Logs(files), Method(min_coherence=0.2))
    return tmp_path / "made"


def test_what_is_written_holds_together_and_is_read(folder):
    clusters = read_table(folder / "clusters.jsonl")
    data, found, splits = read_clusters(folder)
    assert [cluster["cluster"] for cluster in clusters] == [*range(len(clusters))]
    report = json.loads((folder / "report.json").read_text())
    texts = [row["question"] for row in read_table(folder / "questions.jsonl")]
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
        check_refused(read_clusters, (folder, r"(made|report\.json): .*make the folder again"))
        (folder / name).write_text(kept)
    (folder / "questions.jsonl").unlink()
    check_refused(content_hash, (folder, "questions.jsonl: .*make the folder again"))


def test_logs_of_which_nothing_is_left_are_refused(tmp_path):
    alone = [(f"q {i}", f"a {i}") for i in range(9)]
    # The same words in another order everywhere: whatever is held out, training has it too.
    forms = ("a {} b", "b a {}", "{} b a", "b {} a")
    alike = [(form.format(i), f"{form} {i % 3}") for form in forms for i in range(30)]

    def make(rows):
        files = (write_rows(tmp_path / "rows.jsonl", rows),)
        make_folder(tmp_path / "made", Logs(files), Method(min_coherence=0.0))

    check_refused(
        make,
        (alone, "expected answers with two questions or more"),
        (alike, "expected clusters in each split, got none for "),
    )
    assert not (tmp_path / "made").exists()


def test_wilsons_interval():
    # Newcombe (1998), table I: 81 of 263, by the score method.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 10) == pytest.approx((0, 1 - wilson(1, 10)[0]))


def test_labels_become_an_accuracy(folder):
    path = folder / "sample.tsv"
    head, *rows = path.read_text().splitlines()
    assert head == "label\tanswer\tsize\tcoherence\tquestions"
    check_refused(score_labels, (str(path), "expected labels, got"))
    filled = [f"{label}{row}" for label, row in zip(["1", "Yes", "0"], rows, strict=False)]
    path.write_text("\n".join([head, *filled, *rows[3:]]))
    scores = score_labels(str(path))
    assert (scores["judged"], scores["coherent"]) == (3, 2)
    assert scores["not_judged"] == len(rows) - 3
    assert (scores["low"], scores["high"]) == wilson(2 / 3, 3)
    path.write_text("\n".join([head, "perhaps" + rows[0]]))
    check_refused(score_labels, (str(path), "line 2: expected a `label` 1 or yes, 0 or no"))
