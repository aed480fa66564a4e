"""Scores of found pairs: symmetric, the same in any order and in parts."""

import numpy as np
import pytest

from qpr_jax.encoders.load import read_encoder
from qpr_jax.index.mining import Pairs, close_pairs
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking import pairs as pairs_module
from qpr_jax.reranking.light import LightReranker
from qpr_jax.reranking.pairs import PairReranker, score_pairs, split_lists
from tests.runs import WORDS, write_encoder, write_reranker


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A re-ranker of six hits, its encoder, and 60 texts in canonical order with their pairs."""
    run = tmp_path_factory.mktemp("run")
    write_encoder(run)
    model = write_reranker(run, candidates=6)
    encoder = read_encoder(run / "export")
    rng = np.random.default_rng(0)
    texts = sorted({" ".join(rng.choice(WORDS, 5)) for _ in range(60)})
    pairs = close_pairs(encoder.encode(texts), 2.0, most=10_000)
    assert 300 < len(pairs.first) < len(texts) ** 2 / 2
    return model, encoder, Statistics.build(texts), texts, pairs


def test_a_score_is_the_mean_of_both_directions(known):
    model, encoder, statistics, texts, _ = known
    pairs = Pairs(np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([0.5, 0.25, 1], np.float32))
    found = score_pairs(model, encoder, statistics, texts, pairs)
    reranker = LightReranker(model, encoder, statistics)
    hits = {0: [(2, 0.25), (1, 0.5)], 1: [(0, 0.5), (2, 1)], 2: [(0, 0.25), (1, 1)]}
    raw = {}
    for text, own in hits.items():
        near = np.array([d for _, d in own], np.float32)
        others = [texts[i] for i, _ in own]
        scores, _ = reranker.score([texts[text]], others, near, np.array([0, 2]))
        raw |= {(text, i): s for (i, _), s in zip(own, scores, strict=True)}
    expected = [(raw[a, b] + raw[b, a]) / 2 for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found == pytest.approx(expected)
    complete = np.array([True, False, True] + [False] * (len(texts) - 3))
    found = PairReranker(model, encoder, statistics, texts, complete=complete).score(pairs)
    assert found == pytest.approx([raw[0, 1], expected[1], raw[2, 1]])


def test_scores_are_the_same_in_any_order_and_in_parts(known, tmp_path, monkeypatch):
    *inputs, pairs = known
    scores = score_pairs(*inputs, pairs)
    assert len(np.unique(scores)) > 20
    order = np.random.default_rng(1).permutation(len(scores))
    mixed = Pairs(*(values[order] for values in pairs))
    assert (score_pairs(*inputs, mixed) == scores[order]).all()
    monkeypatch.setattr(pairs_module, "_HITS", 50)
    assert (score_pairs(*inputs, mixed) == scores[order]).all()

    def parts():
        for some in np.array_split(np.arange(len(order)), 7):
            yield Pairs(*(values[some] for values in mixed))

    found = PairReranker(*inputs).score_parts(parts, tmp_path / "spool", memory=10_000)
    assert (found == scores[order]).all()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["pair_scores.bin"]
    assert len(PairReranker(*inputs).score_parts(lambda: [], tmp_path / "none", memory=1)) == 0


def test_pairs_that_are_not_needed_only_take_part(known):
    *inputs, pairs = known
    scores = score_pairs(*inputs, pairs)
    needed = np.arange(len(scores)) % 10 == 0
    found = PairReranker(*inputs).score(pairs, needed)
    assert (found[needed] == scores[needed]).all()
    assert not found[~needed].any()


def test_long_lists_are_split():
    lists = split_lists(np.array([0, 4, 5, 9, 1]), 4)
    assert lists.tolist() == [
        [0, 0, 0, 0],
        [1, 0, 0, 4],
        [2, 0, 0, 4],
        [2, 4, 2, 1],
        [3, 0, 0, 4],
        [3, 4, 2, 2],
        [3, 6, 2, 2],
        [3, 8, 2, 1],
        [4, 0, 0, 1],
    ]
