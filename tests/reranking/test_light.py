"""The light re-ranker: its folder, its order, its probabilities."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, write_manifest
from qpr_jax.index.base import Hit
from qpr_jax.reranking.base import rank_hits
from qpr_jax.reranking.light import (
    WEIGHTS,
    LightReranker,
    light_identity,
    read_light,
    save_light,
    serialize_light,
)
from qpr_jax.reranking.network import Network, predict
from tests.reranking.models import WordEncoder, column, light_model, network
from tests.reranking.test_features import CORPUS

# Sorted by minus the distance, by the same distances: the network's only input.
FAR_FIRST = {
    "network": column("distance"),
    "calibration": np.array([[0.15, 0.35], [0.1, 0.9]]),
}
HITS = [Hit(7, "price", 0.1), Hit(5, "car", 0.2), Hit(4, "", 0.3), Hit(1, "what", 0.4)]


def reranker(**changes) -> LightReranker:
    return LightReranker(light_model(**(FAR_FIRST | changes)), WordEncoder())


def test_the_network_equals_numpy():
    made, rows = network(columns=3), np.random.default_rng(1).normal(size=(50, 3))
    z = ((rows - made.mean) * made.scale).clip(-4, 4)
    expected = z @ made.linear + np.maximum(z @ made.hidden + made.bias, 0) @ made.output
    found = predict(made, rows.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert (predict(made, rows[7:9].astype(np.float32)) == found[7:9]).all()


def test_a_model_is_read_as_it_was_saved(tmp_path):
    weights = np.arange(1 << 18, dtype=np.float32)
    saved = light_model(settings={"seed": 1}, word_weights=weights)
    save_light(tmp_path / "r", saved)
    found = read_light(tmp_path / "r")
    assert serialize_light(found) == serialize_light(saved)
    assert light_identity(found) == light_identity(saved)
    assert repr(found) == "<LightModel: light, reorders 3 hits>"
    before = (tmp_path / "r" / MANIFEST).read_bytes()
    save_light(tmp_path / "r", saved)
    assert (tmp_path / "r" / MANIFEST).read_bytes() == before  # no times


def test_the_identity_depends_on_what_is_computed():
    model = light_model()
    same = dataclasses.replace(model, settings={"a": 1})
    assert light_identity(model) == light_identity(same)
    for changes in ({"candidates": 4}, {"network": network(1)}, FAR_FIRST):
        assert light_identity(model) != light_identity(dataclasses.replace(model, **changes))


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS])
def test_damage_is_always_noticed(tmp_path, name):
    save_light(tmp_path / "r", light_model())
    path = tmp_path / "r" / name
    data = path.read_bytes()
    places = np.random.default_rng(0).integers(len(data), size=40).tolist()
    for place in [0, 7, len(data) - 2, *places]:
        flipped = bytearray(data)
        flipped[place] ^= 1
        for damaged in (bytes(flipped), data[:place]):
            path.write_bytes(damaged)
            with pytest.raises(UserError):
                read_light(tmp_path / "r")
    path.unlink()
    with pytest.raises(UserError):
        read_light(tmp_path / "r")
    path.mkdir()
    with pytest.raises(UserError):
        read_light(tmp_path / "r")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "qpr_jax reranker 0", "expected format"),
        ("features", ["length"], "features of this version"),
        ("features", [[[]]], "features of this version"),
        ("candidates", "50", "expected int as `candidates`"),
        ("candidates", True, "expected int as `candidates`"),
        ("candidates", 0, "expected 1 to 1000 candidates"),
        ("candidates", 10**30, "expected 1 to 1000 candidates"),
        ("encoder", None, "expected str as `encoder`"),
    ],
)
def test_a_sealed_manifest_of_other_facts_is_refused(tmp_path, name, value, message):
    save_light(tmp_path / "r", light_model())
    facts = json.loads((tmp_path / "r" / MANIFEST).read_text())
    del facts["files"]
    write_manifest(tmp_path / "r", [WEIGHTS], **facts | {name: value})
    with pytest.raises(UserError, match=message):
        read_light(tmp_path / "r")


def test_sealed_tensors_of_other_shapes_are_refused(tmp_path):
    save_light(tmp_path / "r", light_model())
    facts = json.loads((tmp_path / "r" / MANIFEST).read_text())
    del facts["files"]
    tensors = load_file(tmp_path / "r" / WEIGHTS)

    def refused(changed: dict[str, np.ndarray]) -> None:
        save_file(changed, tmp_path / "r" / WEIGHTS)
        write_manifest(tmp_path / "r", [WEIGHTS], **facts)
        with pytest.raises(UserError):
            read_light(tmp_path / "r")

    for name, array in tensors.items():
        refused({key: value for key, value in tensors.items() if key != name})
        others = [array[:0], array[None].copy(), np.zeros((1, 1, 1, 0)), array.astype(np.int16)]
        if array.dtype.kind == "f" and array.size:
            others.append(np.full_like(array, math.nan))
        for other in others:
            refused({**tensors, name: other})
    for points in ([[1.0, 0.0], [0.1, 0.2]], [[0.0, 1.0], [0.3, 0.2]], [[0.0], [1.5]]):
        refused({**tensors, "calibration": np.array(points)})
    (tmp_path / "r" / WEIGHTS).write_bytes(b"\xff" * 7 + b"\x7f")  # a header of exabytes
    write_manifest(tmp_path / "r", [WEIGHTS], **facts)
    with pytest.raises(UserError):
        read_light(tmp_path / "r")


def test_no_other_model_is_saved(tmp_path):
    cut = light_model().network._replace(bias=np.zeros(3, np.float32))
    for changes in ({"network": cut}, {"candidates": 0}, {"word_weights": np.zeros(3)}):
        with pytest.raises(UserError):
            save_light(tmp_path / "r", light_model(**changes))
    assert not (tmp_path / "r").exists()


def test_the_first_hits_are_ordered_by_score_and_the_others_follow():
    (found,) = reranker().rerank(["q"], [[hit._replace(payload={"a": hit.id}) for hit in HITS]])
    assert [(hit.id, hit.score) for hit in found] == [
        *((4, pytest.approx(0.7)), (5, pytest.approx(0.3)), (7, pytest.approx(0.1)), (1, None))
    ]
    assert [hit.distance for hit in found] == [0.3, 0.2, 0.1, 0.4]
    assert [hit.payload for hit in found] == [{"a": hit.id} for hit in found]


def test_queries_do_not_mix_and_may_have_no_hits():
    found = reranker().rerank(["a", "b", "c"], [HITS[:2], [], HITS[2:]])
    assert [[hit.id for hit in hits] for hits in found] == [[5, 7], [], [1, 4]]
    assert reranker().rerank([], []) == []


def test_shuffled_hits_have_the_same_order():
    hits = [Hit(i, "abcd", 0.5) for i in range(20)] + HITS
    whole = reranker(candidates=30, network=network())
    (expected,) = whole.rerank(["q"], [hits])
    assert [hit.id for hit in expected if hit.question == "abcd"] == [*range(20)]  # ties
    for seed in range(5):
        mixed = [hits[i] for i in np.random.default_rng(seed).permutation(len(hits))]
        assert whole.rerank(["q"], [mixed]) == [expected]


def test_ties_and_scores_that_are_no_numbers_have_one_order():
    scores = np.array([np.nan, 1.0, np.inf, np.nan, np.inf, 1.0, -np.inf])
    distances = np.array([0.2, 0.5, 0.4, 0.1, 0.4, 0.3, 0.0], np.float32)
    for kept, expected in (
        (np.arange(7), [2, 4, 5, 1, 6, 3, 0]),
        (np.array([0, 1, 3]), [1, 3, 0]),
        (np.array([4, 2]), [2, 4]),
    ):
        for seed in range(5):
            at = kept[np.random.default_rng(seed).permutation(len(kept))]
            found = rank_hits(scores[at], distances[at], at, np.array([0, len(at)]))
            assert at[found].tolist() == expected
    assert rank_hits(*np.zeros((3, 0)), np.array([0])).tolist() == []
    assert rank_hits(*np.zeros((3, 2)), np.array([0, 0, 1, 1, 2])).tolist() == [0, 1]


def test_a_hit_with_the_text_of_the_query_is_first_and_changes_no_other():
    hits = [Hit(i, text, 0.1 * i) for i, text in enumerate(CORPUS[:4])]
    whole = reranker(candidates=10, network=network())
    (plain,) = whole.rerank([CORPUS[8]], [hits])
    (found,) = whole.rerank([CORPUS[8]], [[*hits, Hit(9, CORPUS[8], 3.0)]])
    assert (found[0].id, found[0].score) == (9, 1.0)
    assert found[1:] == plain


def test_explain_gives_features_score_and_probability():
    parts = reranker().explain("q", HITS)
    assert [*parts[0]] == [*light_model().features, "score", "probability"]
    assert [p["score"] for p in parts] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [p["probability"] for p in parts] == pytest.approx([0.1, 0.3, 0.7, 0.9])


def test_inner_products_are_read_as_squares():
    squares = [hit._replace(distance=2 + 2 * hit.distance) for hit in HITS]
    (expected,) = reranker(network=network()).rerank(["what"], [squares])
    model = light_model(**FAR_FIRST | {"network": network()})
    (found,) = LightReranker(model, WordEncoder(), metric="ip").rerank(["what"], [HITS])
    assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in expected]


class Scorer:
    identity = "a cross-encoder"

    def predict(self, pairs):
        return np.array([-len(question) for _, question in pairs], np.float32)


def test_a_stacked_model_reads_the_logit():
    columns = len(light_model(cross_encoder="x").features)
    made = Network(*(np.zeros_like(array) for array in network(columns=columns)))
    last = (np.arange(columns) == columns - 1).astype(np.float32)
    made = made._replace(scale=0.1 * last, linear=last)
    stacked = light_model(cross_encoder="a cross-encoder", network=made, candidates=4)
    with pytest.raises(UserError, match="expected the cross-encoder"):
        LightReranker(stacked, WordEncoder())
    (found,) = LightReranker(stacked, WordEncoder(), scorer=Scorer()).rerank(["q"], [HITS])
    assert [len(hit.question) for hit in found] == [0, 3, 4, 5]


def test_it_works_after_a_fork():
    """Many queries use several threads, none of which a forked process has."""
    whole = reranker(network=network())
    many = ["what is a car"] * 200
    expected = whole.rerank(many, [HITS] * 200)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, b"x" if whole.rerank(many, [HITS] * 200) == expected else b"-")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"x"
