"""Rows of a study: trainings and searches whose results are kept, made one by one, resumable."""

from __future__ import annotations

import json
import logging
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import Interrupted, UserError
from qpr_jax.evaluation.retrieval import RankFn
from qpr_jax.files import locked, read_json, replace_folder, sha256_of, write_atomically, write_json
from qpr_jax.training.config import TrainConfig, identity
from qpr_jax.training.metric_writer import read_json_lines

log = logging.getLogger("qpr_jax.rows")

KEPT_STEPS = 200


class Row(NamedTuple):
    """name: of its folder. wanted: what it is made of. make: (data, folder) -> None."""

    name: str
    wanted: dict[str, Any]
    make: Callable[[pathlib.Path, pathlib.Path], None]


def training_row(
    name: str,
    config: TrainConfig,
    workdir: pathlib.Path,
    *,
    keep_run: bool = False,
    keep_export: bool = False,
    kept_steps: int = KEPT_STEPS,
    more: Mapping[str, Callable[[pathlib.Path], Any]] | None = None,
) -> Row:
    """A training in `workdir`, of which the scores are kept, and all else with `keep_run`.

    keep_export: leave the encoder in `workdir`. kept_steps: stretches of steps whose mean metrics
    are kept. more: what else is kept as JSON: file -> a function of the finished run.
    """

    def make(path: pathlib.Path, kept: pathlib.Path) -> None:
        from qpr_jax.training.main import train_and_evaluate

        train_and_evaluate(config, workdir)
        with replace_folder(kept) as part:
            for file in ("report.json", "evaluations.jsonl", "ranks.npz"):
                shutil.copy(workdir / file, part / file)
            rows = read_json_lines(workdir / "metrics.jsonl")
            with write_atomically(part / "metrics.jsonl", "w") as lines:
                lines.writelines(f"{line}\n" for line in _thinned(rows, kept_steps))
            for file, value_of in (more or {}).items():
                write_json(part / file, value_of(workdir))
            shutil.copy(workdir / "run.json", part / "config.json")
        if keep_run:
            return
        # Over a gigabyte, of which nobody asks for more than is kept.
        for part in workdir.iterdir():
            if part.is_dir() and not (keep_export and part.name == "export"):
                shutil.rmtree(part)
        if not keep_export:
            shutil.rmtree(workdir)

    return Row(name, identity(config), make)


def search_row(
    name: str,
    config: TrainConfig,
    make_search: Callable[[list[str]], tuple[RankFn, dict[str, Any]]],
) -> Row:
    """A search without training, scored on the same queries of the same data.

    make_search: of all questions; the search, and what the report is to say of it besides.
    """

    def make(path: pathlib.Path, kept: pathlib.Path) -> None:
        from qpr_jax.training.dataset import load_dataset
        from qpr_jax.training.report import score_searches

        dataset = load_dataset(config, path)
        search, more = make_search(dataset.data.questions)
        scores, _, ranks = score_searches({"exact": search}, dataset)
        with replace_folder(kept) as part:
            with write_atomically(part / "ranks.npz") as file:
                np.savez_compressed(file, allow_pickle=False, **ranks)
            report = {split: found["exact"] for split, found in scores.items()}
            write_json(part / "report.json", report | more)
            write_json(part / "config.json", {"search": name, "data.sha256": sha256_of(path)})

    return Row(name, {"search": name}, make)


def _thinned(rows: list[dict[str, Any]], count: int) -> list[str]:
    """The metrics of all steps as means over at most `count` stretches."""
    stretches = np.array_split(np.arange(len(rows)), min(count, len(rows)))
    return [
        json.dumps(
            {
                "step": rows[stretch[-1]]["step"],
                **{
                    key: float(np.mean([rows[i][key] for i in stretch if key in rows[i]]))
                    for key in dict.fromkeys(key for i in stretch for key in rows[i])
                    if key != "step"
                },
            }
        )
        for stretch in stretches
    ]


def is_done(kept: pathlib.Path, wanted: dict[str, Any], data: str | None) -> bool:
    """Whether the row is kept; UserError where it is, but was made otherwise.

    data: SHA-256 of the data, None for generated ones.
    """
    if not (kept / "config.json").exists():
        return False
    # A setting that came later than the row had its default's effect.
    known = identity(TrainConfig()) | read_json(kept / "config.json")
    for key, value in (wanted | {"data.sha256": data}).items():
        if known.get(key) != value:
            raise UserError(
                f"{kept}: expected `{key}` {value!r}, got {known.get(key)!r}; remove the folder, "
                "and that of the row in `--workdir` if there is one, to make the row anew"
            )
    return True


def make_rows(
    rows: list[Row],
    workdir: pathlib.Path,
    results: pathlib.Path,
    path: pathlib.Path,
    data: str | None,
) -> list[str]:
    """Make the rows that are not done, but for those that another process makes.

    path: of the data, `data` its SHA-256. Returns the rows that could not be made, each with the
    reason.
    """
    failed = []
    for at, row in enumerate(rows):
        kept = results / "rows" / row.name
        with locked(workdir / f".{row.name}.lock") as ours:
            if is_done(kept, row.wanted, data):
                continue
            if not ours:
                log.info("%s is being made by another process", row.name)
                continue
            left = [r for r in rows[at:] if not is_done(results / "rows" / r.name, r.wanted, data)]
            log.info("%s; next: %s", _time_of(left, results), row.name)
            try:
                row.make(path, kept)
            except UserError as error:
                log.error("%s: %s", row.name, error)
                failed.append(f"{row.name}: {error}")
    return failed


def finish_study(
    make: Callable[[], list[str]],
    write_results: Callable[[pathlib.Path], None],
    results: pathlib.Path,
) -> int:
    """Make rows, as `make` does, then write the page; the exit status.

    UserError names the rows that could not be made, after all others.
    """
    try:
        failed = make()
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    # A page that another process writes may be without the rows just made.
    with locked(results / ".pages.lock", wait=True):
        write_results(results)
    log.info("see %s", results / "README.md")
    if failed:
        raise UserError(f"{len(failed)} rows could not be made: {'; '.join(failed)}")
    return 0


def _time_of(left: list[Row], results: pathlib.Path) -> str:
    """How many rows are left, and how long training them takes if they are like those kept."""
    timings = [
        report["timing"]
        for report in map(read_json, (results / "rows").glob("[!.]*/report.json"))
        if "train_seconds" in report.get("timing", ())  # not those of lexical rows
    ]
    if not timings:
        return f"{len(left)} rows left"
    seconds = [timing["train_seconds"] for timing in timings]
    minutes = len(left) * sum(seconds) / len(seconds) / 60
    return f"{len(left)} rows left, about {minutes:.0f} minutes of training"
