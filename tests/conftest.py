"""Strict JAX on eight virtual CPU devices, and the real data where it is at hand."""

import csv
import functools
import os
import pathlib
import subprocess
import sys

from tests.xla import QUICK_XLA

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    # Most of the time of tests is compiling; this makes it quicker. See `optimised`.
    + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
if "PYTEST_XDIST_WORKER" in os.environ:  # threads of FAISS that wait for each other's cores
    os.environ["OMP_NUM_THREADS"] = "1"

import jax
import pytest

from qpr_jax.data.synthetic import synthetic_pairs

ROOT = pathlib.Path(__file__).parent.parent

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def quora_file() -> pathlib.Path:
    """The real pair file of `$QPR_DATA_DIR`; tests that need it are skipped without it."""
    folder = os.environ.get("QPR_DATA_DIR", "")
    path = pathlib.Path(folder, "quora", "quora_duplicate_questions.tsv")
    if not folder or not path.is_file():
        pytest.skip("needs $QPR_DATA_DIR/quora/quora_duplicate_questions.tsv")
    return path


@pytest.fixture(scope="session")
def generated_data(tmp_path_factory) -> pathlib.Path:
    """A folder as `$QPR_DATA_DIR`, with a pair file of a generated log."""
    folder = tmp_path_factory.mktemp("data")
    path = folder / "quora" / "quora_duplicate_questions.tsv"
    path.parent.mkdir()
    log = synthetic_pairs(clusters=800)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter="\t")
        rows.writerow(["id", "qid1", "qid2", "question1", "question2", "is_duplicate"])
        for number, ((a, b), duplicate) in enumerate(zip(log.pairs, log.is_duplicate, strict=True)):
            rows.writerow([number, a, b, log.questions[a], log.questions[b], int(duplicate)])
    return folder


@pytest.fixture(scope="session", autouse=True)
def _programs_compile_once(tmp_path_factory):
    """Programs that tests start compile each function but once among them."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp() / "compiled"
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        yield


@pytest.fixture
def optimised(monkeypatch):
    """What is compiled in the test is optimised as users have it, for tests of numbers."""
    options = {"xla_backend_optimization_level": 2}
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=options))


@pytest.fixture
def run_study(tmp_path, generated_data):
    """A study as a user meets it: (script, *flags) -> (status, what it says).

    On generated data, or in the folder `data`.
    """

    def run(script: str, *flags: str, data: pathlib.Path = generated_data) -> tuple[int, str]:
        path = tmp_path / "study.py"
        path.write_text(script)
        changed = {
            "PYTHONPATH": str(ROOT),
            "QPR_DATA_DIR": str(data),
            "GLIBC_TUNABLES": "",
            "XLA_FLAGS": QUICK_XLA,
        }
        places = [f"--workdir={tmp_path / 'runs' / 'rows'}", f"--results={tmp_path / 'results'}"]
        done = subprocess.run(
            [sys.executable, str(path), *places, *flags],
            env=os.environ | changed,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stderr

    return run


@pytest.fixture(scope="session")
def spark_master():
    """Where Spark runs in tests."""
    import shutil

    if shutil.which("java") is None:
        pytest.skip("needs Java 17 for Spark")
    return "local[2]"
