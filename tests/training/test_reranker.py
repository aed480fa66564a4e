"""What re-rankers of a run learn from, their scores, kills; and the probability of pairs."""

import functools
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from qpr_jax.data.splits import TEST, TRAIN, VALIDATION, Splits
from qpr_jax.encoders.load import load_encoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.metrics import read_ranks
from qpr_jax.evaluation.retrieval import exact_search, relevance_scores
from qpr_jax.files import read_json, write_json
from qpr_jax.reranking.calibration import CALIBRATION
from qpr_jax.reranking.calibration import WEIGHTS as CALIBRATED
from qpr_jax.reranking.feature_loops import MOST
from qpr_jax.reranking.features import FEATURES, WORD_WEIGHTS
from qpr_jax.reranking.light import LIGHT, WEIGHTS, predict, read_light
from qpr_jax.reranking.stages import Stages, read_stages
from qpr_jax.retriever import Retriever
from qpr_jax.training import encoder_job, rerank_data
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.encoder_job import inherit
from qpr_jax.training.main import train_and_evaluate
from qpr_jax.training.pair_calibration import (
    SHARE,
    calibrate_pairs,
    labeled_pairs,
    near_pairs,
    share_weights,
)
from qpr_jax.training.rerank_data import (
    FOLDS,
    Examples,
    Finder,
    Lists,
    assign_folds,
    pretraining_examples,
    relevant_hits,
    suffices,
)
from qpr_jax.training.reranker import add_word_weights, init_network, train_network
from qpr_jax.training.sources import SOURCES
from tests.runs import calibrate, write_encoder, write_reranker


def dataset(clusters, split_of, *, pairs=True, teacher=None):
    none, some = np.zeros((0, 2), np.int32), np.array([[0, 1]], np.int32)
    splits = Splits(np.array(split_of), {"validation": some if pairs else none}, {})
    data = SimpleNamespace(questions=["a question"] * len(split_of))
    return SimpleNamespace(clusters=np.array(clusters), splits=splits, data=data, teacher=teacher)


def lists(queries, hits):
    starts = np.cumsum([0, *map(len, hits)])
    rows = np.array([row for found in hits for row in found])
    return Lists(np.array(queries), starts, rows, np.zeros(len(rows), np.float32))


def test_without_clusters_the_hit_nearest_to_the_teacher_is_relevant():
    vectors = np.array([[1, 0.2, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], np.float32)
    teacher = SimpleNamespace(parts=(vectors,), vectors=lambda rows: vectors[rows])
    found = lists([0, 1], [[1, 2, 3], [3, 0]])
    made = dataset([-1] * 4, [VALIDATION] * 4, pairs=False, teacher=teacher)
    assert relevant_hits(made, found).tolist() == [0, 1, 0, 0, 1]


def test_training_questions_have_no_distances_and_no_hits_of_other_splits():
    made = dataset(np.arange(180) // 2, [TRAIN] * 120 + [TEST] * 60)
    vectors = np.random.default_rng(0).normal(size=(180, 5)).astype(np.float32)
    extractor = SimpleNamespace(compute=lambda texts, rows: np.zeros((len(rows), len(FEATURES))))
    finder = Finder(made.data.questions, vectors, extractor, candidates=20)
    means, search = np.arange(1, 1 + len(FEATURES), dtype=np.float32), exact_search(vectors)
    for trained in (True, False):
        known, rows = pretraining_examples(made, finder, search, means, trained=trained, seed=0)
        assert len(known.lists.queries) == 120
        assert len(known.labels) < 120 * 20  # test questions are left out
        assert rows.shape == (len(known.labels), MOST)
        near = [name.startswith("distance") and trained for name in FEATURES]
        assert (known.features == np.where(near, means, 0)).all()
    few = dataset(np.arange(180) // 2, [TEST] * 140 + [TRAIN] * 40)
    assert pretraining_examples(few, finder, search, means, trained=True, seed=0) is None


def made_examples(queries=80):
    """Four or five hits, of which the one with the largest product of two features is relevant.

    Hits of a query are of the next fold.
    """
    counts = 5 - (np.arange(queries) % 3 == 0)
    found = lists(np.arange(queries), [[(i + 1) % queries] * n for i, n in enumerate(counts)])
    features = np.random.default_rng(0).normal(5, 3, size=(counts.sum(), len(FEATURES)))
    features[:, 3] = 7  # never differs
    features[:, [FEATURES.index(name) for name in WORD_WEIGHTS]] = 0
    products = (features[:, 0] - 5) * (features[:, 1] - 5)
    labels = products == np.repeat(np.maximum.reduceat(products, found.starts[:-1]), counts)
    return Examples(found, labels.astype(np.int8), features.astype(np.float32))


def test_word_weights_are_learned_and_added_to_the_score():
    known = made_examples()
    rows = np.full((len(known.labels), MOST), -1, np.int32)
    rows[:, 0] = np.where(known.labels, 5, 6)
    network, weights = train_network(init_network(known.features), known, epochs=5, rows=rows)
    assert weights[5] > 0 > weights[6]
    assert np.count_nonzero(weights) == 2
    features, sums = known.features.copy(), np.where(known.labels, weights[5], weights[6])
    features[:, FEATURES.index("word_weights")] = sums
    added = predict(add_word_weights(network, features), features)
    added -= predict(network, known.features)
    np.testing.assert_allclose(added - added[0], sums - sums[0], atol=1e-4)


def test_folds_are_whole_clusters_and_leave_out_their_questions():
    clusters = np.append(np.arange(100) // 4, [-1, 25])
    queries, folds = assign_folds(dataset(clusters, [VALIDATION] * 101 + [TEST]), seed=0)
    assert queries.tolist() == [*range(100)]
    assert all(len({*folds[clusters == c]}) == 1 for c in range(25))
    assert sorted({*folds[:100]}) == [*range(FOLDS)]
    assert (folds[100:] == -1).all()
    known, folds = made_examples(), np.arange(80) % FOLDS
    rest = known.without(folds, 2)
    owners = folds[rest.lists.queries][rest.lists.owners]
    assert not (folds[rest.lists.rows] == 2).any()
    assert {*owners.tolist()} == {0, 3, 4}  # hits of the queries of fold 1 are of fold 2
    assert rest.lists.starts[-1] == len(rest.labels) == len(rest.features)
    assert suffices(known.lists, known.labels)
    few = rest.without(folds, 3)
    assert not suffices(few.lists, few.labels)
    for label in (0, 1):  # hits that are all alike have no order
        assert not suffices(known.lists, np.full_like(known.labels, label))


def made_up(*, labels, count=3000, seed=0):
    """Questions on a line, in clusters of two that lie close together; pairs of near ones."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(count // 2), 2)
    split_of = np.repeat(rng.choice(3, count // 2, p=[0.4, 0.3, 0.3]), 2)
    places = np.repeat(rng.uniform(0, count / 20, count // 2), 2) + rng.normal(0, 0.05, count)
    same = np.arange(count).reshape(-1, 2)
    near = np.stack([np.argsort(places)[:-1], np.argsort(places)[1:]], axis=1)
    pairs = np.concatenate([same, near]) if labels else same
    duplicate = clusters[pairs[:, 0]] == clusters[pairs[:, 1]]
    questions = [str(i) for i in range(count)]
    held_out = {"validation": VALIDATION, "test": TEST}
    of_split = {name: same[split_of[same[:, 0]] == split] for name, split in held_out.items()}
    data = SimpleNamespace(questions=questions, pairs=pairs, is_duplicate=duplicate)
    splits = SimpleNamespace(split_of=split_of, pairs=of_split)
    vectors = np.stack([places, np.zeros(count)], axis=1).astype(np.float32)
    return SimpleNamespace(data=data, clusters=clusters, splits=splits), vectors


@pytest.mark.parametrize("labels", [True, False])
def test_nothing_is_learned_from_test_questions(labels):
    dataset, vectors = made_up(labels=labels)
    split_of = dataset.splits.split_of
    fitted, truth = labeled_pairs(dataset, vectors, "validation")
    tested, _ = labeled_pairs(dataset, vectors, "test")
    near, _, reach = near_pairs(dataset, vectors, "validation")
    for pairs in (near, fitted):
        assert (split_of[pairs] == VALIDATION).any(axis=1).all()
        assert (split_of[pairs] != TEST).all()
    assert (split_of[tested] == TEST).any(axis=1).all()
    same = dataset.clusters[fitted]
    np.testing.assert_array_equal(truth, same[:, 0] == same[:, 1])
    within = (abs(vectors[:200, :1] - vectors[:, 0]) ** 2 <= reach).sum(axis=1) - 1
    assert within.mean() == pytest.approx(20, rel=0.2)
    assert np.average(truth, weights=share_weights(truth)) == pytest.approx(SHARE)
    assert share_weights(truth).mean() == pytest.approx(1)


def test_probabilities_fit_the_labels_of_test_pairs():
    dataset, vectors = made_up(labels=True, count=6000, seed=1)
    known = calibrate_pairs(dataset, SimpleNamespace(identity="e"), vectors, None)
    assert (known.encoder, known.reranker) == ("e", "")
    scores = known.settings["test"]
    assert scores["base_rate"] == pytest.approx(SHARE)
    assert scores["ece"] < 0.06
    assert scores["brier"] < scores["base_brier"]


def test_a_run_without_clusters_has_none():
    dataset = SimpleNamespace(splits=SimpleNamespace(pairs={"validation": []}))
    assert calibrate_pairs(dataset, SimpleNamespace(), np.zeros((0, 2)), None) is None


def test_a_run_without_a_re_ranker_keeps_the_second_stages_of_its_start(encoder_run, tmp_path):
    start = shutil.copytree(encoder_run, tmp_path / "start")
    write_encoder(tmp_path / "run", seed=1)
    stages = Stages(load_encoder(tmp_path / "run" / "export"))
    retriever = Retriever(stages.encoder, None, stages)
    nothing = dataset([], [], pairs=False)
    assert not inherit(retriever, str(start), nothing)
    assert stages.light is stages.calibration is None
    light = write_reranker(start)
    known = calibrate(start, light)
    assert inherit(retriever, str(start), nothing)
    assert stages.calibration.settings["start"] == str(start)
    stages.save(tmp_path / "run" / "export")  # as those of the new encoder
    encoder, found = read_stages(tmp_path / "run")
    assert found.light.encoder == found.calibration.encoder == encoder.identity != light.encoder
    np.testing.assert_array_equal(found.light.network.hidden, light.network.hidden)
    np.testing.assert_array_equal(found.calibration.weights, known.weights)


@pytest.mark.slow
def test_it_gains_where_a_query_has_one_paraphrase(quora_file, tmp_path):
    """Trained on whole clusters, it must not live by their other members."""
    smaller = {"data.max_rows": 60_000, "encoder.filters": 200, "max_epochs": 2}
    config = load_config("quora_sdml", {"data.path": str(quora_file), **smaller})
    train_and_evaluate(config, tmp_path / "run")
    dataset = load_dataset(config, SOURCES["quora"].find(config))
    clusters = dataset.clusters[: len(dataset.data.questions)]
    order = np.random.default_rng(0).permutation(len(clusters))
    # Two members of each cluster stay, at random, and all questions without one.
    shuffled = pd.Series(clusters[order])
    rows = np.sort(order[(shuffled < 0) | (shuffled.groupby(shuffled).cumcount() < 2)])
    texts, own = [dataset.data.questions[i] for i in rows], clusters[rows]
    queries = np.flatnonzero((dataset.splits.split_of[rows] == TEST) & (own >= 0)).tolist()
    relevant = {texts[i]: {*np.flatnonzero(own == own[i]).tolist()} for i in queries}
    retriever = Retriever.build(texts, range(len(texts)), encoder=tmp_path / "run")

    def hits_at_1(rerank):
        search = functools.partial(retriever.search, rerank=rerank)
        return relevance_scores(search, relevant, other_texts=True)["hits@1"]

    before, after = hits_at_1(False), hits_at_1("light")
    assert after >= before + 0.02, (before, after)


def test_the_second_stage_is_reported_beside_the_first(finished):
    workdir, report = finished
    ranks = read_ranks(workdir / "ranks.npz")
    text = (workdir / "report.md").read_text()
    for split in ("validation", "test"):
        found = report[split]["reranked"]
        assert {*found} == {"per_pair", "per_query", "exact", "gain"}
        for search, scores in (("index", found), ("exact", found["exact"])):
            first = report[split] if search == "index" else report[split]["exact"]
            for over in ("per_pair", "per_query"):
                assert scores[over].keys() == first[over].keys()
                for name, (gain, low, high) in found["gain"][search][over].items():
                    assert gain == pytest.approx(scores[over][name] - first[over][name])
                    assert low <= gain <= high
            reranked = ranks[f"{split}_reranked_{search}"]
            assert np.mean(reranked == 1) == pytest.approx(scores["per_query"]["hits@1"])
        hits = found["per_query"]["hits@1"]
        assert hits > report[split]["per_query"]["hits@1"]  # the first stage has seen 12 steps
        assert f"| {split} | index, re-ranked | queries | {hits:.4f} |" in text
    facts = report["reranker"]
    assert facts["queries"] == 188
    assert facts["seconds"] > 0
    model = read_light(workdir / "export" / "reranker")
    assert model.encoder == report["encoder"]
    assert model.candidates == 50


class SharedWords:
    """A cross-encoder that counts the words that both questions have, and its calls."""

    identity = "shared words"

    def __init__(self, calls):
        self.calls = calls

    def predict(self, pairs):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        return np.array([len({*a.split()} & {*b.split()}) for a, b in pairs], np.float32)


@pytest.fixture
def killed(finished, tmp_path):
    """A finished run that was killed before its re-ranker was trained."""
    run = shutil.copytree(finished[0], tmp_path / "run")
    (run / "report.json").unlink()
    for name in (LIGHT, CALIBRATION):
        shutil.rmtree(run / "export" / name)
    return run


def test_killed_second_stages_are_trained_again_to_the_same_bits(finished, killed, monkeypatch):
    """The light re-ranker, and one that is stacked on a cross-encoder."""
    workdir, report = finished
    paths = [f"export/{LIGHT}/{WEIGHTS}", f"export/{CALIBRATION}/{CALIBRATED}"]
    settings = read_json(workdir / "run.json")
    write_json(killed / "run.json", settings | {"cross_encoder.identity": "shared words"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(killed / "cache"))
    monkeypatch.setattr(rerank_data, "PART", 1000)
    monkeypatch.setattr(rerank_data, "MIN_QUERIES", 20)
    config = load_config("synthetic_sdml:smoke", {"devices": 2})
    splits = []

    def label(dataset, lists):
        splits.append(dataset.splits.split_of[lists.rows])
        return relevant_hits(dataset, lists)

    def run(calls):
        splits.clear()
        scorer = SharedWords(calls)
        with monkeypatch.context() as patch:
            patch.setattr(encoder_job, "read_scorer", lambda config: scorer)
            patch.setattr(rerank_data, "relevant_hits", label)
            return train_and_evaluate(config, killed), calls - scorer.calls

    with pytest.raises(KeyboardInterrupt):
        run(3)
    again, calls = run(100)
    assert 2 <= calls <= 9  # in all, 188 and 102 queries have 20 hits each
    # Nothing is learned from test questions, and first weights from training questions alone.
    found, pretrained = splits[:2]
    assert 0 < np.sum(found != TEST) == again["reranker"]["hits"] < len(found)
    assert (pretrained == TRAIN).all()
    assert run(0) == (again, 0)
    assert all((killed / path).read_bytes() == (workdir / path).read_bytes() for path in paths)
    assert again["reranker_cross"]["cross_encoder"] == "shared words"
    text = (killed / "report.md").read_text()
    for split in ("validation", "test"):
        assert {*again[split]["reranked_cross"]} == {"per_pair", "per_query", "exact", "gain"}
        assert f"| {split} | exact, with cross-encoder |" in text
        del again[split]["reranked_cross"]
        assert again[split] == report[split]
    model = read_light(killed / "export" / "reranker_cross")
    assert (model.cross_encoder, model.candidates) == ("shared words", 20)
    assert model.features[-1] == "cross"
    with pytest.raises(UserError, match=r"cross_encoder\.identity: 'shared words' there"):
        train_and_evaluate(config, killed)


def test_of_too_few_queries_no_re_ranker_is_made(killed, monkeypatch, caplog):
    monkeypatch.setattr(rerank_data, "MIN_QUERIES", 1000)
    report = train_and_evaluate(load_config("synthetic_sdml:smoke", {"devices": 2}), killed)
    assert "no re-ranker: expected 1000 validation questions or more" in caplog.text
    assert "reranker" not in report
    assert "reranked" not in report["test"]
    assert not (killed / "export" / "reranker").exists()
