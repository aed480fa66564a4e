"""The command that finds all duplicates in a file of questions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import pathlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from qpr_jax import progress
from qpr_jax.cli.command import Command
from qpr_jax.cli.completion import complete_encoder
from qpr_jax.cli.costs import Costs, dry_run
from qpr_jax.cli.options import (
    FiniteRange,
    NamedPath,
    payload_input,
    questions_input,
    read_input,
)
from qpr_jax.data.pairs import pair_columns, read_question_pairs
from qpr_jax.data.questions import Entry
from qpr_jax.data.tables import input_name
from qpr_jax.errors import UserError
from qpr_jax.files import locked, read_object, write_json

if TYPE_CHECKING:
    from qpr_jax.costs.estimate import Estimate
    from qpr_jax.costs.rows import Sample
    from qpr_jax.duplicates.find import Search
    from qpr_jax.duplicates.rows import Rows
    from qpr_jax.duplicates.search import Found

log = logging.getLogger("qpr_jax")

_WORK = ".work"  # in the output folder: what a run that was killed goes on with
_GIB = 1 << 30


@click.command(
    cls=Command, stopped="the same command goes on; {out} is complete with its info.json"
)
@click.argument("questions", default="-")
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="Output folder.")
@click.option(
    "--run",
    type=NamedPath(),
    shell_complete=complete_encoder,
    help="Folder of the encoder, or minilm.  [default: that of --incremental, or open_student]",
)
@click.option("--threshold", type=FiniteRange(0, 1), help="The least probability.  [default: 0.5]")
@click.option("--max-distance", type=FiniteRange(min=0), help="The largest squared distance.")
@click.option("--precision", type=FiniteRange(0, 1, min_open=True), help="The precision to expect.")
@click.option("--pairs", type=click.IntRange(min=1), help="Number of closest pairs.")
@click.option("--against", type=NamedPath(), help="Compare with the rows of this file only.")
@click.option(
    "--incremental", type=NamedPath(), help="Index of known questions; it gets the new ones."
)
@click.option("--within", metavar="COLUMN", help="Compare rows with one value in it only.")
@click.option(
    "--groups",
    type=click.Choice(["complete", "bridges", "closure"]),
    help="How pairs make groups.  [default: complete; closure with --against or --incremental]",
)
@click.option(
    "--keep",
    default="first",
    metavar="RULE",
    help="The row of a group that stays: first, longest, central or max:COLUMN.",
)
@click.option(
    "--rerank",
    type=click.Choice(["false", "light"]),
    help="Probabilities by the light re-ranker.  [default: light, if there is one]",
)
@click.option(
    "--memory", default=2.0, type=FiniteRange(min=0.001), help="GiB to use on top of the rows' own."
)
@click.option("--output", type=click.Choice(["csv", "tsv", "jsonl", "parquet"]), default="csv")
@dry_run
@payload_input
@questions_input
def duplicates(
    questions: str,
    out: str,
    against: str | None,
    output: str,
    dry_run: bool,
    **options: Any,
) -> dict[str, Any]:
    """Find all pairs of QUESTIONS that mean the same, and the groups that they form.

    Give one of --threshold, --max-distance, --precision and --pairs, or none for a threshold of
    0.5. Probabilities need a run with a calibration; those of another corpus than the run's need
    `qpr calibrate`. QUESTIONS and --against can be labeled pairs, as Quora's file, too.

    Writes pairs (id1, id2, score, distance, question1, question2; most probable first), groups (a
    row a member) and deduplicated (QUESTIONS with one row a group) to --out, and info.json last.
    Run it again where it was stopped.

    \b
    Example: qpr duplicates tickets.csv --run runs/quora_sdml --out found --precision 0.9
             qpr duplicates new.csv --against tickets.csv --max-distance 0.5 --out found
             qpr duplicates tickets.csv --incremental my_index --max-distance 0.5 --out found
    """
    from qpr_jax.duplicates.files import (
        check_folder,
        check_inputs,
        check_output,
        file_names,
        remove_before,
        write_files,
    )

    check_output(output)
    check_inputs(pathlib.Path(out), output, filter(None, (questions, against)))
    if not pathlib.Path(out, _WORK).exists():  # else a run was killed, perhaps before info.json
        check_folder(pathlib.Path(out), output)
    search, how = _open(options, across=against is not None)
    labeled = None if against is None else _read_labeled(against, how)
    others: Iterable[Entry] | None = labeled
    if against is not None and labeled is None:
        others = read_input(against, **how)
    count = _count_others(search, against, how) if labeled is None else len(labeled)
    costs = Costs(out, _estimate(out, search, count), stop=dry_run)
    entries = _read(questions, costs, how)
    if entries is None:
        return costs.facts
    with _output_folder(pathlib.Path(out)) as folder:
        work = folder / _WORK
        source = f"{input_name(questions)}, line"
        rows = _read_rows(search, work, (entries, source), (others, f"{against}, line"))
        info_path = folder / "info.json"
        rows_hash = read_object(work / "source.json").get("new")
        before = read_object(info_path) if search.index is not None else {}
        if not len(rows.searched) and rows_hash and before.get("rows") == rows_hash:
            log.info("%s: unchanged; the index has all these rows already", out)
            return {"out": out, **before}
        found = search.run(work, rows)
        remove_before(folder, output)
        write_files(folder, found, output)
        added = search.add_new(work, rows)
        info = {**_info(search, found), "files": file_names(output)}
        if search.index is not None:
            info |= {"added": added, "rows": rows_hash}
        write_json(info_path, info)
    costs.end()
    _summarize(out, info)
    return {"out": out, **info}


def _open(options: dict[str, Any], *, across: bool) -> tuple[Search, dict[str, Any]]:
    """The search that options ask for, and the options of reading."""
    from qpr_jax.cli.options import parse_rerank
    from qpr_jax.duplicates.choice import choose
    from qpr_jax.duplicates.find import needed_columns, open_search

    ways = ("threshold", "max_distance", "precision", "pairs")
    choice = choose(**{name: options.pop(name) for name in ways})
    names = ("run", "incremental", "within", "groups", "keep")
    given = {name: options.pop(name) for name in names}
    rerank = parse_rerank(options.pop("rerank"))
    memory = int(options.pop("memory") * _GIB)
    search = open_search(choice=choice, **given, across=across, rerank=rerank, memory=memory)
    needed = needed_columns(given["within"], given["keep"])
    if needed and options["no_payload"]:
        options["no_payload"], options["payload"] = False, ",".join(needed)
    elif needed and options["payload"]:
        options["payload"] = ",".join([options["payload"], *needed])
    return search, options


def _read(path: str, costs: Costs, how: dict[str, Any]) -> Iterator[Entry] | None:
    """The questions of an input, a file of labeled pairs, too; None where the command ends here."""
    from qpr_jax.costs.rows import sample_list

    labeled = _read_labeled(path, how)
    if labeled is None:
        say = functools.cache(log.info)
        entries = costs.begin(path, lambda: read_input(path, say=say, **how))
        return None if entries is None else progress.count(entries, "read", costs.count)
    sample = sample_list([entry.question for entry in labeled])
    return iter(labeled) if costs.begin_sample(sample) else None


def _read_labeled(path: str, how: dict[str, Any]) -> list[Entry] | None:
    """The distinct questions of a file of labeled pairs; None for any other input."""
    form = how["format"] or ""
    named = how["text_column"] or how["id_column"] or how["no_ids"]
    if named or not pair_columns(path, format=form):
        return None
    data = read_question_pairs(path, format=form, skip_bad_rows=how["skip_bad_rows"])
    pairs = zip(data.ids.tolist(), data.questions, strict=True)
    return [Entry(line, *pair) for line, pair in enumerate(pairs)]


def _read_rows(search: Search, work: pathlib.Path, table: Any, other: Any) -> Rows:
    """Write the rows to the folder of the work; UserError where the table has none."""
    from qpr_jax.duplicates.find import Source

    against = None if other[0] is None else Source(*other)
    rows = search.read(work, Source(*table), against)
    if not rows.table_rows:
        (work / "source.json").unlink()  # nothing is kept
        raise UserError(f"{table[1].rpartition(',')[0]}: expected questions, got none")
    return rows


def _count_others(search: Search, against: str | None, how: dict[str, Any]) -> int:
    """About how many rows the table is compared with."""
    from qpr_jax.costs.rows import sample_file

    if against is not None and pathlib.Path(against).is_file():
        return sample_file(against, read_input(against, **how)).count
    return len(search.index) if search.index is not None else 0


def _estimate(out: str, search: Search, others: int) -> Callable[[Sample], Estimate]:
    """From a sample of the table to what the search takes; others: rows that it comes on top of."""
    from qpr_jax.costs.mining import mine_estimate
    from qpr_jax.duplicates.search import distance_limit

    choice = search.settings.choice
    limit = None if choice.pairs else max(0.0, distance_limit(search.stages, search.settings))
    estimate = mine_estimate(
        *(out, search.encoder),
        max_distance=limit,
        count=choice.pairs,
        share=lambda sample: _share_within(search.within, sample),
    )
    return lambda sample: estimate(dataclasses.replace(sample, count=sample.count + others))


def _share_within(column: str | None, sample: Sample) -> float:
    """The share of the pairs of a sample's questions that are of one block."""
    from qpr_jax.duplicates.cells import block_of

    count = len(sample.entries)
    if column is None or count < 2:
        return 1.0
    values = (block_of((entry.payload or {}).get(column)) for entry in sample.entries)
    blocks = Counter(value for value in values if value is not None)
    return sum(size * (size - 1) for size in blocks.values()) / (count * (count - 1))


@contextlib.contextmanager
def _output_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Create a folder with one for the work, which goes at the end.

    On an error the work stays, unless nothing of it can be used again.
    """
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    work = folder / _WORK
    try:
        with locked(work / "lock") as is_free:
            if not is_free:
                raise UserError(
                    f"{folder}: another `qpr duplicates` writes it",
                    setting="out",
                    remedy="wait for it, or name another folder",
                )
            try:
                yield folder
            except BaseException:
                if not (work / "source.json").exists():
                    shutil.rmtree(work, ignore_errors=True)
                raise
            shutil.rmtree(work)
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in created:
                parent.rmdir()
        raise


def _info(search: Search, found: Found) -> dict[str, Any]:
    """The facts of info.json."""
    rows, groups, settings = found.rows, found.groups, found.settings
    sizes = groups.starts[1:] - groups.starts[:-1]
    known, by_light = found.pairs.calibration, found.pairs.raw is not None
    return {
        "run": str(search.run_folder),
        "questions": len(rows.searched),
        "texts": len(rows.first),
        "threshold": found.pairs.threshold,
        "max_distance": found.max_distance if found.max_distance < float("inf") else None,
        "precision": found.precision,
        "calibration": None if known is None else known.identity(light=by_light),
        "pairs": found.listed,
        "copies": found.copies,
        "linkage": settings.linkage,
        "groups": len(groups),
        "grouped_questions": int(sizes.sum()),
        "largest_group": int(sizes.max(initial=0)),
        "kept": len(groups.kept_rows(rows)),
        "exact": found.exact,
        "missed": found.missed,
    }


def _summarize(out: str, info: dict[str, Any]) -> None:
    if not info["exact"]:
        log.info("about %.1f%% of the pairs were missed", 100 * info["missed"])
    if info["precision"] is not None:
        threshold = "" if info["threshold"] is None else f", threshold {info['threshold']:.3g}"
        log.info("expected precision of the pairs: %.3f%s", info["precision"], threshold)
    names = ("pairs", "copies", "groups", "grouped_questions", "largest_group", "kept", "questions")
    log.info(
        "%s: pairs: %s; copies: %s; groups: %s of %s questions, the largest of %s; %s of %s stay",
        *(out, *(f"{info[name]:,}" for name in names)),
    )


@click.command(
    cls=Command,
    stopped="nothing was changed",
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.pass_context
def mine(context: click.Context) -> dict[str, Any]:
    """Refuse the old name of `qpr duplicates`."""
    raise UserError(
        "`qpr mine` is now `qpr duplicates`, whose --threshold is a probability",
        remedy="run `qpr duplicates QUESTIONS --out FOLDER` with --max-distance or --pairs",
    )
