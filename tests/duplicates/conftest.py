"""The run of these tests has a calibration of distances."""

import shutil

import pytest

from tests.runs import write_words


@pytest.fixture(scope="session")
def run(calibrated_run):
    return calibrated_run


@pytest.fixture(scope="session")
def reranked_run(encoder_run, tmp_path_factory):
    """With a words model."""
    folder = shutil.copytree(encoder_run, tmp_path_factory.mktemp("reranked") / "run")
    write_words(folder)
    return folder
