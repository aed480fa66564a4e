"""Generated logs: what meaning finds and shared words do not, and a chosen rate of noise."""

import hashlib
import re

import bm25s
import numpy as np
import pytest

from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.splits import SPLITS, split_by_cluster
from qpr_jax.data.synthetic import CONCEPTS, generate_noisy_log, synthetic_pairs
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text, tokenize
from tests.refused import check_refused

PAIRS, BATCH = 1500, 64


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


def test_sizes(log):
    data, clusters, splits = log
    sizes = np.bincount(clusters[clusters >= 0])
    assert (len(sizes), sizes.min(), sizes.max()) == (1500, 2, 6)
    assert 4700 < len(data.questions) < 5300
    assert len({normalized_text(question) for question in data.questions}) == len(data.questions)
    assert (clusters < 0).sum() == 600
    assert (~data.is_duplicate).sum() == 1500
    assert all(len(splits.pairs[name]) and len(splits.non_duplicates[name]) for name in SPLITS)
    for few in (1, 2, 10):
        data = synthetic_pairs(clusters=few)
        found = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
        assert found.max() + 1 == few
    for count in (0, 10**6):
        with pytest.raises(UserError, match=r"`clusters`: expected 1 to 23404, got"):
            synthetic_pairs(clusters=count)


def test_one_seed_one_log_in_any_process():
    log = synthetic_pairs(clusters=50)
    text = repr((log.questions, log.pairs.tolist()))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("bdca9bff821adfed")
    assert synthetic_pairs(seed=1, clusters=50).questions != log.questions


def test_meaning_finds_the_paraphrases_and_shared_words_do_not(log):
    data, clusters, splits = log
    queries = np.unique(splits.pairs["validation"][:, 0])
    meanings = concepts_of(data.questions)
    by_meaning: dict[tuple, list[int]] = {}
    for i, meaning in enumerate(meanings):
        by_meaning.setdefault(meaning, []).append(i)
    others = [[j for j in by_meaning[meanings[i]] if j != i] for i in queries]
    found = zip(queries, others, strict=True)
    share = [np.mean(clusters[o] == clusters[i]) if o else 0 for i, o in found]
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


def measured_rate(log, meanings, epochs=20):
    """The share of rows of random batches that have an unknown paraphrase in their batch."""
    queries = log.splits.pairs["train"][:, 0]
    rng, shares = np.random.default_rng(0), []
    for _ in range(epochs):
        order = rng.permutation(queries)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            meaning, cluster = meanings[batch], log.clusters[batch]
            unknown = (meaning[:, None] == meaning) & (cluster[:, None] != cluster)
            shares.append(unknown.any(axis=1).mean())
    return np.mean(shares)


def test_the_rate_of_noise_changes_nothing_but_what_is_known():
    # 20 epochs of 23 batches; rows of a batch go together, so the error is that of batches.
    logs = {r: generate_noisy_log(r, pairs=PAIRS, batch_size=BATCH) for r in (0, 0.1, 0.5, 0.8)}
    for rate, log in logs.items():
        assert measured_rate(*log) == pytest.approx(rate, abs=0.02)
    for rate in (0.1, 0.5):
        assert logs[rate][0].data.questions == logs[0][0].data.questions
        np.testing.assert_array_equal(logs[rate][1], logs[0][1])
        for split in SPLITS:
            pairs = logs[rate][0].splits.pairs[split], logs[0][0].splits.pairs[split]
            np.testing.assert_array_equal(*pairs)
    # With none, what is known is the truth.
    known = [len(np.unique(logs[rate][0].clusters[: 2 * PAIRS])) for rate in (0, 0.1, 0.5)]
    assert known[0] == len(np.unique(logs[0][1][: 2 * PAIRS]))
    assert known[0] < known[1] < known[2] <= PAIRS


def test_a_noisy_log_is_sound():
    log, meanings = generate_noisy_log(0.3, pairs=PAIRS, batch_size=BATCH, seed=3)
    questions = log.data.questions
    assert len({*map(normalized_text, questions)}) == len(questions)
    for i, split in enumerate(SPLITS):
        pairs = log.splits.pairs[split]
        assert len(pairs) > 100
        assert (log.splits.split_of[pairs] == i).all()
        np.testing.assert_array_equal(log.clusters[pairs[:, 0]], log.clusters[pairs[:, 1]])
        np.testing.assert_array_equal(meanings[pairs[:, 0]], meanings[pairs[:, 1]])
    held_out = log.splits.split_of > 0
    # Held-out meanings are known whole, and train nowhere.
    assert not {*meanings[held_out]} & {*meanings[~held_out]}
    for cluster in np.unique(log.clusters[held_out]):
        of_cluster = log.clusters == cluster
        (meaning,) = {*meanings[of_cluster]}
        assert ((meanings == meaning) == of_cluster).all()
    assert (log.clusters == -1).sum() == round(0.4 * PAIRS)


def test_noise_that_cannot_be():
    check_refused(
        lambda rate, pairs, size: generate_noisy_log(rate, pairs=pairs, batch_size=size),
        (0.5, 100_000, 5000, "at most 32,768 meanings, got one that"),
        (0.9, 20, 2, "a rate that 20 pairs allow with batches of 2, got 0.9; raise"),
    )
