"""Strict JAX on eight virtual CPU devices, and the real data where it is at hand."""

import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def quora_file() -> pathlib.Path:
    """The real pair file of `$QPR_DATA_DIR`; tests that need it are skipped without it."""
    folder = os.environ.get("QPR_DATA_DIR", "")
    path = pathlib.Path(folder, "quora", "quora_duplicate_questions.tsv")
    if not folder or not path.is_file():
        pytest.skip("needs $QPR_DATA_DIR/quora/quora_duplicate_questions.tsv")
    return path
