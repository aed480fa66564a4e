"""The command that fits the probabilities of found pairs to verdicts: calibrate."""

from __future__ import annotations

import logging
import pathlib
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.cli.command import Command
from qpr_jax.cli.options import NamedPath
from qpr_jax.data.tables import FORMATS
from qpr_jax.errors import UserError
from qpr_jax.extras import needs
from qpr_jax.files import refuse_existing

if TYPE_CHECKING:
    from qpr_jax.data.labels import Verdicts

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="the calibration is the old one or the new one")
@click.argument("run", type=NamedPath())
@click.argument("verdicts", default="-")
@click.option("--out", type=NamedPath(file_okay=False), help="New folder, instead of changing RUN.")
@click.option("--format", type=click.Choice(FORMATS[1:]), help="The format of VERDICTS.")
def calibrate(run: str, verdicts: str, out: str | None, format: str | None) -> dict[str, Any]:
    """Fit the probabilities of found pairs to VERDICTS.

    VERDICTS are found pairs with the columns question1, question2 and is_duplicate (0 or 1) and,
    where known, score (the probability by which a pair was found) and weight (the number of found
    pairs that it stands for), as qpr review writes them. Without weights, they must be a random
    sample of the found pairs. Without scores, the re-ranker's probabilities are left out.

    RUN is changed, or copied to --out with the new calibration. A model that is given by name, as
    minilm, is not changed. Verdicts replace those of an earlier fit: give all of them in one file.
    Prints how well the probabilities fit before and after, by
    cross-validation.

    Example: qpr calibrate minilm verdicts.csv --out models/support
    """
    from qpr_jax.data.labels import read_verdicts
    from qpr_jax.encoders.load import save_encoder
    from qpr_jax.index.run import run_encoder_folder
    from qpr_jax.reranking.calibration import CALIBRATION, save_calibration
    from qpr_jax.reranking.stages import read_stages

    if out is None and not pathlib.Path(run).is_dir():
        raise UserError(
            f"expected the folder of a run to change, got the name {run!r}",
            setting="out",
            remedy="name a folder for the calibrated copy with --out",
        )
    if out is not None:
        refuse_existing(out)
    encoder, stages = read_stages(run)
    given = read_verdicts(verdicts, format=format or "")
    stages.calibration, facts = _fit(encoder, stages, given)
    if out is None:
        save_calibration(run_encoder_folder(run) / CALIBRATION, stages.calibration)
    else:
        save_encoder(out, encoder, also=stages.save)
    where = run if out is None else out
    log.info(
        "%s: fitted to %s verdicts, %s duplicates",
        *(where, f"{facts['verdicts']:,}", f"{facts['duplicates']:,}"),
    )
    for name in ("before", "after"):
        if facts[name]:
            scores = (facts[name][score] for score in ("ece", "brier", "base_brier"))
            log.info("%s: calibration error %.3f, Brier score %.3f (base rate %.3f)", name, *scores)
    return {"out": where, **facts}


def _fit(encoder: Any, stages: Any, given: Verdicts) -> tuple[Any, dict[str, Any]]:
    """Return the new calibration, and the facts of its fit."""
    with needs("`qpr calibrate`", ".[train]"):
        from qpr_jax.reranking.recalibration import recalibrate
    vectors = encoder.encode(given.labeled.questions)
    first, second = (vectors[rows] for rows in given.labeled.pairs.T)
    distances = ((first - second) ** 2).sum(axis=1)
    return recalibrate(encoder.identity, stages.calibration, given, distances)
