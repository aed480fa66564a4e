"""Probabilities of found pairs: their curves, their file, their place with the encoder."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST
from qpr_jax.publishing import publish
from qpr_jax.reranking.light import LIGHT, read_light
from qpr_jax.reranking.pair_calibration import (
    CALIBRATION,
    CURVES,
    PairCalibration,
    light_identity,
    read_calibration,
    same_calibration,
    save_calibration,
    threshold_of_precision,
)
from qpr_jax.reranking.second_stage import read_stages
from qpr_jax.retriever import Retriever
from tests.runs import write_encoder, write_reranker

CURVE = np.array([[-4.0, -2.0, -1.0, 0.0], [0.0, 0.2, 0.2, 0.9]])


def calibration(encoder="an encoder", **changes):
    return PairCalibration(encoder, CURVE, 2.0, **changes)


def test_distances_become_probabilities_and_back():
    known = calibration()
    found = known.probabilities(np.array([0, 0.5, 1.5, 3, 9], np.float32))
    assert found == pytest.approx([0.9, 0.55, 0.2, 0.1, 0])
    for probability, distance in ((0.9, 0), (0.55, 0.5), (0.2, 2), (0.1, 3), (0, 4)):
        assert known.distance_at(probability) == pytest.approx(distance)
    for probability in np.random.default_rng(0).uniform(0, 0.9, 200):
        assert known.probabilities(np.array([known.distance_at(probability)])) >= probability
    with pytest.raises(UserError, match=r"at most 0\.9000.* got 0\.95; lower `threshold`"):
        known.distance_at(0.95)
    with pytest.raises(UserError, match="got one of distances alone"):
        known.light_probabilities(np.zeros(1))
    both = calibration(light=np.array([[0.0, 1.0], [0.0, 1.0]]), reranker="r")
    assert both.light_probabilities(np.array([0.25])) == [0.25]


def test_the_one_before_is_kept(tmp_path):
    light = {"light": np.array([[0.0, 1.0], [0.0, 1.0]]), "reranker": "r"}
    for before in (calibration(), calibration(**light)):
        for changes in ({}, light):
            known = calibration(**changes, before=before)
            save_calibration(tmp_path / "c", known)
            found = read_calibration(tmp_path / "c")
            assert same_calibration(found, known)
            assert same_calibration(found.before, before)
            assert not same_calibration(found, calibration(**changes))
            assert found.identity(light=False) == before.identity(light=False)


def test_the_lowest_threshold_with_a_mean_probability():
    p = np.array([0.5, 1.0, 0.8, 0.5, 0.1])
    assert threshold_of_precision(p, 0.9) == 0.8
    assert threshold_of_precision(p, 0.7) == 0.5  # both pairs of .5 are found together
    assert threshold_of_precision(p, 0.1) == 0.1
    assert threshold_of_precision(p, 0.9, np.array([1, 1, 9, 1, 1.0])) == 1.0
    with pytest.raises(UserError, match="lower `precision`"):
        threshold_of_precision(p[2:], 0.9)
    with pytest.raises(UserError, match="got no pairs"):
        threshold_of_precision(p[:0], 0.9)


def test_a_calibration_is_read_as_it_was_saved(tmp_path):
    known = calibration(light=CURVE / 2, reranker="r", settings={"questions": 7})
    save_calibration(tmp_path / "c", known)
    found = read_calibration(tmp_path / "c")
    assert same_calibration(found, known)
    assert not same_calibration(found, calibration(light=CURVE, reranker="r", settings={}))
    assert repr(found) == "<PairCalibration: by distance and re-ranker, up to 2>"


@pytest.mark.parametrize(
    "changes",
    [
        {"distance": CURVE[:, ::-1]},
        {"distance": CURVE * 2},
        {"distance": CURVE[:, :0]},
        {"distance": CURVE.astype(np.float32)},
        {"light": CURVE},
        {"reranker": "r"},
        {"reach": float("nan")},
        {"reach": -1.0},
    ],
)
def test_no_other_calibration_is_saved(tmp_path, changes):
    with pytest.raises(UserError):
        save_calibration(tmp_path / "c", dataclasses.replace(calibration(), **changes))
    assert not (tmp_path / "c").exists()


def test_a_damaged_calibration_is_an_error(tmp_path):
    path = tmp_path / "c"
    with pytest.raises(UserError, match="found none"):
        read_calibration(path)
    save_calibration(path, calibration())
    data, manifest = (path / CURVES).read_bytes(), (path / MANIFEST).read_text()
    (path / CURVES).write_bytes(data[:-1] + b"\x01")
    with pytest.raises(UserError, match="the bytes differ"):
        read_calibration(path)
    (path / CURVES).write_bytes(data)
    (path / MANIFEST).write_text(json.dumps(json.loads(manifest) | {"reach": "far"}))
    with pytest.raises(UserError, match="expected float as `reach`"):
        read_calibration(path)


@pytest.fixture
def run(tmp_path):
    """A run with an encoder, a re-ranker and a calibration of both."""
    write_encoder(tmp_path / "run")
    model = write_reranker(tmp_path / "run")
    light = {"light": CURVE, "reranker": light_identity(model)}
    known = calibration(model.encoder, **light, settings={"questions": {"all": 7, "curve": []}})
    save_calibration(tmp_path / "run" / "export" / CALIBRATION, known)
    return tmp_path / "run"


def test_it_goes_where_its_encoder_goes(run, tmp_path):
    encoder, stages = read_stages(run)
    known = stages.require_calibration()
    assert stages.calibration_facts() == {"light": True, "reach": 2.0, "questions": {"all": 7}}
    publish(run / "export", tmp_path / "published")
    card = (tmp_path / "published" / "README.md").read_text()
    assert "pairs; another corpus needs verdicts (`qpr calibrate`)" in card
    retriever = Retriever.build(["how to cook rice", "what is rice"], run=tmp_path / "published")
    retriever.save(tmp_path / "saved")
    loaded = Retriever.load(tmp_path / "saved")
    assert same_calibration(loaded.second_stages.require_calibration(), known)
    explained = loaded.explain("how to cook rice", "what is rice")
    assert explained.pair_probability == pytest.approx(
        known.probabilities(np.array([explained.distance]))[0]
    )
    # A newer one of the folder itself stays.
    newer = dataclasses.replace(known, settings={"questions": 8})
    (folder,) = (path.parent for path in (tmp_path / "saved").glob(f"*/{CALIBRATION}"))
    save_calibration(folder / CALIBRATION, newer)
    loaded.compact()
    again = Retriever.load(tmp_path / "saved").second_stages.require_calibration()
    assert same_calibration(again, newer)
    assert encoder.identity == known.encoder


def test_a_run_without_one_searches_and_has_no_thresholds(run):
    shutil.rmtree(run / "export" / CALIBRATION)
    _, stages = read_stages(run)
    assert stages.calibration_facts() is None
    with pytest.raises(UserError, match=r"got one without; .* with `qpr calibrate`"):
        stages.require_calibration()


def test_one_of_another_encoder_or_re_ranker_is_an_error(run):
    path = run / "export" / CALIBRATION
    known = read_calibration(path)
    save_calibration(path, dataclasses.replace(known, encoder="another"))
    with pytest.raises(UserError, match="got one of another"):
        read_stages(run)
    save_calibration(path, known)
    write_reranker(run, seed=1)
    with pytest.raises(UserError, match="expected a calibration of the re-ranker"):
        read_stages(run)
    shutil.rmtree(run / "export" / LIGHT)
    with pytest.raises(UserError, match=r"re-ranker \(none\)"):
        read_stages(run)
    save_calibration(path, dataclasses.replace(known, light=None, reranker=""))
    read_stages(run)


def test_the_identity_of_a_re_ranker_depends_on_what_it_computes(run):
    model = read_light(run / "export" / LIGHT)
    assert light_identity(model) == light_identity(dataclasses.replace(model, settings={"a": 1}))
    for changes in ({"candidates": 4}, {"calibration": CURVE}):
        assert light_identity(model) != light_identity(dataclasses.replace(model, **changes))
