"""Studies as a user starts them."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.xla import QUICK_XLA

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture
def run_study(tmp_path, generated_data):
    """Run a study's program on generated data: (module, *flags) -> (status, standard error)."""

    def run(module: str, *flags: str, data: pathlib.Path = generated_data) -> tuple[int, str]:
        changed = {
            "PYTHONPATH": str(ROOT),
            "QPR_DATA_DIR": str(data),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "GLIBC_TUNABLES": "",
            "XLA_FLAGS": QUICK_XLA,
        }
        folders = [f"--workdir={tmp_path / 'runs' / 'rows'}", f"--results={tmp_path / 'results'}"]
        done = subprocess.run(
            [sys.executable, "-m", f"experiments.{module}", *folders, *flags],
            env=os.environ | changed,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return done.returncode, done.stderr

    return run
