"""Where the data of a training comes from: one entry of SOURCES for each kind, and lists of texts.

The settings `data.path` (with `data.source=questions`) and `data.unlabeled` name lists: a file or a
folder of questions.
"""

from __future__ import annotations

import http.client
import itertools
import logging
import os
import pathlib
import urllib.error
import urllib.request
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax import kinds
from qpr_jax.data.decoding import table_files
from qpr_jax.data.generated_questions import recombine_questions, replace_words, synthetic_pairs
from qpr_jax.data.log_clusters import (
    LEAST,
    Method,
    is_made,
    make_folder,
    read_clusters,
    read_report,
)
from qpr_jax.data.logs import Logs
from qpr_jax.data.question_pairs import QuestionPairs, read_question_pairs, transitive_clusters
from qpr_jax.data.splits import (
    SplitData,
    Splits,
    add_labels,
    no_pairs,
    split_by_cluster,
    split_by_text,
)
from qpr_jax.data.tables import read_table
from qpr_jax.errors import UserError
from qpr_jax.files import user_cache, write_atomically
from qpr_jax.running import progress
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.config import TrainConfig, flatten, naming, refuse_if

log = logging.getLogger(__name__)

SYNTHETIC_CLUSTERS = 6_000
NAME = "quora_duplicate_questions.tsv"
ADDRESS = "http://qim.fs.quoracdn.net/quora_duplicate_questions.tsv"
SIZE = 58_176_133  # bytes of the official file
TIMEOUT = 30.0  # seconds without an answer


@dataclass(frozen=True)
class Source:
    """A kind of data."""

    read: Callable[[TrainConfig, pathlib.Path], SplitData]  # generated data ignores the path
    # The path that the config names, downloaded if need be; None if data is generated.
    find: Callable[[TrainConfig], pathlib.Path] | None = None
    # (config, path, work directory) -> the path to read instead, made by process 0.
    prepare: Callable[[TrainConfig, pathlib.Path, pathlib.Path], pathlib.Path] | None = None
    has_pairs: bool = True


def _read_pairs(config: TrainConfig, path: pathlib.Path) -> SplitData:
    skip, most = config.data.skip_bad_rows, config.data.max_rows
    return _split(config, read_question_pairs(path, skip_bad_rows=skip, max_rows=most))


def _generate(config: TrainConfig, _: pathlib.Path) -> SplitData:
    return _split(config, synthetic_pairs(clusters=config.data.max_rows or SYNTHETIC_CLUSTERS))


def _split(config: TrainConfig, data: QuestionPairs) -> SplitData:
    """Cluster labeled pairs by transitivity, and split them by cluster."""
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    splits = split_by_cluster(data, clusters, held_out_pairs=config.data.held_out_pairs)
    if config.data.labels:
        labels = read_question_pairs(config.data.labels, skip_bad_rows=config.data.skip_bad_rows)
        return add_labels(data, splits, labels)
    return SplitData(data, clusters, splits)


def _make_clusters(config: TrainConfig, logs: pathlib.Path, workdir: pathlib.Path) -> pathlib.Path:
    """Return the folder of clusters of `logs`, made in `workdir` unless `logs` is one itself."""
    coherence = config.data.coherence
    if is_made(logs):
        written = read_report(logs)["method"]["coherence"]
        other = coherence not in (TrainConfig().data.coherence, written)
        what = f"{logs}: expected clusters made with {coherence}, got {written}"
        remedy = "make them again with `qpr clusters`, or leave the setting out"
        refuse_if(other, "data.coherence", what, remedy)
        return logs
    folder = workdir / "clusters"
    if not folder.exists():
        rows = Logs(table_files([str(logs)]), max_rows=config.data.max_rows)
        method = Method(coherence, LEAST[coherence])
        make_folder(folder, rows, method, skip_bad_rows=config.data.skip_bad_rows)
    return folder


def _read_list(config: TrainConfig, _: pathlib.Path) -> SplitData:
    """Return a list of questions, of which nothing else is known: there are no pairs."""
    rows = [*itertools.islice(read_listed(config, "data.path"), config.data.max_rows or None)]
    questions = [*dict.fromkeys(rows)]
    counts = {"rows": len(rows), "repeated_rows": len(rows) - len(questions)}
    data = QuestionPairs.of_duplicates(questions, np.zeros((0, 2), np.int32), **counts)
    splits = Splits(split_by_text(questions, most=config.data.held_out_pairs), no_pairs())
    return SplitData(data, np.full(len(questions), -1, np.int32), splits)


def _find_list(config: TrainConfig) -> pathlib.Path:
    """Return the file or the folder of a list."""
    expected = "a file of questions (one a line, or TSV, CSV, JSON lines, Parquet)"
    refuse_if(not config.data.path, "data.path", f"expected {expected}, got ''")
    listed_files(config, "data.path")  # which must be there
    return pathlib.Path(config.data.path)


SOURCES = {
    "quora": Source(_read_pairs, find=lambda config: find_quora(config.data.path)),
    "qa_logs": Source(
        lambda _, path: read_clusters(path),
        find=lambda config: find_logs(config.data.path),
        prepare=_make_clusters,
    ),
    "questions": Source(_read_list, find=_find_list, has_pairs=False),
    "synthetic": Source(_generate),
}


def listed_files(config: TrainConfig, setting: str) -> list[pathlib.Path]:
    """Return the files of a list, none if it has no name; UserError where it is missing."""
    path = flatten(config)[setting]
    if not path:
        return []
    what = f"expected a file or a folder, found none at {path}"
    what += kinds.similar_path(path, kinds.TABLE)
    remedy = "name another; files in runs/ are made by programs of experiments/"
    refuse_if(not os.path.exists(path), setting, what, remedy)
    with naming(setting):
        if setting == "data.labels":
            kinds.refuse_kind(path, kinds.LABELS, kinds.TABLE, kinds.PACKED)
        return [*map(pathlib.Path, table_files([path]))]


def read_listed(config: TrainConfig, setting: str) -> Iterator[str]:
    """Yield the texts of a list."""
    skip = config.data.skip_bad_rows
    for file in listed_files(config, setting):
        table = read_table(file, id=None, payload=False, skip_bad_rows=skip)
        for entry in table:
            yield entry.question


def unlabeled_texts(
    config: TrainConfig,
    questions: list[str],
    trained: list[str],
    held_out: Container[str],
    words: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return the texts of `data.unlabeled`, and the texts that are made.

    These are `words`, and questions recombined of `trained` and of the first ones.

    Texts among `questions`, or normalized in `held_out`, are left out. Some words of recombined
    questions are replaced by `words`, those of `teacher.words`.
    """
    taken = set(questions)

    def is_new(text: str) -> bool:
        return text not in taken and normalized_text(text) not in held_out

    def take(texts: Iterable[str], what: str) -> list[str]:
        found = [text for text in dict.fromkeys(texts) if is_new(text)]
        taken.update(found)
        if found:
            log.info("data: %s %s", f"{len(found):,}", what)
        return found

    collected = take(read_listed(config, "data.unlabeled"), "unlabeled texts")
    derived = take(words, "words of the teacher")
    if config.data.recombined:
        joined = recombine_questions(trained + collected, config.data.recombined, accept=is_new)
        derived += take(replace_words(joined, words) if words else joined, "recombined questions")
    return collected, derived


def find_quora(path: str = "") -> pathlib.Path:
    """Return `path`, or else the pair file in `$QPR_DATA_DIR` or the cache, or download it there.

    The cache is `$XDG_CACHE_HOME/qpr_jax` (`~/.cache/qpr_jax`).
    """
    if path:
        file = pathlib.Path(path)
        if not file.exists():
            what = f"expected a file of question pairs, found none at {path}"
            what += kinds.similar_path(path, kinds.LABELS)
            raise UserError(what, setting="data.path", remedy="name a file or a folder")
        kinds.refuse_kind(file, kinds.LABELS, kinds.TABLE, kinds.PACKED)
        return file
    folder, cached = os.environ.get("QPR_DATA_DIR"), user_cache() / NAME
    if folder and (found := pathlib.Path(folder, "quora", NAME)).is_file():
        return found
    if cached.is_file():
        return cached
    log.info("downloading %s to %s", ADDRESS, cached)
    try:
        _download(cached)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        what = f"expected a pair file at $QPR_DATA_DIR/quora/{NAME} or {cached}, got none, and the "
        what += f"download from {ADDRESS} failed ({error})"
        remedy = "put the file there, name it with `data.path`, or use "
        remedy += "`data.source=synthetic`, which needs none"
        raise UserError(what, remedy=remedy) from error
    return cached


def find_logs(path: str) -> pathlib.Path:
    """Return logs of questions and answers: `path` (file or folder), else $QPR_DATA_DIR/qa_logs."""
    folder = os.environ.get("QPR_DATA_DIR")
    found = pathlib.Path(path) if path else pathlib.Path(folder or ".", "qa_logs")
    if not found.exists():
        what = f"expected logs of questions and answers, found none at {found}"
        remedy = "name a file or folder of them, or a folder that `qpr clusters` made, or set "
        remedy += "$QPR_DATA_DIR to the folder that contains qa_logs/"
        raise UserError(what, setting="data.path", remedy=remedy)
    return found


def _download(path: pathlib.Path) -> None:
    """Download ADDRESS to `path`, whole or not at all; OSError or HTTPException on failure."""
    with urllib.request.urlopen(ADDRESS, timeout=TIMEOUT) as answer, write_atomically(path) as file:
        size = 0
        with progress("byte", SIZE) as show:
            while size <= SIZE and (chunk := answer.read(1 << 18)):
                size += file.write(chunk)
                show(size, "")
        if size != SIZE:
            got = f"{size} bytes" if size < SIZE else "more"
            raise OSError(f"expected {SIZE} bytes, got {got}")
