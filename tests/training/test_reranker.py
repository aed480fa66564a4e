"""What the light re-ranker of a run learns from, and what it gains where paraphrases are rare."""

import types

import numpy as np
import pytest

from qpr_jax.data.splits import TEST, TRAIN, VALIDATION, Splits
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import exact_search, rank
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking.features import FEATURES
from qpr_jax.reranking.light import LightReranker, rank_hits, read_light
from qpr_jax.reranking.network import predict
from qpr_jax.retriever import Retriever
from qpr_jax.training import candidates, rerank_data
from qpr_jax.training.candidates import Candidates, LogitCache
from qpr_jax.training.checks import unused_settings, validate
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.presets import PRESETS
from qpr_jax.training.rerank_data import (
    add_word_weights,
    pretrain,
    relevant_hits,
    training_queries,
)
from qpr_jax.training.rerank_network import init_network
from qpr_jax.training.sources import SOURCES


def dataset(clusters, split_of, *, pairs=True, teacher=None):
    none, some = np.zeros((0, 2), np.int32), np.array([[0, 1]], np.int32)
    splits = Splits(np.array(split_of), {"validation": some if pairs else none}, {})
    data = types.SimpleNamespace(questions=["a question"] * len(split_of))
    return types.SimpleNamespace(
        clusters=np.array(clusters), splits=splits, data=data, teacher=teacher
    )


def test_it_learns_from_all_members_of_the_validation_clusters():
    split_of = [VALIDATION, VALIDATION, TEST, TRAIN, VALIDATION, VALIDATION, VALIDATION]
    rows, groups = training_queries(dataset([4, 4, 2, 1, -1, 5, 4], split_of))
    assert (rows.tolist(), groups.tolist()) == ([0, 1, 6], [4, 4, 4])


def test_without_clusters_it_learns_from_a_sample_of_the_validation_questions():
    split_of = [VALIDATION, TEST, VALIDATION, TRAIN]
    rows, groups = training_queries(dataset([-1] * 4, split_of, pairs=False))
    assert rows.tolist() == groups.tolist() == [0, 2]


def lists(queries, hits):
    starts = np.cumsum([0, *map(len, hits)])
    rows = np.array([row for found in hits for row in found])
    return Candidates(np.array(queries), rows, np.zeros(len(rows), np.float32), starts)


def test_hits_of_the_own_cluster_are_relevant():
    found = lists([0, 3], [[1, 2], [4, 0, 5]])
    made = dataset([7, 7, 1, 2, 2, -1], [VALIDATION] * 6)
    assert relevant_hits(made, found).tolist() == [1, 0, 1, 0, 0]


def test_without_clusters_the_hit_nearest_to_the_teacher_is_relevant():
    vectors = np.array([[1, 0.2, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], np.float32)
    teacher = types.SimpleNamespace(parts=(vectors,), vectors=lambda rows: vectors[rows])
    found = lists([0, 1], [[1, 2, 3], [3, 0]])
    made = dataset([-1] * 4, [VALIDATION] * 4, pairs=False, teacher=teacher)
    assert relevant_hits(made, found).tolist() == [0, 1, 0, 0, 1]
    with pytest.raises(UserError, match="clusters or a teacher"):
        relevant_hits(dataset([-1] * 4, [VALIDATION] * 4, pairs=False), found)


class MadeFinder:
    """Two random hits of each training query, its partner, and a test question like it.

    The distance, and the word weight 5, say which hit is relevant.
    """

    def find(self, first, queries, dense):
        others = (queries[:, None] + 2 * np.array([3, 8])) % 120
        hits = np.column_stack([others, queries ^ 1, 120 + queries // 2])
        return lists(queries, hits.tolist())

    def features(self, found, *, logits):
        assert not logits
        features = np.random.default_rng(0).normal(size=(len(found.rows), len(FEATURES)))
        features[:, 0] = self.is_partner(found)
        features[:, -2:] = 0  # the word weights
        return features.astype(np.float32)

    def weight_rows(self, found):
        rows = np.where(self.is_partner(found), 5, 6).astype(np.int32)
        return rows, np.arange(len(rows) + 1)

    def is_partner(self, found):
        assert (found.rows < 120).all()
        return found.rows == found.queries[found.owners] ^ 1


def test_first_weights_are_of_training_questions_and_not_of_their_distances(monkeypatch):
    finder, config = MadeFinder(), load_config("synthetic_sdml")
    clusters = np.concatenate([np.arange(120) // 2, np.arange(60)])
    made = dataset(clusters, [TRAIN] * 120 + [TEST] * 60)
    features = np.random.default_rng(1).normal(size=(50, len(FEATURES))).astype(np.float32)
    features[:, -2:] = 0
    start, vectors = init_network(features), np.zeros((180, 2), np.float32)
    network, weights = pretrain(config, made, finder, vectors, start)
    assert not network.linear[[name.startswith("distance") for name in FEATURES]].any()
    assert network.linear[FEATURES.index("bm25")]
    assert weights[5] > 0 > weights[6]
    # Their sum is added to the score as it was in training.
    features[:, -2] = np.random.default_rng(2).uniform(-1, 1, 50)
    both = predict(add_word_weights(network, features), features)
    added = both - predict(network, features)
    np.testing.assert_allclose(added - added[0], features[:, -2] - features[0, -2], atol=1e-5)
    monkeypatch.setattr(rerank_data, "MIN_PRETRAINED", 121)
    same, weights = pretrain(config, made, finder, vectors, start)
    assert same is start
    assert not weights.any()
    features[:, -2] = 0
    unweighted = predict(add_word_weights(start, features), features)
    np.testing.assert_array_equal(unweighted, predict(start, features))


class Scorer:
    identity = "a cross-encoder"

    def __init__(self):
        self.pairs = []

    def predict(self, pairs):
        self.pairs += pairs
        return np.array([len(a) - len(b) for a, b in pairs], np.float32)


def test_logits_are_computed_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_PART", 2)
    texts, first, second = ["a", "bb", "ccc"], Scorer(), Scorer()
    queries, rows = np.array([0, 1, 1, 0]), np.array([1, 0, 2, 1])
    found = LogitCache(tmp_path, first, texts).compute(queries, rows)
    assert found.tolist() == [-1, 1, -1, -1]
    assert first.pairs == [("a", "bb"), ("bb", "a"), ("bb", "ccc")]
    again = LogitCache(tmp_path, second, texts).compute(np.append(queries, 2), np.append(rows, 0))
    assert again.tolist() == [-1, 1, -1, -1, 2]
    assert second.pairs == [("ccc", "a")]
    next(tmp_path.rglob("*.npz")).write_bytes(b"")
    with pytest.raises(UserError, match="expected logits of pairs"):
        LogitCache(tmp_path, Scorer(), texts)


def test_which_presets_have_a_re_ranker():
    kinds = {name: load_config(name).rerank.kind for name in PRESETS}
    assert {name for name, kind in kinds.items() if kind == "light"} == {
        *("synthetic_sdml", "quora_sdml", "quora_best", "quora_minilm"),
        *("quora_distilled", "quora_distilled_sums", "open_student"),
    }
    assert load_config("quora_sdml:smoke").rerank.kind == "light"


def test_settings_without_effect_and_settings_that_cannot_be():
    changes = {"rerank.kind": "none", "rerank.lexical_candidates": 30}
    unused = unused_settings(override(load_config("quora_sdml"), changes))
    assert unused == ["rerank.lexical_candidates"]
    assert unused_settings(load_config("quora_sdml")) == []
    changes = {"data.source": "questions", "encoder.kind": "bert", "encoder.pretrained": "minilm"}
    changes |= {"max_epochs": 0, "early_stopping.metric": "agreement", "rerank.kind": "light"}
    with pytest.raises(UserError):
        validate(override(load_config("quora_minilm"), changes))


@pytest.mark.slow
def test_it_gains_where_a_query_has_one_paraphrase(quora_file, tmp_path):
    """Trained on whole clusters, it must not live by their other members."""
    config = override(
        load_config("quora_sdml"),
        {
            "data.path": str(quora_file),
            "data.max_rows": 60_000,
            "encoder.filters": 200,
            "max_epochs": 2,
        },
    )
    train_and_evaluate(config, tmp_path / "run")
    dataset = load_dataset(config, SOURCES["quora"].find(config))
    encoder = Retriever.load(tmp_path / "run").encoder
    clusters = dataset.clusters[: len(dataset.data.questions)]
    order = np.random.default_rng(0).permutation(len(clusters))
    # Two members of each cluster stay, at random, and all questions without one.
    seen = dict.fromkeys(range(clusters.max() + 1), 0)
    kept = np.zeros(len(clusters), bool)
    for row in order.tolist():
        cluster = int(clusters[row])
        kept[row] = cluster < 0 or seen[cluster] < 2
        if cluster >= 0:
            seen[cluster] += 1
    rows = np.flatnonzero(kept)
    texts, own = [dataset.data.questions[i] for i in rows], clusters[rows]
    queries = np.flatnonzero((dataset.splits.split_of[rows] == TEST) & (own >= 0))
    vectors = encoder.encode(texts)
    found = rank(exact_search(vectors), queries, 50)
    distances = ((vectors[queries][:, None] - vectors[found]) ** 2).sum(axis=2)
    starts = np.arange(len(queries) + 1) * 50
    model = read_light(tmp_path / "run" / "export" / "reranker")
    reranker = LightReranker(model, encoder, Statistics.build(texts))
    asked, hits = [texts[i] for i in queries], [texts[i] for i in found.ravel()]
    scores, _ = reranker.score(asked, hits, distances.ravel(), starts)
    best = rank_hits(scores, distances.ravel(), found.ravel(), starts)[starts[:-1]]
    before = np.mean(own[found[:, 0]] == own[queries])
    after = np.mean(own[found.ravel()[best]] == own[queries])
    print(f"H@1 of {len(queries)} queries: {before:.4f}, re-ranked {after:.4f}")
    assert after >= before + 0.02
