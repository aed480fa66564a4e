"""From settings to a finished run: train, export, index, evaluate, report."""

from __future__ import annotations

import logging
import time
from typing import Any

from ml_collections import ConfigDict

from qpr_jax.data.sources import find_quora
from qpr_jax.data.splits import write_splits
from qpr_jax.encoders.exported import read_export
from qpr_jax.files import Path, read_json, sha256_of
from qpr_jax.retrieval.index import build_index, write_index
from qpr_jax.training.export import write_encoder
from qpr_jax.training.loop import train
from qpr_jax.training.prepare import prepare
from qpr_jax.training.report import write_report
from qpr_jax.training.settings import identity, validate, without_effect
from qpr_jax.training.workdir import open_workdir

log = logging.getLogger(__name__)


def train_and_evaluate(settings: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Run the experiment that `settings` describes in `workdir`, or go on with it; its report.

    A run can be killed at any moment: the same call resumes it, and a finished run is not run
    again. See `settings.default_settings` for the settings and BUILD.md for what a work directory
    holds.

    Raises:
      UserError: a setting, the data or the work directory is not as it must be, or the loss is
        not finite.
      Interrupted: a signal asked for the end; the state is saved.
    """
    validate(settings)
    if unread := without_effect(settings):
        log.warning("no effect with these settings: %s", ", ".join(unread))
    path = None
    run = identity(settings)
    if settings.data.source == "quora":
        path = find_quora(settings.data.path, log=log.info)
        run["data.sha256"] = sha256_of(path)
    with open_workdir(workdir, run, overwrite=settings.overwrite) as folder:
        if (folder / "report.json").exists():
            log.info("%s is finished; see %s", folder, folder / "report.md")
            return read_json(folder / "report.json")
        prepared = prepare(settings, path)
        write_splits(folder / "splits", prepared.splits, prepared.data.ids)
        if not (folder / "export").exists():
            params = train(settings, prepared, folder)
            write_encoder(folder / "export", params, prepared.vocabulary, settings)
            del params
        encoder = read_export(folder / "export")
        questions = prepared.data.questions
        start = time.perf_counter()
        vectors = encoder.encode(questions)
        seconds = time.perf_counter() - start
        log.info("encoded %s questions in %.1f s", f"{len(vectors):,}", seconds)
        start = time.perf_counter()
        index = build_index(
            lambda some: vectors if len(some) == len(vectors) else encoder.encode(some),
            questions,
            prepared.data.ids.tolist(),
            factory=settings.index.factory,
            probes=settings.index.probes,
            assignments=settings.index.assignments,
            encoder=encoder.identity,
            log=log.info,
        )
        write_index(folder / "index", index)
        log.info("index: built in %.0f s", time.perf_counter() - start)
        report = write_report(
            folder, settings, prepared, encoder, index, vectors, encode_seconds=seconds
        )
        log.info("finished; see %s", folder / "report.md")
        return report
