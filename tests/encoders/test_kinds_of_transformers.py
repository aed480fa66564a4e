"""RoBERTas and MPNets: the tiny BERT with other names of tensors, and numbers of distances."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments.eight_bits import in_eight_bits
from qpr_jax.encoders.sentence_transformers import _OF_MPNET
from qpr_jax.encoders.transformer_encoder import read_transformer
from qpr_jax.errors import UserError
from qpr_jax.models.bert import distance_buckets
from qpr_jax.training.config import load_config
from qpr_jax.training.model_families import read_start
from tests.encoders.examples import TINY

TEXTS = ["how do i learn python", "a", "what is the best way to learn python quickly"]
HEADS, BUCKETS = 4, 32
# Of `AutoModel` of transformers 5.24.0, pooled by the mean, of these folders: first components.
ROBERTA = [
    [0.045022, 0.305812, -0.096865, -0.361581],
    [0.044809, 0.300325, -0.069642, -0.360015],
    [0.045177, 0.300386, -0.087377, -0.363341],
]
MPNET = [
    [0.04502, 0.302888, -0.093214, -0.361786],
    [0.045016, 0.303026, -0.079979, -0.361356],
    [0.045193, 0.29986, -0.087422, -0.363516],
]


def changed(folder, kind, bias=None, prefix=""):
    """Write the tiny BERT as another kind; bias: float32 [BUCKETS, HEADS] of an MPNet."""
    shutil.copytree(TINY, folder)
    tensors = load_file(folder / "model.safetensors")
    positions = "embeddings.position_embeddings.weight"
    tensors[positions] = np.concatenate([np.ones((2, 16)), tensors[positions]])
    if kind == "mpnet":
        tensors[positions] += tensors.pop("embeddings.token_type_embeddings.weight")[0]
        for theirs, ours in _OF_MPNET.items():
            tensors = {name.replace(ours, theirs): tensor for name, tensor in tensors.items()}
        tensors["encoder.relative_attention_bias.weight"] = bias
    whole = {prefix + name: np.ascontiguousarray(t, np.float32) for name, t in tensors.items()}
    save_file(whole, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": kind, "max_position_embeddings": 42, "pad_token_id": 1}
    config |= {"relative_attention_num_buckets": BUCKETS} if kind == "mpnet" else {}
    (folder / "config.json").write_text(json.dumps(config))
    return read_transformer(folder)


def distances():
    return np.random.default_rng(0).normal(size=(BUCKETS, HEADS))


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "camembert", "mpnet"])
def test_vectors_are_those_of_transformers(tmp_path, kind):
    encoder = changed(tmp_path / "model", kind, distances())
    found = encoder.encode(TEXTS)
    np.testing.assert_allclose(found[:, :4], MPNET if kind == "mpnet" else ROBERTA, atol=2e-6)
    padded = encoder.encode([TEXTS[0] + " now" * 9, TEXTS[1]])
    np.testing.assert_allclose(padded[1], found[1], atol=1e-6)


def test_tensors_may_have_the_prefix_roberta(tmp_path):
    one = changed(tmp_path / "one", "xlm-roberta")
    other = changed(tmp_path / "other", "xlm-roberta", prefix="roberta.")
    np.testing.assert_array_equal(one.encode(TEXTS), other.encode(TEXTS))


@pytest.mark.parametrize("kind", ["xlm-roberta", "mpnet"])
def test_eight_bits_change_little(tmp_path, kind):
    encoder = changed(tmp_path / "model", kind, distances())
    found = in_eight_bits(encoder).encode(TEXTS)
    assert (found * encoder.encode(TEXTS)).sum(axis=1).min() > 0.99


def test_a_training_refuses_what_begins_with_token_0(tmp_path):
    changed(tmp_path / "model", "mpnet", distances())
    config = load_config("fine_tune", {"encoder.pretrained": str(tmp_path / "model")})
    with pytest.raises(UserError, match="got the kind mpnet"):
        read_start(config)


def test_without_room_behind_padding_it_is_refused(tmp_path):
    changed(tmp_path / "model", "roberta")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text()) | {"max_position_embeddings": 2}
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"max_position_embeddings.*from 3"):
        read_transformer(path.parent)


def test_near_distances_have_a_bucket_each_and_far_ones_share():
    found = distance_buckets(200, BUCKETS)
    np.testing.assert_array_equal(np.diag(found), 0)
    assert found[0, :10].tolist() == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24]
    assert found[:10, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert [found[0, i] for i in (11, 12, 127, 128, 199)] == [24, 25, 31, 31, 31]
    np.testing.assert_array_equal(found.T[found > 0] % 16, found[found > 0] % 16)
