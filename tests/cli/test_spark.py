"""A standalone cluster of Spark on loopback: a master and two workers, each a process."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from qpr_jax.index.run import read_encoder
from tests.distant.rows import log_rows, write_rows
from tests.runs import free_port, write_encoder

_CLASS = "org.apache.spark.deploy"
_SECONDS = 240


@pytest.fixture(scope="module")
def cluster(spark_master, tmp_path_factory):
    """The address of the master, when both workers have registered; they cannot import JAX."""
    import pyspark

    folder = tmp_path_factory.mktemp("spark")
    no_jax = folder / "path" / "jax"
    no_jax.mkdir(parents=True)
    (no_jax / "__init__.py").write_text("raise ImportError('no JAX on a worker')\n")
    home = pathlib.Path(pyspark.__file__).parent
    path = os.pathsep.join([str(no_jax.parent), str(pathlib.Path(__file__).parent.parent.parent)])
    workers = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home), "PYTHONPATH": path}
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    of_master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    of_worker = ["worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    commands = {"master": of_master} | {
        f"worker{i}": [*of_worker, "--work-dir", str(folder / str(i)), master] for i in (1, 2)
    }
    started = []
    try:
        for name, (main, *arguments) in commands.items():
            with open(folder / f"{name}.log", "w") as log:
                command = [home / "bin" / "spark-class", f"{_CLASS}.{main}", *arguments]
                started.append(
                    subprocess.Popen(
                        command, stderr=log, env=os.environ | workers, start_new_session=True
                    )
                )
        until = time.monotonic() + _SECONDS
        while (folder / "master.log").read_text().count("Registering worker") < 2:
            assert time.monotonic() < until, (folder / "master.log").read_text()
            time.sleep(0.2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            yield master
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_clusters_are_those_of_memory_to_the_byte(cluster, tmp_path, done):
    logs = write_rows(tmp_path / "log.jsonl", log_rows())
    done("clusters", logs, "--out", tmp_path / "memory")
    done("clusters", logs, "--out", tmp_path / "spark", "--spark", cluster)
    assert contents(tmp_path / "spark") == contents(tmp_path / "memory")


@pytest.mark.slow
def test_vectors_are_those_of_one_process_and_an_error_of_a_worker_is_a_line(
    cluster, tmp_path, qpr, done
):
    run = tmp_path / "run"
    write_encoder(run)
    texts = [f"how to cook rice {i}" for i in range(2000)]
    (tmp_path / "questions").mkdir()
    source = tmp_path / "questions" / "a.parquet"
    parquet.write_table(pyarrow.table({"question": texts}), source, row_group_size=600)
    command = ["encode", run, source.parent, "--spark", cluster, "--out"]
    done(*command, tmp_path / "out")
    found = parquet.read_table(tmp_path / "out")
    assert found["question"].to_pylist() == texts
    vectors = np.stack(found["vector"].to_numpy())
    np.testing.assert_allclose(vectors, read_encoder(run).encode(texts), atol=1e-6)

    texts[700] = None
    parquet.write_table(pyarrow.table({"question": texts}), source, row_group_size=600)
    status, _, stderr = qpr(*command, tmp_path / "other")
    assert status == 1
    assert re.search(
        r"^error: .*a.parquet, row 100 of row group 1: expected a question", stderr, re.M
    )
    assert not (tmp_path / "other" / "_SUCCESS").exists()


def test_a_folder_in_this_process(tmp_path, done):
    run, out = tmp_path / "run", tmp_path / "out"
    write_encoder(run)
    (tmp_path / "questions").mkdir()
    table = pyarrow.table({"id": [7], "question": ["what is rice"]})
    parquet.write_table(table, tmp_path / "questions" / "a.parquet")
    command = ["encode", run, tmp_path / "questions", "--out", out]
    stdout, _ = done(*command, "--json")
    assert json.loads(stdout) == {"out": str(out), "vectors": 1}
    assert parquet.read_table(out).column_names == ["id", "question", "vector"]
