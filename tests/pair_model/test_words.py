"""The words model: the logit of two texts alone, and its folder."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, write_manifest
from qpr_jax.pair_model.features import BITS
from qpr_jax.pair_model.words import FEATURES, HIGHEST, LOWEST, WEIGHTS, read_words, save_words
from tests.pair_model.models import WORDS, WordEncoder, words_model

WEIGHTED = np.random.default_rng(3).normal(size=1 << BITS).astype(np.float32)
MODEL = words_model(word_weights=WEIGHTED, settings={"seed": 1})
TEXTS = st.lists(st.sampled_from([*WORDS, "rice", "not", "é", "03/04"]), max_size=5).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=9), st.randoms())
def test_a_logit_depends_on_the_two_texts_alone(pairs, random):
    first, second = ([*texts] for texts in zip(*pairs, strict=True))
    distances = np.array([random.uniform(0, 4) for _ in pairs], np.float32)
    logits = MODEL.logits(first, second, distances)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(MODEL.logits(second, first, distances), logits, rtol=1e-5)
    for i in range(len(pairs)):
        alone = MODEL.logits(first[i : i + 1], second[i : i + 1], distances[i : i + 1])
        assert alone.tobytes() == logits[i : i + 1].tobytes()


def test_blocks_do_not_change_bits():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 4)) for _ in range(90)]
    first, second = ([texts[i] for i in rng.integers(90, size=9000)] for _ in range(2))
    first.sort()  # so many that threads share them
    distances = rng.uniform(0, 4, 9000).astype(np.float32)
    whole = MODEL.logits(first, second, distances)
    parts = [slice(0, 7), slice(7, 4001), slice(4001, 9000)]
    found = [MODEL.logits(first[at], second[at], distances[at]) for at in parts]
    assert np.concatenate(found).tobytes() == whole.tobytes()
    assert len(MODEL.logits([], [], np.zeros(0, np.float32))) == 0


def test_the_network_equals_numpy():
    rows, network = np.random.default_rng(1).normal(size=(50, FEATURES)), MODEL.network
    z = ((rows - network.mean) * network.scale).clip(-4, 4)
    units = np.maximum(z @ network.hidden + network.bias, 0)
    expected = network.shift + z @ network.linear + units @ network.output
    np.testing.assert_allclose(network.logits(rows), expected, rtol=1e-4, atol=1e-4)


def test_texts_beyond_the_farthest_have_the_lowest_logit():
    near = dataclasses.replace(MODEL, farthest=1.0)
    found = near.logits(["car", "car"], ["price", "price"], np.array([0.8, 1.2]))
    assert LOWEST < found[0] < HIGHEST
    assert found[1] == LOWEST
    assert near.reach(0.5, np.zeros(1)) == 1.0
    assert near.without_words(np.array([0.8, 1.2]), np.zeros(2)).tolist() == [HIGHEST, LOWEST]


def test_a_folder_has_the_same_bits(tmp_path):
    save_words(tmp_path / "m", MODEL)
    found = read_words(tmp_path / "m", WordEncoder())
    pairs = ["what is", "car price"], ["a price", "is 2015"], np.array([0.5, 0.2])
    assert found.logits(*pairs).tobytes() == MODEL.logits(*pairs).tobytes()
    facts = ("encoder", "depth", "farthest", "settings")
    assert all(getattr(found, name) == getattr(MODEL, name) for name in facts)
    again = tmp_path / "again"
    save_words(again, found)
    for name in (MANIFEST, WEIGHTS):
        assert (again / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


@pytest.fixture
def folder(tmp_path):
    save_words(tmp_path / "m", words_model())
    return tmp_path / "m"


def check_damaged(folder):
    with pytest.raises(UserError):
        read_words(folder, WordEncoder())


def test_damage_is_always_noticed(folder):
    for path in (folder / MANIFEST, folder / WEIGHTS):
        data = path.read_bytes()
        places = np.random.default_rng(0).integers(len(data) - 1, size=20).tolist()
        for place in [0, 7, len(data) - 2, *places]:
            flipped = bytearray(data)
            flipped[place] ^= 1
            for damaged in (bytes(flipped), data[:place]):
                path.write_bytes(damaged)
                check_damaged(folder)
        path.unlink()
        check_damaged(folder)
        path.write_bytes(data)
    read_words(folder, WordEncoder())
    check_damaged(folder.parent / "none")


def facts_of(folder):
    facts = json.loads((folder / MANIFEST).read_text())
    del facts["files"]
    return facts


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "qpr_jax pair model words 0"},
        {"depth": True},
        {"depth": -1},
        {"depth": 10**30},
        {"farthest": "far"},
        {"farthest": 1},
    ],
    ids=str,
)
def test_a_sealed_manifest_of_other_facts_is_refused(folder, changes):
    write_manifest(folder, [WEIGHTS], **facts_of(folder) | changes)
    check_damaged(folder)


def test_sealed_tensors_of_other_shapes_or_numbers_are_refused(folder):
    facts, tensors = facts_of(folder), load_file(folder / WEIGHTS)

    def refused(changed):
        save_file(changed, folder / WEIGHTS)
        write_manifest(folder, [WEIGHTS], **facts)
        check_damaged(folder)

    for key, array in tensors.items():
        refused({other: value for other, value in tensors.items() if other != key})
        others = [array[None].copy(), np.zeros((1, 1, 1, 0)), array.astype(np.int16)]
        if array.dtype.kind == "f":
            others.append(np.full_like(array, np.nan))
        if key in ("frequencies.documents", "frequencies.mean_length"):
            others.append(-array)
        for other in others:
            refused({**tensors, key: other})
    (folder / WEIGHTS).write_bytes(b"\xff" * 7 + b"\x7f")  # a header of exabytes
    write_manifest(folder, [WEIGHTS], **facts)
    check_damaged(folder)
