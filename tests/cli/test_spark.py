"""Spark whose executors are processes of their own: two workers that cannot import JAX."""

import json
import os
import pathlib
import re

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from qpr_jax.locations import read_encoder
from tests.runs import ROOT


@pytest.fixture
def on_cluster(spark_master, start, tmp_path):
    """The program on a cluster: arguments -> (status, what it says)."""
    pyspark = pytest.importorskip("pyspark")
    no_jax = tmp_path / "path" / "jax"
    no_jax.mkdir(parents=True)
    (no_jax / "__init__.py").write_text("raise ImportError('no JAX on a worker')\n")
    home = tmp_path / "home"  # where executors work
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(pathlib.Path(pyspark.__file__).parent / part)
    environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = f"{no_jax.parent}{os.pathsep}{ROOT}"

    def call(*arguments):
        process = start(*arguments, "--spark", "local-cluster[2,1,1024]", **environment)
        _, stderr = process.communicate(timeout=240)
        return process.returncode, stderr

    return call


@pytest.mark.slow
def test_vectors_are_those_of_one_process_and_an_error_of_a_worker_is_a_line(
    on_cluster, run, tmp_path
):
    texts = [f"how to cook rice {i}" for i in range(2000)]
    (tmp_path / "questions").mkdir()
    source = tmp_path / "questions" / "a.parquet"
    parquet.write_table(pyarrow.table({"question": texts}), source, row_group_size=600)
    command = ("encode", run, source.parent, "--out")
    status, stderr = on_cluster(*command, tmp_path / "out")
    assert status == 0, stderr
    found = parquet.read_table(tmp_path / "out")
    assert found["question"].to_pylist() == texts
    vectors = np.stack(found["vector"].to_numpy())
    np.testing.assert_allclose(vectors, read_encoder(run).encode(texts), atol=1e-6)

    texts[700] = None
    parquet.write_table(pyarrow.table({"question": texts}), source, row_group_size=600)
    status, stderr = on_cluster(*command, tmp_path / "other")
    assert status == 1
    line = r"^error: .*a.parquet, row 100 of row group 1: expected a question"
    assert re.search(line, stderr, re.M)
    assert not (tmp_path / "other" / "_SUCCESS").exists()


def test_a_folder_in_this_process(tmp_path, done, run):
    out = tmp_path / "out"
    (tmp_path / "questions").mkdir()
    table = pyarrow.table({"id": [7], "question": ["what is rice"]})
    parquet.write_table(table, tmp_path / "questions" / "a.parquet")
    command = ["encode", run, tmp_path / "questions", "--out", out]
    stdout, _ = done(*command, "--json")
    assert json.loads(stdout) == {"out": str(out), "vectors": 1}
    assert parquet.read_table(out).column_names == ["id", "question", "vector"]
