"""Distant supervision: clusters of paraphrases from logs of questions and answers."""

from __future__ import annotations

import hashlib
from typing import Any

from qpr_jax.distant.folder import cluster_files, is_made, write_clusters
from qpr_jax.distant.logs import Logs, log_files, read_questions
from qpr_jax.distant.method import Method
from qpr_jax.files import StrPath, refuse_existing, sha256_of


def content_hash(path: StrPath) -> str:
    """Return a hash of the logs at `path`, in any order, or of a folder of `make_folder`."""
    files = log_files([str(path)]) if not is_made(path) else cluster_files(path)
    return hashlib.sha256("".join(sorted(map(sha256_of, files))).encode()).hexdigest()


def make_folder(
    folder: StrPath, logs: Logs, method: Method, *, skip_bad_rows: bool = False, spark: str = ""
) -> dict[str, Any]:
    """Make the clusters of logs in a new folder (see `write_clusters`) and return the report.

    UserError if none is left. spark: the master of a Spark cluster that reads the logs; "": none.
    """
    refuse_existing(folder)
    if not spark:
        return write_clusters(folder, read_questions(logs, skip_bad_rows=skip_bad_rows), method)
    from qpr_jax.distant import spark_engine
    from qpr_jax.spark_session import session

    with session(spark, "qpr clusters") as opened:
        questions = spark_engine.read_questions(opened, logs, skip_bad_rows=skip_bad_rows)
    return write_clusters(folder, questions, method)
