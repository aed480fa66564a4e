"""A run with an encoder, with and without a calibration."""

import pytest

from qpr_jax.encoders.load import load_encoder
from qpr_jax.reranking.calibration import CALIBRATION, save_calibration
from qpr_jax.reranking.light import LIGHT, read_light
from tests.reranking.models import pair_calibration
from tests.runs import write_encoder, write_reranker


def calibrate(folder, light=None, middle=2.0):
    """Write a calibration: .5 at a squared distance of `middle`."""
    identity = load_encoder(folder / "export").identity
    known = pair_calibration(identity, light, middle)
    save_calibration(folder / "export" / CALIBRATION, known)
    return known


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
