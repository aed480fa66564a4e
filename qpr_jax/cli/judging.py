"""Commands of labels: review, which asks for them, and calibrate, which fits scores to them."""

from __future__ import annotations

import json
import logging
import math
import os
import pathlib
import secrets
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from qpr_jax import kinds
from qpr_jax.cli import command as cli
from qpr_jax.cli.serve import PORT, allowed_hosts, host_names, host_option, listen, run_app
from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.data.tables import read_table
from qpr_jax.data.typed_rows import STANDARD_INPUT
from qpr_jax.errors import UserError, counted, needs
from qpr_jax.files import read_object, refuse_existing

if TYPE_CHECKING:
    from qpr_jax.duplicates.review import Review
    from qpr_jax.duplicates.sampling import Estimate
    from qpr_jax.encoders.encoder import Encoder
    from qpr_jax.locations import FittedModel

log = logging.getLogger("qpr_jax")

_FITTED = "fitted to {labels:,} labels (duplicates: {duplicates:,})"
_FIT = "`--threshold {threshold:g}` finds {duplicates:,} of {} duplicates, {others:,} of {} others"
_NEXT = "next: `qpr duplicates TABLE --encoder %s --threshold %g`"
_BALANCE = "the best balance (F1): "


@cli.command(stopped="every label given is on disk")
@cli.argument("pairs", type=cli.PATH)
@cli.option(
    "--queries", type=cli.FILE, help="Judge first hits of these queries; PAIRS is an index."
)
@cli.option("--sample", default=50, type=cli.COUNT, help="Number of queries, drawn at random.")
@cli.option("--labels", type=cli.PATH, help="CSV.  [default: labels.csv beside PAIRS]")
@cli.option("--precision", default=0.9, type=cli.PART, help="Share of right pairs to aim at.")
@cli.table_format("PAIRS")
@host_option
@cli.option("--port", default=8001, type=PORT)
@allowed_hosts
def review(
    pairs: str,
    queries: str | None,
    sample: int,
    labels: str | None,
    precision: float,
    format: str | None,
    host: str,
    port: int,
    allowed_host: tuple[str, ...],
) -> None:
    """Judge found PAIRS in a browser.

    PAIRS is the folder that `qpr duplicates` wrote, or its file of pairs. A page shows one pair at
    a time. Press y if both texts mean the same, n if not, s to skip, u to undo. The page says which
    threshold your answers recommend. Ctrl-C ends the review; the same command goes on with it. Your
    answers are kept in a file of labels, which `qpr calibrate` and `qpr train --labels` read.

    With --queries, PAIRS is an index, and you judge the first hit of some queries instead. That
    estimates the share of queries whose first hit is right; a query without an answer counts as
    wrong. The hits and labels of FILE.csv are in FILE_first_hits beside it.

    Open the address that is printed: it has a token, without which the page shows nothing.

    \b
    Example: qpr review found --precision 0.9
             qpr review my_index --queries asked.csv --sample 50
    """
    with needs("`qpr review`", ".[serve]"):
        from qpr_jax.serving.app import make_review_app
        from qpr_jax.serving.middleware import LOOPBACK
    from qpr_jax.duplicates.output import pairs_file
    from qpr_jax.duplicates.review import LABELS_FILE, open_review

    if queries is None and (other := cli.option_on_line("sample")):
        raise click.UsageError(f"{other} goes with --queries only")
    if queries is not None:
        pairs = _find_first_hits(pairs, queries, sample, format or "")
    if pairs == STANDARD_INPUT:
        raise UserError("expected a file of pairs, got standard input", setting="pairs")
    pairs = pairs_file(pairs)
    others = host_names(host, allowed_host)
    path = labels or str(pathlib.Path(pairs).with_name(LABELS_FILE))
    with (
        listen(host, port) as listening,
        open_review(pairs, path, precision=precision, format=format or "") as session,
    ):
        token = secrets.token_urlsafe(16)
        app = make_review_app(session, token=token, allowed_hosts=[*LOOPBACK, *others])
        name = next((name for name in others if name != "*"), "localhost")
        url = f"http://{name}:{listening.getsockname()[1]}/?token={token}"
        count, judged = len(session.found.values), len(session.history)
        facts = {"pairs": count, "labels": judged, "url": url}
        text = "%s: %s to judge, %s in %s; the page is at %s"
        log.info(text, pairs, counted(count, "pair"), counted(judged, "label"), path, url)
        if cli.wants_json():
            click.echo(json.dumps(facts))
        try:
            run_app(app, listening)
        finally:  # Ctrl-C comes out of it
            for line in ending(session, pairs):
                log.info("%s", line)


def _find_first_hits(index: str, queries: str, sample: int, format: str) -> str:
    """Return the folder of the first hits of queries; search for them unless it is there."""
    from qpr_jax.duplicates.output import INFO
    from qpr_jax.duplicates.sampling import write_first_hits

    folder, place = cli.beside(queries, "first_hits"), os.path.realpath(index)
    if not (folder / INFO).exists():
        table = read_table(queries, id=None, payload=False, format=format)
        write_first_hits(folder, cli.load_index(index), table, sample, index=place)
    elif (other := read_object(folder / INFO).get("index")) != place:
        what = f"{folder}: has first hits of another index, {other}"
        raise UserError(what, remedy="remove it, or rename the file of queries")
    return str(folder)


def precision_text(estimate: Estimate) -> str:
    """Return an estimated precision and its interval."""
    return f"{estimate.precision:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def ending(session: Review, pairs: str) -> Iterator[str]:
    """Yield what the labels say, and what to do next."""
    if stale := session.stale():
        yield stale
        return
    yield from _precisions(session)
    yield _implied(session)
    yield _next_step(session, pairs)


def _precisions(session: Review) -> Iterator[str]:
    """Yield a table: what the labels say of some thresholds."""
    swept, kind = session.sweep(), "pairs" if session.found.option else "first hits"
    if len(swept) > 1:
        yield f"{'threshold':<9}  {kind:>10}  {'right':>7}  share right (90 % interval)"
    for row in swept if len(swept) > 1 else ():
        right = round(row.pairs * row.precision)
        yield f"{row.threshold:<9g}  {row.pairs:>10,}  {right:>7,}  {precision_text(row)}"


def _next_step(session: Review, pairs: str) -> str:
    """Return the command that fits the scores to the labels; what is missing, if it refuses."""
    from qpr_jax.duplicates.output import INFO

    folder = pathlib.Path(pairs).parent
    encoder, fitted = read_object(folder / INFO).get("encoder"), folder / "calibrated"
    start = "all are judged" if session.current is None else "next: the same command goes on"
    if not (session.found.option and encoder and session.path.exists()):
        return start
    try:
        fit_labels(encoder, str(session.path))
    except UserError as error:
        return f"{start}; `qpr calibrate` would refuse now: {error.what}"
    command = shlex.join(["qpr", "calibrate", encoder, str(session.path), "--out", str(fitted)])
    options = shlex.join(["--encoder", str(fitted), "--labels", str(session.path)])
    again = f"find duplicates again with `{options}`, the threshold that it names"
    return f"next: `{command}` fits the scores to the labels; then {again}, and another folder"


def _kept(session: Review, estimate: Estimate) -> str:
    """Return what a threshold keeps, and how much of that is right."""
    from qpr_jax.duplicates.sampling import threshold_of

    found = session.found
    flag = f"--{found.option.replace('_', '-')} {threshold_of(found.values, estimate)!r}"
    kept = f"{estimate.pairs:,} of {counted(len(found.values), 'pair')}"
    line = f"`{flag}` of `qpr duplicates` keeps {kept} and about {estimate.share:.0%} of the "
    line += "duplicates among these; the share of right pairs is "
    return f"{line}{estimate.precision:.3f} ({_limits(estimate)})"


def _limits(estimate: Estimate) -> str:
    if estimate.low == estimate.high:
        return "all of them have labels"
    return f"90 % interval {estimate.low:.3f} to {estimate.high:.3f}"


def _implied(session: Review) -> str:
    """Return the recommended threshold and its precision, with the interval."""
    from qpr_jax.duplicates.sampling import BEST_F1

    found, estimate, sought = session.found, session.estimate(), f"{session.precision:g}"
    if estimate is None:
        return "no label"
    line = f"{session.path}: {counted(estimate.labels, 'label')}: "
    if found.option:
        if estimate.precision < session.precision:
            line += f"at no threshold are {sought} of the pairs right; {_BALANCE}"
        line += _kept(session, estimate)
        best = session.estimate(BEST_F1)
        if best is None or best.pairs == estimate.pairs:
            return line
        return f"{line}; {_BALANCE}{_kept(session, best)}"
    limits = _limits(estimate)
    limits += "; a query without an answer counts as wrong"
    line += f"the share of right first hits is {estimate.precision:.3f} ({limits})"
    swept, total = session.sweep(), estimate.precision * estimate.pairs
    precise = [row for row in swept if row.precision >= session.precision]
    best_f1 = max(swept, key=lambda row: row.pairs * row.precision / (row.pairs + total))
    best = precise[0] if precise else best_f1
    line += "" if precise else f"; from no score on are {sought} of the hits right"
    if best.threshold > 0:
        kept = f"{best.pairs:,} of {counted(len(found.values), 'first hit')}"
        start = "" if precise else _BALANCE
        share = best.pairs * best.precision / max(total, 1e-9)
        line += f"; {start}`--min-score {best.threshold:g}` of `qpr search` leaves {kept} and "
        line += f"{share:.0%} of the right ones; the share of right hits is {precision_text(best)}"
    return line


@cli.command(stopped="the scores are the old ones or the new ones")
@cli.argument("encoder", type=cli.PATH)
@cli.argument("labels", required=False, type=cli.PATH)
@cli.option("--out", type=cli.FOLDER, help="New folder, instead of changing ENCODER.")
@cli.table_format("LABELS")
@cli.skip_bad_rows
def calibrate(
    encoder: str, labels: str | None, out: str | None, format: str | None, skip_bad_rows: bool
) -> dict[str, Any]:
    """Fit the scores of an encoder to LABELS, 20 or more.

    LABELS are pairs that you judged: a table of question1, question2 and is_duplicate (0 or 1), as
    `qpr review` writes it. Give all labels in one file, and pairs of both kinds. The scores change
    only if they then fit better to labels that were held out. The command changes ENCODER, or
    writes a changed copy to --out. It prints what the old and the new scores find among held-out
    labels, and the threshold that finds as many duplicates as before.

    With the column weight, which `qpr review` writes, a row stands for so many found pairs.
    Without it, LABELS are taken for a whole table: texts that are near each other and have no
    label are then no duplicates.

    Example: qpr calibrate minilm labels.csv --out models/support
    """
    from qpr_jax.encoders.load import save_encoder
    from qpr_jax.locations import run_encoder_folder, save_pair_model

    if labels is None or not (labels == STANDARD_INPUT or os.path.exists(labels)):
        near = kinds.similar_path(labels or "", kinds.LABELS)
        what = f"{labels}: found none{near}" if labels else "expected labels"
        raise UserError(what, remedy=kinds.instead(kinds.LABELS))
    if out is not None:
        refuse_existing(out)
    if out is None and not pathlib.Path(encoder).is_dir():
        what = f"expected the folder of an encoder to change, got the name {encoder!r}"
        raise UserError(what, remedy="name a folder for the calibrated copy with --out")
    read, model, facts = fit_labels(encoder, labels, format=format, skip_bad_rows=skip_bad_rows)
    if out is None:
        save_pair_model(run_encoder_folder(encoder), model)
    else:
        save_encoder(out, read, also=lambda folder: save_pair_model(folder, model))
    if facts["duplicates"] == facts["labels"]:
        log.warning(
            "%s: no pair is labeled 0, so near texts without a label count as no duplicates; label "
            "pairs of both kinds unless all duplicates have a label",
            labels,
        )
    log.info("%s: %s", out or encoder, _FITTED.format_map(facts))
    for name in ("before", "after"):
        log.info("held-out labels, %s: %s", name, _fit_text(facts, name))
    if facts["lower"]:
        name = "after, with a lower threshold that finds as many duplicates as before"
        log.info("held-out labels, %s: %s", name, _fit_text(facts, "lower"))
    if facts["after"]["brier"] >= facts["after"]["base_brier"] and not _sorts(facts):
        log.warning(
            "held-out labels do not show that the new scores tell duplicates from others: judge "
            "more found pairs with `qpr review`"
        )
    else:
        before, fit = facts["before"], facts["lower"] or facts["after"]
        if fit["duplicates"] <= before["duplicates"] and fit["others"] >= before["others"]:
            log.warning(
                "held-out labels: the new scores say better how likely a pair is right, but sort "
                "pairs no better than the old ones: keep these, and give `qpr duplicates` the "
                "labels with `--labels`"
            )
        else:
            log.info(_NEXT, shlex.quote(out or encoder), fit["threshold"])
    return {"out": out or encoder, **facts}


def _sorts(facts: dict[str, Any]) -> bool:
    """Return whether the duplicates found are two deviations more than in a random choice."""
    count, fit = facts["labels"], facts["lower"] or facts["after"]
    share, found = facts["duplicates"] / count, fit["duplicates"] + fit["others"]
    variance = share * (1 - share) * found * (count - found) / (count - 1)
    return bool(fit["duplicates"] - share * found > 2 * math.sqrt(variance))


def _fit_text(facts: dict[str, Any], name: str) -> str:
    fit, others = facts[name], facts["labels"] - facts["duplicates"]
    text = _FIT.format(facts["duplicates"], others, **fit)
    if fit["precision"] is None or fit["recall"] is None:
        return text
    return f"{text}; precision {fit['precision']:.2f}, recall {fit['recall']:.2f} by weight"


def fit_labels(
    encoder: str, labels: str, *, format: str | None = None, skip_bad_rows: bool = False
) -> tuple[Encoder, FittedModel, dict[str, Any]]:
    """Return an encoder, its model of pairs fitted to labels, and facts, as of `refit`."""
    from qpr_jax.locations import read_encoder_and_model
    from qpr_jax.pair_model.fitting import refit

    labeled = read_question_pairs(labels, format=format, skip_bad_rows=skip_bad_rows, weighted=True)
    read, model = read_encoder_and_model(encoder)
    return read, *refit(model, labeled, read.encode(labeled.questions))
