"""The teacher of `open_student`: an MPNet in 8 bits."""

import json
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

from experiments.eight_bits import _MPNET_NAMES, buckets, in_eight_bits, read_mpnet
from qpr_jax.encoders.transformer_encoder import read_transformer
from tests.encoders.examples import TINY

TEXTS = ["how do i reset my password", "a", "the mouse of the other computer does not work"]


def mpnet_of_bert(folder, bias):
    """Write a BERT as an MPNet with these numbers of distances, float32 [32, heads]."""
    shutil.copytree(TINY, folder)
    tensors = load_file(folder / "model.safetensors")
    types = tensors.pop("embeddings.token_type_embeddings.weight")
    positions = "embeddings.position_embeddings.weight"
    unused = np.ones((2, types.shape[1]))
    tensors[positions] = np.concatenate([unused, tensors[positions] + types[0]])
    for theirs, ours in _MPNET_NAMES.items():
        tensors = {name.replace(ours, theirs): tensor for name, tensor in tensors.items()}
    tensors["encoder.relative_attention_bias.weight"] = bias
    whole = {name: np.ascontiguousarray(t, np.float32) for name, t in tensors.items()}
    save_file(whole, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mpnet", "max_position_embeddings": len(tensors[positions])}
    (folder / "config.json").write_text(json.dumps(config))
    return read_mpnet(folder)


def heads():
    return json.loads((TINY / "config.json").read_text())["num_attention_heads"]


def test_without_distances_an_mpnet_is_a_bert(tmp_path):
    found = mpnet_of_bert(tmp_path / "model", np.zeros((32, heads())))
    expected = in_eight_bits(read_transformer(TINY)).encode(TEXTS)
    np.testing.assert_allclose(found.encode(TEXTS), expected, atol=1e-5)


def test_attention_adds_the_number_of_a_distance(tmp_path):
    """With a large one for the next token, attention reads that token alone."""
    bias = np.zeros((32, heads()))
    bias[17] = 1e4
    changed = mpnet_of_bert(tmp_path / "next", bias).encode(["how do i reset", "how i do reset"])
    bias[:] = 1e4  # equal for all distances: as none
    equal = mpnet_of_bert(tmp_path / "equal", bias).encode(TEXTS)
    expected = in_eight_bits(read_transformer(TINY)).encode(["how do i reset", *TEXTS])
    assert np.abs(changed[0] - expected[0]).max() > 1e-3
    assert np.abs(changed[0] - changed[1]).max() > 1e-3
    np.testing.assert_allclose(equal, expected[1:], atol=1e-3)


def test_near_distances_have_a_bucket_each_and_far_ones_share():
    found = buckets(200)
    np.testing.assert_array_equal(np.diag(found), 0)
    assert found[0, :10].tolist() == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24]
    assert found[:10, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert [found[0, i] for i in (11, 12, 127, 128, 199)] == [24, 25, 31, 31, 31]
    np.testing.assert_array_equal(found.T[found > 0] % 16, found[found > 0] % 16)
