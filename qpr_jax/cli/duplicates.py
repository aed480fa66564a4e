"""The command `duplicates`: find the duplicates in a table."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.cli import command as cli
from qpr_jax.cli.judging import precision_text
from qpr_jax.data.decoding import format_of, separator_of, table_files
from qpr_jax.data.typed_rows import ARROW, STANDARD_INPUT, input_name
from qpr_jax.errors import UserError, counted, shortened
from qpr_jax.files import locked, read_object, write_json
from qpr_jax.running import progress

if TYPE_CHECKING:
    from qpr_jax.duplicates.groups import Linkage
    from qpr_jax.duplicates.pairs import Pairs
    from qpr_jax.duplicates.sampling import Estimate
    from qpr_jax.retriever import Retriever

log = logging.getLogger("qpr_jax")

_ELSEWHERE = "share of right pairs (middle half of ten other tables)"
_SHOWN, _WIDTH = 5, 70  # pairs in the summary, and characters of a text
_SUMMARY = (
    "pairs: {pairs:,}; copies: {copies:,}; groups: {groups:,}, with {grouped_questions:,} rows; "
    "rows left: {kept:,} of {questions:,}"
)
_NEXT = (
    "next: check the pairs before you delete rows: `qpr review %s` shows you ten pairs of each "
    "threshold; with your answers it says how many are right in this table"
)
_OUT = "Output folder.  [default: NAME_duplicates beside QUESTIONS]"
_ENCODER = "Name, folder.  [default: of --incremental; minilm; above 50,000 rows open_student]"
_THRESHOLD = "Minimum score.  [default: 0.5, or none with --max-distance]"
_GROUPS = "How pairs join.  [default: complete; closure with --against or --incremental]"
_KEEP = "Which row stays: first, longest, central, max:COLUMN."
_OUTPUT = "Format.  [default: parquet if QUESTIONS are Parquet or Arrow, else csv]"


def _beside(context: click.Context, option: click.Parameter, out: str | None) -> str:
    """Return --out, or else a folder beside the first table."""
    first = context.params["questions"][0]
    if out is None and first == STANDARD_INPUT:
        raise click.UsageError("name the output folder with --out")
    return out or str(cli.beside(first, "duplicates"))


def _check_rule(keep: str) -> None:
    from qpr_jax.duplicates.rows import column_of

    column_of(keep)


@cli.command(stopped="{out} is complete where its info.json says so")
@cli.several_files
@cli.option("--out", type=cli.FOLDER, callback=_beside, help=_OUT)
@cli.option("--encoder", type=cli.PATH, help=_ENCODER)
@cli.option("--threshold", type=cli.SHARE, help=_THRESHOLD)
@cli.option("--max-distance", type=cli.DISTANCE, help="Maximum squared distance.")
@cli.option("--against", type=cli.PATH, help="Compare only with the rows of this file.")
@cli.option("--incremental", type=cli.PATH, help="Index of known questions; it gets the new ones.")
@cli.option("--replace", is_flag=True, help="Let rows replace questions that have their ids.")
@cli.option("--block-on", metavar="COLUMN", help="Compare only rows with the same value.")
@cli.option("--ignore-numbers", is_flag=True, help="Compare texts without their numbers.")
@cli.option("--clean/--no-clean", default=True, help="Leave out HTML and shared sentences.")
@cli.option("--groups", type=click.Choice(["complete", "closure"]), help=_GROUPS)
@cli.option("--keep", default="first", callback=cli.checked(_check_rule), help=_KEEP)
@cli.option("--labels", type=cli.FILE, help="Labels of `qpr review`, which decide about pairs.")
@cli.option("--output", type=click.Choice(["csv", "tsv", "jsonl", "parquet"]), help=_OUTPUT)
@cli.option("--excel", is_flag=True, help="Write CSV or TSV for spreadsheets.")
@cli.questions_input(ids=True, payload=True)
def duplicates(
    questions: tuple[str, ...],
    out: str,
    encoder: str | None,
    threshold: float | None,
    max_distance: float | None,
    against: str | None,
    incremental: str | None,
    replace: bool,
    block_on: str | None,
    ignore_numbers: bool,
    clean: bool,
    groups: Linkage | None,
    keep: str,
    labels: str | None,
    output: str | None,
    excel: bool,
    read: cli.Read,
) -> dict[str, Any]:
    """Find the duplicates in QUESTIONS, files or folders, and their groups.

    A score says how likely two texts mean the same, from 0 to 1. The command finds the pairs whose
    score is --threshold or more. Texts that differ only in case, blanks, dashes or punctuation are
    copies. The folder --out gets the files pairs (best first), groups (a row for each question of a
    group) and deduplicated (QUESTIONS with one row for each group), and info.json.

    \b
    Example: qpr duplicates tickets.csv
             qpr duplicates tickets.csv --encoder runs/quora_sdml --out found --threshold 0.7
             qpr duplicates new.csv --against tickets.csv --max-distance 0.5 --out found
             qpr duplicates tickets.csv --incremental my_index --max-distance 0.5 --out found
    """
    from qpr_jax.duplicates.output import check_folder
    from qpr_jax.duplicates.search import default_encoder_of, find_pairs

    if replace and not incremental:
        raise click.UsageError("--replace goes with --incremental only")
    form = read.keywords["format"]
    files = table_files(questions, format=form)
    others = () if against is None else table_files((against,), format=form)
    output, separator = _choose_output(output, files, form, excel=excel)
    check_folder(pathlib.Path(out), output, (*files, *others))
    if {*map(os.path.realpath, files)} & {*map(os.path.realpath, others)}:
        log.warning("a file is compared with itself, so each row has a copy; leave `against` out")
    index = _open_index(incremental, against, encoder) if incremental else None
    like = index.store.index_config.columns if index else None
    table, name = read(files, like=like), ", ".join(map(input_name, questions))
    with progress("reading"):
        count = len(table.entries)
    if not count:
        raise UserError(f"{name}: expected questions, got none")
    other = read(others) if others else None
    default = "" if encoder or index else default_encoder_of(table, other)
    found = find_pairs(
        table,
        index or other,
        encoder=encoder or default or None,
        threshold=threshold,
        max_distance=max_distance,
        replace=replace,
        block_on=block_on,
        ignore_numbers=ignore_numbers,
        clean=clean,
        groups=groups,
        keep=keep,
        labels=labels,
    )
    name = encoder or incremental or pathlib.Path(default).name
    return _save(out, found, name, index, output, separator)


def _choose_output(
    output: str | None, files: Sequence[str], format: str, *, excel: bool
) -> tuple[str, str]:
    """Return the format to write and, for spreadsheets, the separator of the cells, else ""."""
    from qpr_jax.duplicates.output import check_output

    if excel and output not in (None, "csv", "tsv"):
        raise click.UsageError("--excel needs --output csv or tsv")
    typed = {format or format_of(file) for file in files} <= {*ARROW}
    output = output or ("parquet" if typed and not excel else "csv")
    check_output(output)
    return output, separator_of(files[0], format) if excel else ""


def _open_index(named: str, against: str | None, encoder: str | None) -> Retriever:
    """Open an index that can be changed; UserError where an option does not fit to it."""
    from qpr_jax.retriever import Retriever

    if against is not None or encoder is not None:
        name = "encoder" if against is None else "against"
        what = f"an index is compared by itself, got {name}, too"
        raise UserError(what, setting="incremental", remedy="leave one of them out")
    index = Retriever.load(named, indexed=True)
    with index.store.changing():  # fails here, not after the search, if it cannot be written
        return index


def _save(
    out: str, found: Pairs, encoder: str, index: Retriever | None, output: str, separator: str
) -> dict[str, Any]:
    """Write all files and add the rows that the index lacks; return the content of info.json.

    info.json says first that the files are not complete, and last that they are.
    """
    from qpr_jax.duplicates.output import INFO, file_names, remove_before

    folder, swept = pathlib.Path(out), [] if found.threshold is None else found.sweep()
    info = {"complete": True, "encoder": encoder, **found.facts(), "thresholds": swept}
    info["files"] = file_names(output)
    if index is not None:
        rows = json.dumps([(entry.id, entry.question) for entry in found.table.entries])
        info |= {"added": info["questions"], "rows": hashlib.sha256(rows.encode()).hexdigest()}
        before = read_object(folder / INFO)
        if not info["added"] and before.get("rows") == info["rows"]:
            log.info("%s: unchanged; the index has all these rows already", out)
            return {"out": out, **before}
    with locked(folder / ".lock", busy=f"{folder}: another `qpr duplicates` writes it"):
        remove_before(folder, output)
        write_json(folder / INFO, {"complete": False, "files": info["files"]})
        found.write(folder, output, excel=separator)
        write_json(folder / INFO, info)
    if index is not None:
        log.info("index: %s added", counted(index.add_new(found), "row"))
    _summarize(out, info, found)
    return {"out": out, **info}


def _summarize(out: str, info: dict[str, Any], found: Pairs) -> None:
    log.info("%s: %s", out, _SUMMARY.format_map(info))
    if info["missed"] is not None:
        log.info("about %.1f%% of the pairs were missed", 100 * info["missed"])
    if found.groups:
        group = found.groups[0]
        words = f" (its words: {', '.join(group.words)})" if group.words else ""
        name = shortened(group.central, _WIDTH) + words
        log.info("the largest group, %s rows: %s", f"{len(group.ids):,}", name)
    judged = _judged(out, info)
    labels = counted(judged[0].labels, "label") if judged else ""
    swept = info["thresholds"]
    elsewhere = _ELSEWHERE if any(row["precision"] for row in swept) else ""  # of this encoder
    title = f"share of right pairs by {labels}" if judged else elsewhere
    precisions = {estimate.threshold: precision_text(estimate) for estimate in judged}
    if swept:
        log.info("%-11s  %8s  %8s  %9s  %s", "--threshold", "pairs", "groups", "rows left", title)
    for row in swept:
        counts = (f"{row[name]:,}" for name in ("pairs", "groups", "kept"))
        others = (
            "{:.2f} to {:.2f}".format(*row["precision"]) if row["precision"] else "-"[: len(title)]
        )
        precision = precisions.get(row["threshold"], "-") if judged else others
        log.info("%-11g  %8s  %8s  %9s  %s", row["threshold"], *counts, precision)
    no_copies = found.pairs[info["copies"] :]
    for pair in no_copies[:_SHOWN] if swept else ():
        _show(f"score {pair.score or 0:.3f}", pair[4:])
    for row, following in itertools.pairwise([*swept, {"weakest": None}]):
        if row["weakest"] not in (None, following["weakest"]):
            _show(f"the least sure pair from --threshold {row['threshold']:g} on", row["weakest"])
    farthest = [] if swept else heapq.nlargest(_SHOWN, no_copies, key=lambda pair: pair.distance)
    for pair in farthest:
        _show(f"farthest, distance {pair.distance:.3f}", pair[4:])
    if judged and judged[0].threshold <= (info["threshold"] or 0):
        log.info("share of right pairs: %s", precision_text(judged[0]))
    elif info["pairs"]:
        log.info(_NEXT, out)
    elif any(row["pairs"] for row in swept):
        log.info("next: a lower --threshold finds pairs, as the table says")
    elif swept and info["texts"] > 1:
        log.info("next: `--threshold 0.05` shows the pairs that are most alike")


def _show(what: str, texts: Sequence[str]) -> None:
    log.info("%s: %s", what, " | ".join(shortened(text, _WIDTH) for text in texts))


def _judged(out: str, info: dict[str, Any]) -> list[Estimate]:
    """Return what labels in the output folder say of thresholds, the lowest first."""
    from qpr_jax.duplicates.review import LABELS_FILE, sweep_labels

    pairs, labels = pathlib.Path(out, info["files"][0]), pathlib.Path(out, LABELS_FILE)
    if info["labels"] or not (labels.exists() and info["pairs"]):
        return []  # pairs that labels decided about are no sample
    if not (swept := sweep_labels(pairs, labels)):
        log.info("%s: no label is on a pair with the score that it has here", labels)
    return swept
