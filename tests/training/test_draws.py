"""What a step draws: pairs, dropped tokens, words as n-grams and labels of files."""

import numpy as np
import pytest

from qpr_jax.data.question_pairs import cluster_pairs
from qpr_jax.errors import UserError
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.draws import (
    cluster_sampled_pairs,
    drop_tokens,
    drop_words,
    false_negatives,
    permuted_rows,
    steps_per_epoch,
)
from qpr_jax.training.run import content_of
from tests.tables import write_table


@pytest.mark.parametrize("count", [9, 10])
def test_an_epoch_is_a_permutation_and_a_function_of_seed_and_epoch(count):
    pairs = np.arange(2 * count, dtype=np.int32).reshape(count, 2)
    at = permuted_rows(pairs, 3, seed=5)
    first, second = ([at(epoch * 3 + i) for i in range(3)] for epoch in range(2))
    for epoch in (first, second):
        drawn = np.concatenate(epoch)[:, 0].tolist()
        assert len(set(drawn)) == 9
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(permuted_rows(pairs, 3, seed=5)(4), second[1])
    assert not np.array_equal(permuted_rows(pairs, 3, seed=6)(0), first[0])


@pytest.fixture
def uneven():
    """Clusters of 2 to 40 questions, 1,000 pairs or so."""
    sizes = [2] * 20 + [3] * 6 + [40]
    clusters = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    return clusters, cluster_pairs(clusters)


def test_even_draws_give_every_cluster_one_pair_a_round_whatever_its_size(uneven):
    clusters, pairs = uneven
    count = int(clusters.max()) + 1
    at = cluster_sampled_pairs(pairs, clusters[pairs[:, 0]], 8, seed=3)
    drawn = np.concatenate([at(step) for step in range(27)])[: 8 * count]
    known = {tuple(pair) for pair in pairs.tolist()}
    assert all((a, b) in known or (b, a) in known for a, b in drawn.tolist())
    for number in range(len(drawn) // count):
        a_round = clusters[drawn[number * count : (number + 1) * count, 0]]
        assert sorted(a_round.tolist()) == list(range(count))
    large = drawn[clusters[drawn[:, 0]] == count - 1]
    assert len({tuple(sorted(pair)) for pair in large.tolist()}) >= 6  # of 8 rounds, 780 pairs
    small = drawn[clusters[drawn[:, 0]] == 0]
    assert len({tuple(pair) for pair in small.tolist()}) == 2  # in both directions
    again, other = (
        cluster_sampled_pairs(pairs, clusters[pairs[:, 0]], 8, seed=seed) for seed in (3, 4)
    )
    for step in (11, 3, 7):  # a function of seed and step
        np.testing.assert_array_equal(again(step), at(step))
    assert not np.array_equal(other(0), at(0))


def test_fewer_pairs_than_a_batch_are_refused():
    with pytest.raises(UserError, match=r"`batch_size`: expected .* 512 training pairs, got 100"):
        steps_per_epoch(100, 512)


def test_dropped_words_close_ranks_and_no_question_is_emptied():
    rng = np.random.default_rng(0)
    words = rng.integers(1, 1000, (2, 400, 12)).astype(np.int32)
    words[np.arange(12) >= rng.integers(0, 13, (2, 400))[..., None]] = 0
    left = drop_tokens(words, 0.3, seed=1, step=5)
    assert (left.shape, left.dtype) == (words.shape, np.int32)
    before, after = (words > 0).sum(axis=-1), (left > 0).sum(axis=-1)
    assert (after[before > 0] > 0).all()
    assert 0.65 < after.sum() / before.sum() < 0.75
    for old, new in zip(words.reshape(-1, 12), left.reshape(-1, 12), strict=True):
        kept = iter(old[old > 0].tolist())
        assert all(word in kept for word in new[new > 0].tolist())  # a subsequence, in order
        assert not new[(new > 0).sum() :].any()
    np.testing.assert_array_equal(left, drop_tokens(words, 0.3, seed=1, step=5))
    assert not np.array_equal(left, drop_tokens(words, 0.3, seed=1, step=6))
    np.testing.assert_array_equal(drop_tokens(words, 0.0, seed=1, step=5), words)
    ends = drop_tokens(words, 0.9, seed=1, step=5, keep_ends=True)
    assert ((ends > 0).sum(axis=-1)[before > 2] > 2).all()
    for old, new in zip(words.reshape(-1, 12), ends.reshape(-1, 12), strict=True):
        assert (new[0], new[new > 0][-1:].tolist()) == (old[0], old[old > 0][-1:].tolist())


def test_known_words_are_read_as_n_grams_at_their_rate_and_nothing_else_is():
    rng, rate = np.random.default_rng(0), 0.3
    words, size = 60, 100  # words, then bins, then tokens that are sums
    token_ids = rng.integers(0, 120, (2, 300, 12)).astype(np.int32)
    subwords = np.arange(size, dtype=np.int32)
    subwords[1 : 1 + words] += 200
    found = drop_words(token_ids, rate, subwords, seed=1, step=5)
    assert found.dtype == np.int32
    known = (token_ids > 0) & (token_ids <= words)
    changed = found != token_ids
    assert not (changed & ~known).any()
    np.testing.assert_array_equal(found[changed], token_ids[changed] + 200)
    assert changed.sum() / known.sum() == pytest.approx(rate, abs=0.03)
    np.testing.assert_array_equal(found, drop_words(token_ids, rate, subwords, seed=1, step=5))
    for other in ({"seed": 1, "step": 6}, {"seed": 2, "step": 5}):
        assert not np.array_equal(drop_words(token_ids, rate, subwords, **other), found)


def test_false_negatives_are_counted_as_one_by_one():
    clusters = np.random.default_rng(0).integers(-1, 6, size=25)
    theirs = [
        sum(clusters[i] == other and i != j for j, other in enumerate(clusters))
        if clusters[i] >= 0
        else 0
        for i in range(25)
    ]
    found = false_negatives(clusters)
    assert found["false_negatives"] == pytest.approx(sum(theirs) / (25 * 24))
    assert found["rows_with_false_negatives"] == np.mean(np.array(theirs) > 0)
    assert 0 < found["false_negatives"] < found["rows_with_false_negatives"] < 1


def test_streams_of_one_seed_differ():
    """Dropout at step 4 once read the numbers that shuffled distillation's epoch 3, and so on."""
    token_ids = np.ones((400, 5), np.int32)
    dropped = [drop_tokens(token_ids, 0.5, seed=3, step=step) for step in range(4)]
    dropped += [drop_words(token_ids, 0.5, np.zeros(2), seed=3, step=step) for step in range(4)]
    pairs = np.arange(400, dtype=np.int32).reshape(200, 2)
    orders = [permuted_rows(pairs, 200, seed=3, stream=s)(e) for s in range(8) for e in range(4)]
    for several in (dropped, orders):
        assert len({array.tobytes() for array in several}) == len(several)


def test_labels_are_trained_on_and_count_to_the_fingerprint(tmp_path):
    config = load_config("synthetic_sdml:smoke")
    plain = load_dataset(config, None)
    first, second = (plain.data.questions[i] for i in plain.splits.pairs["train"][0])
    names = ("id1", "id2", "question1", "question2", "is_duplicate", "score", "weight")
    rows = [
        ("a", 1, first, "a question that is new", 1, 0.5, 3),
        ("b", 2, second, "one that is not the same", 0, 0.5, 3),
        ("c", 3, second, "one with a bad label", "maybe", 0.5, 3),
    ]
    path = write_table(tmp_path / "verdicts.csv", names, rows)
    config = override(config, {"data.labels": path, "data.skip_bad_rows": True})
    dataset = load_dataset(config, None)
    new = dataset.data.questions.index("a question that is new")
    assert dataset.clusters[new] == dataset.clusters[dataset.data.questions.index(first)]
    assert dataset.report["added_labels"] == 2
    assert new in dataset.trainable_rows
    others, before = (d.splits.non_duplicates["train"] for d in (dataset, plain))
    assert len(others) == 1 + len(before)
    for name in ("validation", "test"):
        np.testing.assert_array_equal(dataset.splits.pairs[name], plain.splits.pairs[name])
    assert [*content_of(config)] == ["data.labels.sha256"]
    (tmp_path / "list.txt").write_text("\n".join(plain.data.questions[:20]))
    unread = {"data.source": "questions", "data.path": str(tmp_path / "list.txt")}
    with pytest.raises(UserError, match=r"`data\.labels`: must be empty: `data\.source=questions`"):
        load_dataset(override(config, unread), tmp_path / "list.txt")
