import dataclasses
import json
import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from qpr_jax.encoders.cnn_encoder import CnnEncoder, read_cnn, round_to_half
from qpr_jax.encoders.load import read_encoder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.files import write_manifest
from tests.encoders.examples import QUESTIONS, VOCABULARY, cnn_encoder, cnn_weights

# Of the encoder of `test_the_identity_is_a_hash_of_what_decides_the_vectors`.
IDENTITY = "c568c0838318defb5422e6c9373775e1ae7c022f1fc507893e1ce32c1395551e"
WEIGHTS = "model.safetensors"


def save(folder: pathlib.Path, **changed) -> CnnEncoder:
    save_encoder(folder, cnn_encoder(**changed))
    return read_cnn(folder)


def test_the_identity_is_a_hash_of_what_decides_the_vectors(tmp_path):
    encoder = save(tmp_path / "a")
    ramps = {
        "embedding": np.arange(VOCABULARY.size * 2).reshape(-1, 2) / 7,
        "kernels": [np.arange(4).reshape(1, 2, 2) / 3],
        "biases": [np.arange(2) / 5],
        "projection": np.arange(6).reshape(2, 3) / 9,
    }
    assert cnn_encoder(**ramps).identity == IDENTITY
    assert cnn_encoder(**ramps, normalize=True).identity != IDENTITY
    first = encoder.identity
    assert len(first) == 64
    assert save(tmp_path / "b", settings={"other": 2}).identity == first
    (tmp_path / "a").rename(tmp_path / "moved")
    assert read_cnn(tmp_path / "moved").identity == first
    assert save(tmp_path / "c", max_tokens=21).identity != first
    other = {**cnn_weights(), "biases": cnn_weights(seed=1)["biases"]}
    assert save(tmp_path / "d", **other).identity != first


@pytest.mark.parametrize(
    "changed",
    [
        {"embedding": np.zeros((16, 6))},  # not the vocabulary's 17 rows
        {"embedding": np.zeros((17, 5))},  # not what the kernels take
        {"kernels": [np.zeros((3, 6, 5)), np.zeros((4, 6))]},
        {"kernels": [np.zeros((3, 6, 5)), np.zeros((0, 6, 2))]},
        {"biases": [np.zeros(5), np.zeros(3)]},
        {"projection": np.zeros((8, 7))},
        {"projection": np.zeros((7, 0))},
        {"projection": np.zeros(7)},
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, changed):
    """Compiled loops would read beyond the arrays."""
    with pytest.raises(UserError, match="do not fit each other and a vocabulary of 17 ids"):
        save(tmp_path, **changed)


BF16 = json.dumps({"embedding": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}})


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (WEIGHTS, b"none of these", "expected safetensors"),
        (
            WEIGHTS,
            len(BF16).to_bytes(8, "little") + BF16.encode() + bytes(2),
            "expected safetensors",
        ),
        ("vocabulary.json", b'{"words": ["a"], "bins": 4}', "do not fit each other"),
        ("settings.json", b"{", "expected JSON"),
        ("settings.json", b"[]", "expected the weights and settings"),
        ("settings.json", b'{"normalize": true, "settings": {}}', "'max_words'"),
    ],
)
def test_wrong_contents_with_a_correct_hash_are_refused(tmp_path, name, data, message):
    save_encoder(tmp_path, cnn_encoder())
    (tmp_path / name).write_bytes(data)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    write_manifest(tmp_path, list(manifest["files"]), format=manifest["format"])
    with pytest.raises(UserError, match=message):
        read_cnn(tmp_path)


def test_a_folder_of_another_format_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"expected a folder with a manifest\.json, found none"):
        read_cnn(tmp_path)
    with pytest.raises(UserError, match=r"expected an encoder: a manifest\.json with one of"):
        read_encoder(tmp_path)
    write_manifest(tmp_path, [], format="another format 3")
    with pytest.raises(UserError, match="expected format 'qpr_jax model 1', got 'another"):
        read_cnn(tmp_path)
    with pytest.raises(UserError, match=r"qpr_jax model 1.*; got .another format 3.; "):
        read_encoder(tmp_path)


def test_weights_of_half_precision_take_half_the_space_and_keep_the_identity(tmp_path):
    whole = cnn_encoder()
    arrays = {name: getattr(whole, name) for name in ("embedding", "projection")}
    half = dataclasses.replace(
        whole,
        **{name: round_to_half(array) for name, array in arrays.items()},
        kernels=tuple(map(round_to_half, whole.kernels)),
        biases=tuple(map(round_to_half, whole.biases)),
    )
    assert half.identity != whole.identity
    save_encoder(tmp_path / "half", half)
    save_encoder(tmp_path / "whole", whole)
    for name, dtype in (("half", np.float16), ("whole", np.float32)):
        stored = load_file(tmp_path / name / WEIGHTS)
        assert {array.dtype for array in stored.values()} == {np.dtype(dtype)}
    read = read_cnn(tmp_path / "half")
    assert read.identity == half.identity
    assert read.embedding.dtype == np.float32
    np.testing.assert_array_equal(read.encode(QUESTIONS), half.encode(QUESTIONS))
    np.testing.assert_allclose(half.encode(QUESTIONS), whole.encode(QUESTIONS), atol=1e-2)
    with pytest.raises(UserError, match=r"`encoder.stored_dtype`: expected weights of half"):
        round_to_half(np.array([70_000.0], np.float32))
