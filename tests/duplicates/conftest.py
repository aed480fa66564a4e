"""The run of these tests has a calibration of distances."""

import shutil

import pytest

from tests.runs import calibrate, write_reranker


@pytest.fixture(scope="session")
def run(calibrated_run):
    return calibrated_run


@pytest.fixture(scope="session")
def reranked_run(encoder_run, tmp_path_factory):
    """With a re-ranker and its calibration."""
    folder = shutil.copytree(encoder_run, tmp_path_factory.mktemp("reranked") / "run")
    calibrate(folder, write_reranker(folder))
    return folder
