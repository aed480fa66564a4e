"""The training of the words model: what it learns from, what it gains, and when there is none."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from qpr_jax.data.question_pairs import QuestionPairs
from qpr_jax.data.splits import TEST, TRAIN, VALIDATION, Splits
from qpr_jax.encoders.load import load_encoder
from qpr_jax.evaluation.retrieval import exact_search, rank
from qpr_jax.evaluation.scores import read_ranks
from qpr_jax.locations import PAIR_MODEL, save_pair_model
from qpr_jax.pair_model.features import FeatureExtractor, zero_weights
from qpr_jax.pair_model.plain import PAIRS, PlainModel, general_model, read_plain
from qpr_jax.pair_model.terms import Frequencies
from qpr_jax.pair_model.words import WEIGHTS, WORD_WEIGHTS, read_words
from qpr_jax.training import pair_model_job, pair_network
from qpr_jax.training.config import load_config
from qpr_jax.training.pair_examples import (
    SHARE,
    assign_folds,
    find_hits,
    labeled_pairs,
    near_pairs,
    read_contrasts,
    read_pairs,
    read_taught,
    share_weights,
)
from qpr_jax.training.pair_model_job import FOLDS, inherit, score_hits, train_words
from qpr_jax.training.pair_network import _train, init_network
from qpr_jax.training.run import train_and_evaluate
from tests.pair_model.models import WordEncoder, words_model
from tests.runs import WORDS

COUNT = 1500


def made_up(*, labels=True):
    """Questions in clusters of two that have a word in common.

    Their vectors lie near each other, among those of other clusters. Pairs of neighbors are
    labeled, or only duplicates.
    """
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(COUNT // 2), 2)
    split_of = np.repeat(rng.choice([TRAIN, VALIDATION, TEST], COUNT // 2, p=[0.4, 0.3, 0.3]), 2)
    angles = np.repeat(rng.uniform(0, 3, COUNT // 2), 2) + rng.normal(0, 0.002, COUNT)
    frames = "how do i cook {}", "what is the best way to make {}"
    questions = [frames[i % 2].format(f"w{cluster}x") for i, cluster in enumerate(clusters)]
    same, order = np.arange(COUNT).reshape(-1, 2), np.argsort(angles)
    near = np.stack([order[:-1], order[1:]], axis=1)
    pairs = np.concatenate([same, near]) if labels else same
    held_out = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    of_split = {name: same[split_of[same[:, 0]] == split] for name, split in held_out.items()}
    duplicate = clusters[pairs[:, 0]] == clusters[pairs[:, 1]]
    data = SimpleNamespace(questions=questions, pairs=pairs, is_duplicate=duplicate)
    splits = SimpleNamespace(split_of=split_of, pairs=of_split)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return SimpleNamespace(data=data, clusters=clusters, splits=splits), vectors


@pytest.fixture(scope="module")
def trained():
    """The words model of made-up questions, after few epochs."""
    dataset, vectors = made_up()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_network, "EPOCHS", 8)
        return dataset, vectors, train_words(dataset, WordEncoder(), vectors, depth=20)


def test_it_sorts_better_than_the_distance(trained):
    dataset, vectors, words = trained
    validation = words.settings["validation"]
    assert validation["words"]["mrr@20"] > validation["distance"]["mrr@20"] + 0.2
    queries = dataset.splits.pairs["test"][:, 0]
    found = rank(exact_search(vectors), queries, 20)
    found[0, 15:] = -1  # no hits
    logits = score_hits(words, dataset.data.questions, vectors, queries, found)
    assert (np.isfinite(logits) == (found >= 0)).all()
    best = np.take_along_axis(found, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    assert np.mean(best == queries + 1) > np.mean(found[:, 0] == queries + 1) + 0.2
    scores = words.settings["test"]
    assert scores["base_rate"] == pytest.approx(SHARE)
    assert scores["brier"] < scores["base_brier"]


def test_the_same_seed_gives_the_same_bits(trained, monkeypatch):
    monkeypatch.setattr(pair_network, "EPOCHS", 8)
    dataset, vectors, words = trained
    again = train_words(dataset, WordEncoder(), vectors, depth=20)
    for one, other in zip(words.network, again.network, strict=True):
        assert one.tobytes() == other.tobytes()
    assert words.word_weights.tobytes() == again.word_weights.tobytes()
    assert words.settings == again.settings


def test_where_it_is_no_better_than_the_distance_there_is_no_model(monkeypatch, caplog):
    caplog.set_level("INFO")
    distance = SimpleNamespace(logits=lambda features: -features[:, 0])
    monkeypatch.setattr(pair_model_job, "train_network", lambda *args, seed: distance)
    dataset, vectors = made_up()
    assert train_words(dataset, WordEncoder(), vectors, depth=20) is None
    assert "it sorts no better than the distance" in caplog.text


def test_without_labels_or_with_few_there_is_no_model(caplog):
    caplog.set_level("INFO")
    dataset, vectors = made_up()
    few = SimpleNamespace(**vars(dataset))
    few.clusters = np.where(np.arange(COUNT) < 100, dataset.clusters, -1)
    assert train_words(few, WordEncoder(), vectors, depth=20) is None
    assert "expected 50 validation questions or more" in caplog.text
    few.clusters = np.full(COUNT, -1)
    assert train_words(few, WordEncoder(), vectors, depth=20) is None
    assert "the data have no labels" in caplog.text


@pytest.mark.parametrize("labels", [True, False])
def test_nothing_is_learned_from_test_questions(labels):
    dataset, vectors = made_up(labels=labels)
    split_of = dataset.splits.split_of
    fitted, truth = labeled_pairs(dataset, vectors, "validation")
    tested, _ = labeled_pairs(dataset, vectors, "test")
    near, _ = near_pairs(dataset, vectors, "validation")
    hits = find_hits(dataset, vectors, np.flatnonzero(split_of == VALIDATION), 20)
    for pairs in (near, fitted, hits):
        assert (split_of[pairs] == VALIDATION).any(axis=1).all()
        assert (split_of[pairs] != TEST).all()
    assert (split_of[tested] == TEST).any(axis=1).all()
    same = dataset.clusters[fitted]
    np.testing.assert_array_equal(truth, same[:, 0] == same[:, 1])
    assert np.average(truth, weights=share_weights(truth)) == pytest.approx(SHARE)
    assert share_weights(truth).mean() == pytest.approx(1)
    extractor = FeatureExtractor(WordEncoder(), Frequencies.count([]), zero_weights())
    taught = read_taught(dataset, vectors, extractor, exact_search(vectors), 0)
    assert (split_of[taught.pairs] == TRAIN).all()
    contrasts = read_contrasts(dataset, WordEncoder(), extractor)
    assert (split_of[contrasts.pairs] == VALIDATION).all()
    assert not contrasts.labels.any()


def test_what_checks_a_model_is_whole_clusters_that_it_has_not_learned_from():
    dataset, vectors = made_up()
    queries, folds = assign_folds(dataset, FOLDS, 0)
    assert queries.tolist() == np.flatnonzero(dataset.splits.split_of == VALIDATION).tolist()
    assert (folds[::2] == folds[1::2]).all()
    assert sorted({*folds[queries]}) == [*range(FOLDS)]
    assert (np.delete(folds, queries) == -1).all()
    extractor = FeatureExtractor(WordEncoder(), Frequencies.count([]), zero_weights())
    hits = find_hits(dataset, vectors, queries, 5)
    whole = read_pairs(dataset.data.questions, vectors, extractor, hits, hits[:, 0] > 0)
    rest = whole.without(folds == 1)
    assert 0 < len(rest.labels) < len(whole.labels)
    assert not (folds[rest.pairs] == 1).any()
    assert (np.diff(rest.pairs[rest.starts[:-1], 0]) > 0).all()
    assert whole.select(np.zeros(len(hits), bool)).starts.tolist() == [0]
    joined = rest.joined(whole)
    assert (np.diff(joined.pairs[:, 0]) >= 0).all()
    assert len(joined.labels) == len(rest.labels) + len(whole.labels)


def test_weights_of_words_are_learned():
    dataset, vectors = made_up()
    extractor = FeatureExtractor(WordEncoder(), Frequencies.count([]), zero_weights())
    lists = read_taught(dataset, vectors, extractor, exact_search(vectors), 0)
    words = np.full_like(lists.words, -1)
    words[:, 0] = np.where(lists.labels, 5, 6)
    lists = lists._replace(words=words, features=np.zeros_like(lists.features))
    _, weights = _train(init_network(lists.features), lists, None, epochs=2, seed=0)
    assert weights[5] > 0 > weights[6]
    assert np.count_nonzero(weights) == 2
    summed = lists.with_words(weights).features[:, WORD_WEIGHTS]
    np.testing.assert_array_equal(summed, np.where(lists.labels, weights[5], weights[6]))


def test_the_order_of_the_model_is_reported_beside_that_of_the_distance(finished):
    workdir, report = finished
    ranks = read_ranks(workdir / "ranks.npz")
    text = (workdir / "report.md").read_text()
    assert "reranked" not in report["validation"]
    found = report["test"]["reranked"]
    assert {*found} == {"per_pair", "per_query", "exact", "gain"}
    for search, scores in (("index", found), ("exact", found["exact"])):
        first = report["test"] if search == "index" else report["test"]["exact"]
        for over in ("per_pair", "per_query"):
            assert scores[over].keys() == first[over].keys()
            for name, (gain, low, high) in found["gain"][search][over].items():
                assert gain == pytest.approx(scores[over][name] - first[over][name])
                assert low <= gain <= high
        reranked = ranks[f"test_reranked_{search}"]
        assert np.mean(reranked == 1) == pytest.approx(scores["per_query"]["hits@1"])
    hits = found["per_query"]["hits@1"]
    assert hits > report["test"]["per_query"]["hits@1"]  # the encoder has seen 12 steps
    assert f"| test | index, re-ranked | queries | {hits:.4f} |" in text
    facts = report["pair_model"]
    assert facts["queries"] == 188
    assert 0 <= facts["above_contrasts"] <= 1
    model = read_words(workdir / "export" / PAIR_MODEL, load_encoder(workdir / "export"))
    assert (model.depth, model.farthest) == (50, facts["farthest"])


@pytest.fixture
def killed(finished, tmp_path):
    """A finished run that was killed before its pair model was trained."""
    run = shutil.copytree(finished[0], tmp_path / "run")
    (run / "report.json").unlink()
    shutil.rmtree(run / "export" / PAIR_MODEL)
    return run


def test_a_killed_pair_model_is_trained_again_to_the_same_bits(finished, killed):
    report = train_and_evaluate(load_config("synthetic_sdml:smoke", {"devices": 2}), killed)
    path = f"export/{PAIR_MODEL}/{WEIGHTS}"
    assert (killed / path).read_bytes() == (finished[0] / path).read_bytes()
    for split in ("validation", "test"):
        assert report[split] == finished[1][split]


def test_of_too_few_queries_no_words_model_is_made(killed, monkeypatch, caplog):
    monkeypatch.setattr(pair_model_job, "MIN_QUERIES", 1000)
    report = train_and_evaluate(load_config("synthetic_sdml:smoke", {"devices": 2}), killed)
    assert "no words model: expected 1000 validation questions or more" in caplog.text
    assert "pair_model" not in report
    assert "reranked" not in report["test"]
    assert read_plain(killed / "export" / PAIR_MODEL).pairs == PAIRS


def test_a_run_without_a_model_of_its_own_fits_that_of_its_start(encoder_run, tmp_path):
    start = shutil.copytree(encoder_run, tmp_path / "start")
    encoder = load_encoder(start / "export")
    starts = [f"{one} {other}" for one in WORDS[:5] for other in WORDS[5:9]]
    texts = [f"{words} {end}" for words in starts for end in ("now", "today")]
    vectors = encoder.encode(texts)

    def fitted(count):
        pairs = np.arange(2 * count, dtype=np.int32).reshape(-1, 2)
        data = QuestionPairs.of_duplicates(texts[: 2 * count], pairs)
        splits = Splits(np.full(2 * count, VALIDATION), {}, {})
        held_out = SimpleNamespace(data=data, splits=splits)
        return inherit(str(start), held_out, encoder, vectors[: 2 * count])

    assert fitted(2).pairs == general_model(encoder).pairs
    pairs, hits = (3.0, 3.0, *[-1.0] * 8, -2.0), (7.0, *[0.0] * 8, -5.0)
    start_model = PlainModel(encoder.fingerprint, pairs, hits)
    save_pair_model(start / "export", start_model)
    assert (fitted(2).pairs, fitted(2).settings["start"]) == (start_model.pairs, str(start))
    assert fitted(20).settings["labels"]["labels"] == 20
    assert fitted(20).pairs != start_model.pairs
    words = words_model(encoder)
    save_pair_model(start / "export", words)
    np.testing.assert_array_equal(fitted(20).network.hidden, words.network.hidden)
