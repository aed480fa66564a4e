"""A run with an encoder, with and without a calibration."""

import numpy as np
import pytest

from qpr_jax.reranking.calibration import CALIBRATION, PairCalibration, save_calibration
from qpr_jax.reranking.light import LIGHT, read_light
from tests.runs import write_encoder, write_reranker

REACH = 4.0


def calibrate(folder, light=None, most=1.0):
    """Write a calibration: probability `most` at distance 0, 0 at REACH."""
    from qpr_jax.encoders.load import read_encoder

    identity = read_encoder(folder / "export").identity
    curve = np.array([[-REACH, 0.0], [0.0, most]])
    more = {}
    if light is not None:
        more = {"light": np.array([[-20.0, 20.0], [0.0, 1.0]]), "reranker": light.identity}
    save_calibration(
        folder / "export" / CALIBRATION, PairCalibration(identity, curve, REACH, **more)
    )


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    write_encoder(folder)
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """With a calibration of distances."""
    folder = tmp_path_factory.mktemp("calibrated")
    write_encoder(folder)
    calibrate(folder)
    return folder


@pytest.fixture(scope="session")
def reranked_run(tmp_path_factory):
    """With a re-ranker and its calibration."""
    folder = tmp_path_factory.mktemp("reranked")
    write_encoder(folder)
    write_reranker(folder)
    calibrate(folder, read_light(folder / "export" / LIGHT))
    return folder
