"""Models of pairs that are fitted again to labels."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qpr_jax.data.question_pairs import QuestionPairs
from qpr_jax.errors import UserError
from qpr_jax.pair_model.fitting import refit
from qpr_jax.pair_model.plain import probability, read_plain, save_plain
from tests.pair_model.models import WordEncoder, plain_model, words_model


def labels_of(labels, weights=None) -> QuestionPairs:
    ids = np.arange(2 * len(labels))
    texts = [*map(str, 1000 + ids)]
    return QuestionPairs(texts, ids, ids.reshape(-1, 2), np.array(labels), {}, weights=weights)


def vectors_of(distances):
    """Two rows for each squared distance; different pairs are far apart."""
    rows = np.zeros((2 * len(distances), len(distances) + 1), np.float32)
    rows[np.arange(len(rows)), np.arange(len(rows)) // 2] = 1
    rows[1::2, -1] = np.sqrt(distances)
    return rows


@pytest.mark.parametrize("start_model", [plain_model("e"), words_model()], ids=str)
def test_labels_move_the_scores(start_model):
    rng = np.random.default_rng(0)
    distances = rng.uniform(0, 2, 300)
    true = 1 / (1 + np.exp(8 * (distances - 0.6)))
    labeled = labels_of(rng.random(300) < true)
    found, facts = refit(start_model, labeled, vectors_of(distances))
    assert facts["labels"] == 300
    assert facts["after"]["brier"] < facts["after"]["base_brier"]
    assert facts["after"]["brier"] < facts["before"]["brier"]
    texts = labeled.questions[:1] * 2, labeled.questions[1:2] * 2
    near, far = probability(found.logits(*texts, np.array([0.05, 1.8])))
    assert near > 0.5 > far


def test_a_label_counts_as_many_pairs_as_it_stands_for():
    labels = np.arange(60) % 2 == 0
    weighted = labels_of(labels, np.where(labels, 1.0, 9.0))
    distances = np.full(60, 0.5) + np.arange(60) / 1000
    found, _ = refit(plain_model("e"), weighted, vectors_of(distances))
    even, _ = refit(plain_model("e"), labels_of(labels), vectors_of(distances))
    score = [probability(m.logits(["1"], ["2"], distances[:1]))[0] for m in (found, even)]
    assert score[0] == pytest.approx(0.1, abs=0.05)
    assert score[1] > 0.3


def test_scores_of_labels_stand_for_the_density_of_their_table():
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.02, 0.98, 200)
    true = 1 / (1 + np.exp(-(np.log(scores / (1 - scores)) - 1.5)))
    labeled = labels_of(rng.random(200) < true, rng.choice([1.0, 3.0], 200))
    labeled = dataclasses.replace(labeled, scores=scores)
    before = dataclasses.replace(plain_model("e"), pairs=(2.0, 2.0, *[0.0] * 8, -2.0))
    found, facts = refit(before, labeled, vectors_of(np.full(200, 0.7)))
    assert facts["after"]["ece"] < facts["before"]["ece"]
    assert found.pairs[-1] < before.pairs[-1] - 0.5


def test_few_labels_are_refused_and_one_kind():
    for labels, said in (([True] * 10, "20 labels or more"), ([False] * 30, "got one kind")):
        with pytest.raises(UserError, match=said):
            refit(plain_model("e"), labels_of(labels), vectors_of(np.ones(len(labels))))


def test_duplicates_alone_are_enough_where_their_texts_are_a_table():
    texts = [f"{word} {end}" for word in map(str, range(30)) for end in ("a", "b")]
    pairs = np.arange(60, dtype=np.int32).reshape(-1, 2)
    labeled = QuestionPairs.of_duplicates(texts, pairs)
    vectors = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    vectors[1::2] = vectors[::2] + 0.05
    found, facts = refit(plain_model("e"), labeled, vectors)
    assert facts["after"]["duplicates"] > 27
    assert facts["lower"] is None
    assert WordEncoder().fingerprint != found.encoder == "e"


def test_labels_of_few_texts_are_held_out_too():
    """Each text stands in many pairs, so that they hang together."""
    texts = [*map(str, range(30))]
    first, second = np.triu_indices(30, 1)
    same = first // 3 == second // 3
    pairs = np.column_stack([first, second]).astype(np.int32)
    labeled = QuestionPairs(texts, np.arange(30), pairs, same, {}, weights=np.full(len(pairs), 2.0))
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(10, 5)), 3, axis=0) + 0.1 * rng.normal(size=(30, 5))
    _, facts = refit(plain_model("e"), labeled, vectors.astype(np.float32))
    assert facts["after"]["brier"] < facts["before"]["brier"]
    assert facts["after"]["duplicates"] > 27


def test_equal_weights_are_those_of_a_sample():
    rng = np.random.default_rng(0)
    distances, same = rng.uniform(0, 2, 60), np.arange(60) < 20
    distances[:20] /= 4
    one, nine, table = (
        refit(plain_model("e"), labels_of(same, weights), vectors_of(distances))[1]
        for weights in (np.ones(60), np.full(60, 9.0), None)
    )
    assert one == nine
    assert one["after"]["base_rate"] == pytest.approx(1 / 3)
    assert table["after"]["base_rate"] < 0.3


def labels_and_vectors(rng):
    """Labels that distances say much, little, nothing or the opposite of."""
    count = int(rng.integers(20, 120))
    distances = rng.uniform(0, 2, count)
    slope = rng.choice([-8, -1, 0, 1, 8])
    same = rng.random(count) < 1 / (1 + np.exp(slope * (distances - rng.uniform(0.2, 1.8))))
    weights = (None, np.ones(count), rng.choice([1.0, 9.0], count))[rng.integers(3)]
    return labels_of(same, weights), vectors_of(distances)


@pytest.mark.parametrize("seed", range(20))
def test_any_labels_give_a_model_that_can_be_read_or_a_user_error(seed, tmp_path):
    labeled, vectors = labels_and_vectors(np.random.default_rng(seed))
    try:
        found, facts = refit(plain_model("e"), labeled, vectors)
    except UserError:
        return
    assert facts["after"]["brier"] < facts["before"]["brier"]
    assert (facts["lower"] or facts["after"])["duplicates"] >= facts["before"]["duplicates"]
    save_plain(tmp_path / "model", found)
    assert read_plain(tmp_path / "model") == found
    near, far = found.logits(["a"] * 2, ["b"] * 2, np.array([0.1, 1.9]))
    assert near > far


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=1e-300, max_value=1e308), st.integers(0, 39))
@example(1e308, 0)
def test_any_weights_give_a_model_or_a_user_error(weight, place):
    weights = np.ones(40)
    weights[place:] = weight
    labeled = labels_of(np.arange(40) < 13, weights)
    try:
        found, _ = refit(plain_model("e"), labeled, vectors_of(np.linspace(0, 2, 40)))
    except UserError:
        assert not 0.1 < weight < 10
    else:
        assert np.isfinite([*found.pairs, *found.hits]).all()
