"""Distant supervision: paraphrases from logs of questions and answers."""

from __future__ import annotations

import hashlib
from typing import Any

from qpr_jax.distant.folder import is_made, made_files, write_clusters
from qpr_jax.distant.logs import Logs, log_files
from qpr_jax.distant.method import Method
from qpr_jax.files import StrPath, refuse_existing, sha256_of


def content_hash(path: StrPath) -> str:
    """SHA-256 of the logs at `path`, in any order, or of a folder that `make_folder` made."""
    files = log_files([str(path)]) if not is_made(path) else made_files(path)
    return hashlib.sha256("".join(sorted(map(sha256_of, files))).encode()).hexdigest()


def make_folder(
    folder: StrPath, logs: Logs, method: Method, *, skip_bad_rows: bool = False, spark: str = ""
) -> dict[str, Any]:
    """Make the clusters of logs in a new folder (see `folder.write_clusters`); their report.

    spark: the master of a Spark cluster; in memory where empty, with the same result to the byte.
    UserError for a bad row, unless skipped, and where no cluster is left.
    """
    refuse_existing(folder)
    if spark:
        from qpr_jax.distant import spark_engine as engine

        with engine.session(spark) as session:
            made = engine.make_clusters(session, logs, method, skip_bad_rows=skip_bad_rows)
            return write_clusters(folder, made, method)
    from qpr_jax.distant import local_engine

    made = local_engine.make_clusters(logs, method, skip_bad_rows=skip_bad_rows)
    return write_clusters(folder, made, method)
