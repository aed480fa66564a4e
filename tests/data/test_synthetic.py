import re
import subprocess
import sys

import bm25s
import numpy as np
import pytest

from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.splits import SPLITS, split_by_cluster
from qpr_jax.data.synthetic import CONCEPTS, synthetic_pairs
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text, tokenize


@pytest.fixture(scope="module")
def log():
    data = synthetic_pairs(clusters=1500)
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    return data, clusters, split_by_cluster(data, clusters, held_out_pairs=300)


def concepts_of(questions):
    """The concepts named in each question: what a reader who knows all synonyms would see."""
    concept = {
        way: (name, i)
        for name, concepts in CONCEPTS.items()
        for i, ways in enumerate(concepts)
        for way in ways
    }
    longest_first = sorted(concept, key=len, reverse=True)
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})\b")
    return [
        tuple(sorted({concept[way] for way in pattern.findall(normalized_text(question))}))
        for question in questions
    ]


def test_each_way_to_say_a_concept_names_one_concept():
    ways = [way for concepts in CONCEPTS.values() for ways in concepts for way in ways]
    assert len(ways) == len(set(ways)) == 3 * 32 * 4
    assert not [(a, b) for a in ways for b in ways if a != b and f" {a} " in f" {b} "]


def test_sizes(log):
    data, clusters, splits = log
    sizes = np.bincount(clusters[clusters >= 0])
    assert len(sizes) == 1500
    assert sizes.min() == 2
    assert sizes.max() == 6
    assert 4700 < len(data.questions) < 5300
    assert len({normalized_text(question) for question in data.questions}) == len(data.questions)
    assert (clusters < 0).sum() == 600
    assert (~data.is_duplicate).sum() == 1500
    assert all(len(splits.pairs[name]) and len(splits.non_duplicates[name]) for name in SPLITS)


def test_one_seed_one_log_in_any_process():
    code = (
        "import hashlib; from qpr_jax.data.synthetic import synthetic_pairs as f; "
        "d = f(clusters=50); "
        "print(hashlib.sha256(repr((d.questions, d.pairs.tolist())).encode()).hexdigest())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert synthetic_pairs(seed=1, clusters=50).questions != synthetic_pairs(clusters=50).questions


def test_every_word_of_the_held_out_questions_can_be_learnt(log):
    data, _, splits = log
    words = [set(), set(), set()]
    for question, split in zip(data.questions, splits.split_of.tolist(), strict=True):
        words[split].update(tokenize(question))
    known = {
        word for concepts in CONCEPTS.values() for w in concepts for word in " ".join(w).split()
    }
    assert (words[1] | words[2]) & known <= words[0]


def test_meaning_finds_the_paraphrases_and_shared_words_do_not(log):
    data, clusters, splits = log
    queries = np.unique(splits.pairs["validation"][:, 0])

    meanings = concepts_of(data.questions)
    by_meaning: dict[tuple, list[int]] = {}
    for i, meaning in enumerate(meanings):
        by_meaning.setdefault(meaning, []).append(i)
    others = [[j for j in by_meaning[meanings[i]] if j != i] for i in queries]
    share = [
        np.mean(clusters[o] == clusters[i]) if o else 0
        for i, o in zip(queries, others, strict=True)
    ]
    assert np.mean(share) > 0.88

    words = [tokenize(question) for question in data.questions]
    bm25 = bm25s.BM25(k1=0.9, b=0.4)
    bm25.index(words, show_progress=False)
    hits = []
    for i in queries:
        scores = bm25.get_scores(words[i])
        scores[i] = -np.inf
        hits.append(clusters[scores.argmax()] == clusters[i])
    assert 0.3 < np.mean(hits) < 0.65


@pytest.mark.parametrize("clusters", [1, 2, 3, 10, 40])
def test_small_logs(clusters):
    data = synthetic_pairs(clusters=clusters)
    found = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    assert found.max() + 1 == clusters
    assert data.report["self_pairs"] == data.report["same_text_ids"] == 0


@pytest.mark.parametrize("clusters", [0, -5, 10**6])
def test_impossible_sizes(clusters):
    with pytest.raises(UserError, match=r"`clusters`: expected 1 to 23404, got"):
        synthetic_pairs(clusters=clusters)
