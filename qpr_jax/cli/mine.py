"""The command that finds all duplicates in a file of questions: mine."""

from __future__ import annotations

import array
import contextlib
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click
import numpy as np

from qpr_jax import progress
from qpr_jax.cli import options
from qpr_jax.cli.command import Command
from qpr_jax.cli.completion import complete_encoder
from qpr_jax.cli.costs import Costs, dry_run
from qpr_jax.cli.options import FiniteRange, NamedPath, ids_input, questions_input, read_input
from qpr_jax.data.labeled_pairs import read_labeled
from qpr_jax.data.pairs import pair_columns, read_question_pairs
from qpr_jax.data.tables import input_name
from qpr_jax.encoders.base import encode_in_parts
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically, write_json
from qpr_jax.ids import Id, number_entries, refuse_repeated

log = logging.getLogger("qpr_jax")


@click.command(cls=Command, stopped="{out} is complete only if it has info.json")
@click.argument("questions", default="-")
@click.option(
    "--run",
    default="minilm",
    type=NamedPath(),
    shell_complete=complete_encoder,
    help="Folder of the encoder, or minilm.",
)
@click.option("--out", required=True, type=NamedPath(file_okay=False), help="Output folder.")
@click.option("--threshold", type=FiniteRange(min=0), help="The largest squared distance.")
@click.option("--pairs", "count", type=click.IntRange(min=1), help="Number of closest pairs.")
@click.option("--labels", type=NamedPath(), help="Labeled pairs that choose the threshold ...")
@click.option("--precision", type=FiniteRange(0, 1, min_open=True), help="... for this precision.")
@click.option("--most", default=10_000_000, type=click.IntRange(1), help="More pairs are an error.")
@click.option("--output", type=click.Choice(["jsonl", "tsv"]), default="jsonl")
@dry_run
@questions_input
@ids_input
def mine(
    questions: str,
    run: str,
    out: str,
    threshold: float | None,
    count: int | None,
    labels: str | None,
    precision: float | None,
    most: int,
    output: str,
    dry_run: bool,
    **how: Any,
) -> dict[str, Any]:
    """Find all pairs of QUESTIONS up to a distance, and the clusters that they form.

    Give --threshold, or --pairs, or both --labels and --precision. The last two take the largest
    threshold with at least this precision on the questions of the labeled pairs: the share of pairs
    up to the threshold that are labeled duplicates, directly or through other pairs. A larger set
    of questions has more pairs that are no duplicates, so the precision holds for a set of about
    the same size.

    QUESTIONS can be labeled pairs, as Quora's file, too. Writes pairs (id1, id2, distance,
    question1, question2; nearest first), clusters (cluster, id, question) and info.json to --out.
    The search is exact; its time grows with the square of the number of questions.

    Example: qpr mine questions.tsv --run runs/quora_sdml --out mined --threshold 0.5
    """
    from qpr_jax.costs.mining import mine_estimate
    from qpr_jax.costs.rows import sample_list
    from qpr_jax.data.clusters import transitive_clusters
    from qpr_jax.index.mining import close_pairs, closest_pairs
    from qpr_jax.retriever import run_encoder

    by_precision = labels is not None or precision is not None
    ways = [threshold is not None, count is not None, by_precision]
    if sum(ways) != 1 or (labels is None) != (precision is None):
        raise click.UsageError("give one of --threshold, --pairs, or --labels with --precision")
    encoder = run_encoder(run)
    estimate = mine_estimate(out, encoder, threshold=threshold, count=count, most=most)
    costs = Costs(out, estimate, stop=dry_run)
    if dry_run:
        costs.begin_sample(sample_list(_read_questions(questions, **how)[1]))
        return costs.facts
    with _output_folder(out) as folder:  # first, so that a folder that cannot be written fails now
        ids, texts = _read_questions(questions, **how)
        costs.begin_sample(sample_list(texts))
        if labels is not None and precision is not None:
            threshold = _choose_threshold(encoder.encode, labels, precision, len(texts))
        vectors = encode_in_parts(
            encoder.encode, lambda part: texts[part], len(texts), encoder.dimension
        )
        if count is not None:
            pairs = closest_pairs(vectors, count)
        else:
            pairs = close_pairs(vectors, float(threshold or 0), most=most)
        clusters = transitive_clusters(len(texts), np.stack([pairs.first, pairs.second], axis=1))
        found = zip(*(values.tolist() for values in pairs), strict=True)
        rows = ((ids[a], ids[b], distance, texts[a], texts[b]) for a, b, distance in found)
        (folder / "info.json").unlink(missing_ok=True)  # it comes last, and says that all is there
        _write_rows(folder / f"pairs.{output}", "id1 id2 distance question1 question2", rows)
        members = np.argsort(clusters, kind="stable")[(clusters < 0).sum() :].tolist()
        member_rows = ((int(clusters[i]), ids[i], texts[i]) for i in members)
        _write_rows(folder / f"clusters.{output}", "cluster id question", member_rows)
        sizes = np.bincount(clusters[clusters >= 0], minlength=1)
        if threshold is None:
            threshold = float(pairs.distances.max(initial=0))
        info: dict[str, Any] = {
            "run": run,
            "questions": len(texts),
            "threshold": threshold,
            "pairs": len(pairs.first),
            "clustered_questions": int(sizes.sum()),
            "clusters": int((sizes > 0).sum()),
            "largest_cluster": int(sizes.max()),
        }
        write_json(folder / "info.json", info)
    costs.end()
    counts = (f"{info[name]:,}" for name in [*info][3:])
    log.info("%s: %s pairs, %s questions in %s clusters, the largest of %s", out, *counts)
    return {"out": out, **info}


@contextlib.contextmanager
def _output_folder(path: str) -> Iterator[pathlib.Path]:
    """Create a folder; on an error remove what was created, unless it has files."""
    folder = pathlib.Path(path)
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in created:
                parent.rmdir()
        raise


def _read_questions(path: str, **how: Any) -> tuple[list[Id], list[str]]:
    """Read ids and texts of all questions; UserError for none, or for an id of several."""
    form = how["format"] or ""
    named = how["text_column"] or how["id_column"] or how["no_ids"]
    if not named and pair_columns(path, format=form):
        data = read_question_pairs(path, format=form, skip_bad_rows=how["skip_bad_rows"])
        return data.ids.tolist(), data.questions
    lines = array.array("q")
    entries = progress.count(read_input(path, **how), "read")
    where = f"{input_name(path)}, line"
    rows = list(number_entries(entries, lines, where))
    if not rows:
        raise UserError(f"{input_name(path)}: expected questions, got none")
    ids = [value for value, _, _ in rows]
    refuse_repeated(ids, lines, where)
    return ids, [text for _, text, _ in rows]


def _choose_threshold(
    encode: Callable[[Sequence[str]], np.ndarray], labels: str, precision: float, count: int
) -> float:
    """The largest threshold with a precision on labeled pairs, for mining `count` questions."""
    from qpr_jax.evaluation.pairs import mine_labeled_questions, threshold_of_precision

    pairs, clusters = mine_labeled_questions(encode, read_labeled(labels))
    threshold = threshold_of_precision(pairs, clusters, precision)
    log.info("threshold: %r", threshold)
    if count > 2 * len(clusters):
        log.info(
            "warning: this is the precision among the %s labeled questions; each of %s has more "
            "other questions at such a distance",
            *(f"{len(clusters):,}", f"{count:,}"),
        )
    return threshold


def _write_rows(path: pathlib.Path, columns: str, rows: Iterable[Sequence[object]]) -> None:
    names = columns.split()
    with write_atomically(path, "w") as file:
        if path.suffix == ".tsv":
            file.write("\t".join(names) + "\n")
        line = options.as_tsv if path.suffix == ".tsv" else options.as_json
        file.writelines(line(dict(zip(names, row, strict=True))) for row in rows)
