"""Cross-encoders: folders of sentence-transformers both ways, scores, and the order of hits.

tiny_cross_encoder/ was saved by sentence-transformers 6.2 (random weights, at most 24 tokens);
golden.json has its logits and scores.
"""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from qpr_jax.encoders.load import load_encoder
from qpr_jax.errors import UserError
from qpr_jax.pair_model.cross_encoder import from_encoder, read_cross_encoder, save_cross_encoder
from qpr_jax.pair_model.fitting import calibrate
from tests.refused import check_refused

TINY = pathlib.Path(__file__).parent / "tiny_cross_encoder"
TINY_BERT = TINY.parent.parent / "encoders" / "tiny_bert"
GOLDEN = json.loads((TINY / "golden.json").read_text())
PAIRS = [tuple(pair) for pair in GOLDEN["pairs"]]


@pytest.fixture(scope="module")
def model():
    return read_cross_encoder(TINY)


@pytest.fixture
def folder(tmp_path):
    """A copy that a test may change."""
    return pathlib.Path(shutil.copytree(TINY, tmp_path / "model"))


def change(folder, name, **values):
    path = folder / name
    known = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in known.items() if v is not None}))


def test_scores_are_those_of_sentence_transformers(model):
    logits = model.predict(PAIRS)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, GOLDEN["logits"], rtol=0, atol=1e-5)
    # The order of pairs and their number change none.
    order = np.random.default_rng(0).permutation(len(PAIRS))
    again = model.predict([PAIRS[i] for i in order] * 3)
    np.testing.assert_allclose(again, np.tile(logits[order], 3), rtol=0, atol=1e-6)
    assert model.max_tokens == 24
    assert abs(logits[0] - logits[1]) > 1e-2  # the order of the two questions matters
    assert model.predict([]).shape == (0,)


def test_a_saved_folder_is_the_same_model(model, tmp_path):
    save_cross_encoder(tmp_path / "a", model)
    again = read_cross_encoder(tmp_path / "a")
    assert again.fingerprint == model.fingerprint
    assert again.calibration is None
    (tmp_path / "a").rename(tmp_path / "export")
    assert read_cross_encoder(tmp_path).fingerprint == model.fingerprint  # a run
    (tmp_path / "export").rename(tmp_path / "a")
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))
    for name in ("config.json", "config_sentence_transformers.json", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (TINY / name).read_bytes()
    path = tmp_path / "a" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        read_cross_encoder(tmp_path / "a")


V3_LACKS = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")


def test_a_folder_of_an_old_version_is_the_same_model(folder):
    for name in V3_LACKS:  # as ms-marco-MiniLM-L6-v2 on the hub
        (folder / name).unlink()
    logits = read_cross_encoder(folder).predict(PAIRS[:2])
    np.testing.assert_allclose(logits, GOLDEN["logits"][:2], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("config.json", {"architectures": ["RobertaForSequenceClassification"]}, "Roberta"),
        ("config.json", {"architectures": None}, "got None"),
        ("config.json", {"id2label": {"0": "a", "1": "b"}}, "one output, got 2"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "no prompt"),
        ("tokenizer_config.json", {"model_max_length": "many"}, "3 tokens or more"),
    ],
)
def test_other_models_are_refused_in_one_line(folder, name, values, message):
    change(folder, name, **values)
    check_refused(read_cross_encoder, (folder, message))


def test_weights_in_another_format_and_other_modules_are_refused(folder):
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 1, "name": "1", "path": "1_Dense", "type": "x.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules, dense]))
    check_refused(read_cross_encoder, (folder, "got Transformer, Dense"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    check_refused(read_cross_encoder, (folder, r"model\.safetensors: expected a file"))
    check_refused(load_encoder, (TINY, "got a cross-encoder"))


def test_a_new_one_has_the_weights_of_its_encoder():
    encoder = load_encoder(TINY_BERT)
    new = from_encoder(encoder, max_tokens=20, seed=0)
    assert new.max_tokens == 20
    np.testing.assert_array_equal(new.weights["embedding"], encoder.weights["embedding"])
    other = from_encoder(encoder, max_tokens=20, seed=1)
    assert other.fingerprint != new.fingerprint
    assert (new.predict(PAIRS) != other.predict(PAIRS)).all()
    assert dataclasses.replace(new, max_tokens=19).fingerprint != new.fingerprint


def test_calibration_is_kept_and_damage_is_found(model, tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=200)
    points = calibrate(logits, rng.random(200) < 1 / (1 + np.exp(-3 * logits)))
    assert (np.diff(points) >= 0).all()
    calibrated = dataclasses.replace(model, calibration=points)
    assert calibrated.fingerprint == model.fingerprint
    save_cross_encoder(tmp_path / "a", calibrated)
    np.testing.assert_array_equal(read_cross_encoder(tmp_path / "a").calibration, points)
    found = calibrated.probabilities(np.array([-9.0, 0.0, 9.0]))
    assert (np.diff(found) >= 0).all()
    assert 0 <= found[0] < found[-1] <= 1
    save_cross_encoder(tmp_path / "b", model)
    (tmp_path / "b" / "manifest.json").unlink()
    for wrong in ([[1, 0], [0, 1]], [[0, 1], [0, 1.1]], [[0, 1], [-0.1, 1]], [[], []]):
        text = json.dumps(dict(zip(("logits", "probabilities"), wrong, strict=True)))
        (tmp_path / "b" / "calibration.json").write_text(text)
        check_refused(read_cross_encoder, (tmp_path / "b", "ascending"))


def test_pairs_of_one_probability_are_in_the_order_of_their_logits(model):
    flat = dataclasses.replace(model, calibration=np.array([[-9.0, 9.0], [0.5, 0.5]]))
    texts = [*zip(*PAIRS, strict=True)]
    found, raw = flat.logits(*texts, np.zeros(len(PAIRS))), model.predict(PAIRS)
    assert (np.argsort(found) == np.argsort(raw)).all()
    np.testing.assert_allclose(found, 0, atol=1e-4)
