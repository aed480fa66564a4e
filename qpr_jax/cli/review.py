"""The command `review`: a person judges found pairs, and a threshold follows."""

from __future__ import annotations

import json
import logging
import pathlib
import secrets
from typing import TYPE_CHECKING

import click

from qpr_jax.cli.command import Command, wants_json
from qpr_jax.cli.options import NamedPath
from qpr_jax.data.inputs import STANDARD_INPUT
from qpr_jax.data.tables import FORMATS
from qpr_jax.errors import UserError
from qpr_jax.extras import needs

if TYPE_CHECKING:
    from qpr_jax.duplicates.review import Review

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="every verdict given is on disk")
@click.argument("pairs", type=NamedPath())
@click.option("--verdicts", type=NamedPath(), help="CSV.  [default: verdicts.csv beside PAIRS]")
@click.option(
    "--precision",
    default=0.9,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="A threshold is sought that has it.",
)
@click.option("--format", type=click.Choice(FORMATS), help="Of PAIRS.  [default: by its suffix]")
@click.option("--host", default="127.0.0.1", help="0.0.0.0: all addresses.")
@click.option("--port", default=8001, type=click.IntRange(0, 65535))
@click.option(
    "--allowed-host",
    metavar="NAME",
    multiple=True,
    help="A name by which browsers may address the page, besides --host and localhost; may be "
    "repeated; *: any.",
)
def review(
    pairs: str,
    verdicts: str | None,
    precision: float,
    format: str | None,
    host: str,
    port: int,
    allowed_host: tuple[str, ...],
) -> None:
    """Judge found PAIRS in a browser.

    It shows one pair at a time, and which threshold the verdicts imply. PAIRS is what `qpr
    duplicates` wrote (id1, id2, score, distance, question1, question2). The page takes y, n, s
    (skip) and u (undo). Pairs are chosen so that few verdicts tell most. Each verdict is in the
    file of verdicts before the next pair is shown; the same command goes on with them. They are
    labeled pairs, for `qpr calibrate` and `qpr train --labels`. Ctrl-C ends the review.

    The address that is printed has a token, new at each start; without it nothing is shown or kept.

    Example: qpr review found/pairs.csv --precision 0.9
    """
    with needs("`qpr review`", ".[serve]"):
        from qpr_jax.cli.serve import host_names, listen, run_app
        from qpr_jax.serving.middleware import LOOPBACK
        from qpr_jax.serving.review import make_review_app
    from qpr_jax.duplicates.review import open_review

    if pairs == STANDARD_INPUT:
        raise UserError("expected a file of pairs, got standard input", setting="pairs")
    others = host_names(host, allowed_host)
    path = verdicts or str(pathlib.Path(pairs).with_name("verdicts.csv"))
    with (
        listen(host, port) as listening,
        open_review(pairs, path, precision=precision, format=format or "") as session,
    ):
        token = secrets.token_urlsafe(16)
        app = make_review_app(session, token=token, allowed_hosts=[*LOOPBACK, *others])
        name = next((name for name in others if name != "*"), "localhost")
        url = f"http://{name}:{listening.getsockname()[1]}/?token={token}"
        given = len(session.history)
        text = "%s: %s pairs to judge, %s verdicts in %s; the page is at %s"
        log.info(text, pairs, f"{len(session.found.values):,}", f"{given:,}", path, url)
        if wants_json():
            facts = {"pairs": len(session.found.values), "verdicts": given, "url": url}
            click.echo(json.dumps(facts))
        if not others:
            log.info("only requests to localhost are answered; see `--allowed-host`")
        try:
            run_app(app, listening)
        finally:  # Ctrl-C comes out of it
            log.info("%s", _implied(session))


def _implied(session: Review) -> str:
    """What the verdicts imply, in a line."""
    from qpr_jax.duplicates.review import threshold_of

    estimate = session.estimate()
    if estimate is None:
        return "no verdict"
    option, value = threshold_of(session.found, estimate)
    flag = f"--{option.replace('_', '-')} {value!r}"
    line = f"`{flag}` of `qpr duplicates` accepts {estimate.pairs:,} pairs at a precision of "
    line += f"{estimate.precision:.3f} (90 % interval {estimate.low:.3f} to {estimate.high:.3f})"
    if not estimate.reached:
        line = f"no threshold has a precision of {session.precision:g}; the best: {line}"
    return f"{estimate.verdicts:,} verdicts: {line}"
