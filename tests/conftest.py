"""Strict JAX on eight virtual CPU devices, and the real data where it is at hand."""

import fcntl
import functools
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Callable

from tests.xla import TEST_XLA

if sys.dont_write_bytecode:  # else each program that a test starts compiles the sources of JAX
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(pathlib.Path(__file__).parent.parent / ".cache" / "bytecode")
os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix or ""
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
# Before JAX, FAISS and numba are imported; programs that tests start inherit all of it.
os.environ["JAX_PLATFORMS"] = "cpu"
# Once: a worker of pytest-xdist inherits them, and flags that stand twice are another key in the
# cache of what is compiled.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "").removesuffix(TEST_XLA) + TEST_XLA
# What one run of the tests compiles, the next reads.
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ.get(
    "JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parent.parent / ".cache" / "jax")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
# One thread each: pytest-xdist starts a worker a core, and idle threads spin on others' cores.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["NUMBA_NUM_THREADS"] = "1"
os.environ["PJRT_NPROC"] = "1"  # XLA's threads within an operation

import hypothesis
import jax
import pytest

from qpr_jax.data.generated_questions import synthetic_pairs
from qpr_jax.files import read_json
from tests.tables import HEADER, write_table

ROOT = pathlib.Path(__file__).parent.parent

jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile("tests", deadline=None)  # a first example may compile
hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="session")
def quora_file() -> pathlib.Path:
    """The real pair file of `$QPR_DATA_DIR`; tests that need it are skipped without it."""
    folder = os.environ.get("QPR_DATA_DIR", "")
    path = pathlib.Path(folder, "quora", "quora_duplicate_questions.tsv")
    if not folder or not path.is_file():
        pytest.skip("needs $QPR_DATA_DIR/quora/quora_duplicate_questions.tsv")
    return path


@pytest.fixture(scope="session")
def build_once(tmp_path_factory) -> Callable[[str, Callable[[pathlib.Path], None]], pathlib.Path]:
    """(name, build) -> a folder that `build(folder)` fills, once for all workers.

    Tests only read it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # its folder lies beside those of the other workers
        base = base.parent

    def shared(name: str, build: Callable[[pathlib.Path], None]) -> pathlib.Path:
        folder = base / "shared" / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder.parent / f"{name}.done"
            if not done.exists():  # a worker whose build failed leaves the error to the next, too
                shutil.rmtree(folder)
                folder.mkdir()
                build(folder)
                done.touch()
        return folder

    return shared


def _write_generated_log(folder: pathlib.Path) -> None:
    (folder / "quora").mkdir()
    log = synthetic_pairs(clusters=800)
    rows = [
        (number, a, b, log.questions[a], log.questions[b], int(duplicate))
        for number, ((a, b), duplicate) in enumerate(zip(log.pairs, log.is_duplicate, strict=True))
    ]
    write_table(folder / "quora" / "quora_duplicate_questions.tsv", HEADER, rows)


@pytest.fixture(scope="session")
def generated_data(build_once) -> pathlib.Path:
    """A folder as `$QPR_DATA_DIR`, with a pair file of a generated log."""
    return build_once("data", _write_generated_log)


@pytest.fixture(scope="session")
def finished(build_once):
    """A finished smoke run on two devices, and its report."""
    from qpr_jax.training.config import load_config
    from qpr_jax.training.run import train_and_evaluate

    def train(folder):
        config = load_config("synthetic_sdml:smoke")
        config.devices = 2
        report = train_and_evaluate(config, folder / "run")
        assert report == read_json(folder / "run" / "report.json")

    run = build_once("smoke", train) / "run"
    return run, read_json(run / "report.json")


@pytest.fixture(scope="session")
def encoder_run(tmp_path_factory) -> pathlib.Path:
    """The folder of an encoder alone, which tests only read."""
    from tests.runs import write_encoder

    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder, **{"index.factory": "IVF20,Flat"})
    return folder


@pytest.fixture(scope="session")
def calibrated_run(encoder_run, tmp_path_factory) -> pathlib.Path:
    """A copy of it, with a calibration of distances."""
    from tests.runs import calibrate

    folder = shutil.copytree(encoder_run, tmp_path_factory.mktemp("calibrated") / "run")
    calibrate(folder)
    return folder


@pytest.fixture(autouse=True)
def program_state(monkeypatch):
    """Undo what a program changes for its whole process: the log."""
    log = logging.getLogger("qpr_jax")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(log, name, getattr(log, name))


@pytest.fixture
def optimised(monkeypatch):
    """What is compiled in the test is optimised as users have it, for tests of numbers."""
    options = {
        "xla_backend_optimization_level": 2,
        "xla_llvm_disable_expensive_passes": False,
    }
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=options))


@pytest.fixture(scope="session")
def spark_master():
    """Where Spark runs in tests."""
    if shutil.which("java") is None:
        pytest.skip("needs Java 17 for Spark")
    return "local[2]"
