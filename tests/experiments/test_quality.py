"""The study of quality: its sets, the changes of queries, the lexical baselines, the scores."""

import gzip
import json
import math

import numpy as np
import pytest

from experiments import quality, question_sets
from experiments.query_changes import CHANGES, Changed, change_queries, misspell
from experiments.question_sets import read_set
from experiments.systems import bm25_search
from qpr_jax.errors import UserError


def test_a_score_of_bm25_worked_by_hand():
    questions = ["a b", "a a c", "b c c c d", "e f"]
    _, scores = bm25_search(questions)(["a"], 2)

    def expected(count, length):
        idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))  # two of four questions have "a"
        return idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / 3))

    np.testing.assert_allclose(scores[0], [expected(2, 3), expected(1, 2)], rtol=1e-5)


def write_data(path, lines, monkeypatch):
    """Write a file of `$QPR_DATA_DIR`, the folder above its own."""
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.setenv("QPR_DATA_DIR", str(path.parent.parent))


def test_a_set_has_each_question_once_and_no_generic_answers(tmp_path, monkeypatch):
    rows = [("Who?", "x"), ("who", "x"), ("who is it", "x"), ("is it so", "y"), ("IS IT SO", "z")]
    rows += [(f"statement {i}", "true") for i in range(question_sets.GENERIC + 1)]
    lines = (json.dumps({"question": question, "answer": answer}) for question, answer in rows)
    write_data(tmp_path / "qa_logs" / "opentriviaqa.jsonl.gz", lines, monkeypatch)
    found = read_set("opentriviaqa")
    assert [text.lower().rstrip("?") for text in found.texts] == ["who", "who is it"]
    assert found.relevance[0].indices.tolist() == [1]
    with pytest.raises(UserError, match=r"expected the file of `clinc150`, found none"):
        read_set("clinc150")


def test_sentences_with_a_translation_in_common_are_relevant(tmp_path, monkeypatch):
    lines = ["I win.\tIch gewinne.", "I win!\tIch siege.", "I'm winning.\tich siege!", "Go\tGeh"]
    write_data(tmp_path / "parallel" / "tatoeba.en-de.tsv.gz", lines, monkeypatch)
    found = read_set("tatoeba")
    assert found.texts == ["I win.", "I'm winning.", "Go"]
    np.testing.assert_array_equal(found.queries, [0, 1])
    assert found.clusters[0] == found.clusters[1]


def test_a_change_of_a_text():
    for name, text, expected in (
        ("lower", "Why Me?", "why me?"),
        ("bare", "What's a well-known one?", "Whats a well known one"),
        ("please", "How do I cook rice?", "How do I cook rice, please?"),
        ("negation", "Why do people smoke?", "Why do people not smoke?"),
        ("negation", "Is it good?", None),
        ("negation", "Why do I not sleep?", None),
        ("number", "Is it good?", None),
        ("number", "Does $5,000 suffice?", None),
    ):
        assert CHANGES[name].make(text, np.random.default_rng(0)) == expected

    rng = np.random.default_rng(0)  # typos keep the first letter and short words
    for kind, lengths in (("neighbor", [6]), ("drop", [5]), ("swap", [6]), ("double", [7])):
        for _ in range(20):
            first, second = misspell("the python", rng, 1, (kind,)).split()
            assert first == "the"
            assert second != "python"
            assert second[0] == "p"
            assert len(second) in lengths
    assert misspell("how do i", rng, 2, ("drop",)) == "how do i"


def test_a_changed_number_is_near_and_no_paraphrase_has_it():
    texts = [f"What happened in {year}?" for year in range(1950, 1970)]
    paraphrases = [[text.replace("What", "So what")] for text in texts]
    paraphrases[0] = ["What happened then?"]  # the number does not matter
    changed = change_queries("number", texts, paraphrases, most=5)
    assert changed.queries.tolist() == [*range(1, 20)]
    for query, text in zip(changed.queries, changed.texts, strict=True):
        assert 1 <= abs(int(text.split()[-1].rstrip("?")) - 1950 - query) <= 3
    assert len(change_queries("lower", texts, paraphrases, most=5).queries) == 5


def test_first_hits_are_scored_before_and_after_a_change():
    clusters = np.array([0, 0, 1, 1, 2, 2])
    rows = np.array([0, 2, 4])
    changed = {name: Changed(np.arange(3), ["x"] * 3) for name in (quality.UNCHANGED, *CHANGES)}
    changed["negation"] = Changed(np.arange(3), ["n"] * 3)
    corpus = quality.Corpus([*"uvwxyz"], clusters, rows, changed)

    def search(texts, k):
        # The third query never finds its paraphrase; negations lower the second one's score.
        hits = np.array([[0, 1], [2, 3], [4, 0]])
        low = 0.2 if texts[0] == "n" else 0.9
        return hits, np.array([[1.0, 1.0], [1.0, low], [1.0, 1.0]])

    found = quality.changed_scores(search, corpus)
    assert found["H@1, unchanged"].values.tolist() == [1, 1, 0]
    assert found["H@1, drop"].values.tolist() == [1, 1, 0]
    assert found["old hit still first, negation"].values.tolist() == [1, 1]
    above = found["old hit still first and above the threshold, negation"]
    assert above.values.tolist() == [1, 0]
    assert above.clusters.tolist() == [0, 1]
