"""Labeled tables of unlike kinds, to measure what holds on a table that nothing was fitted to.

Each table is the same at each reading. A table whose source is missing is skipped; a line says how
to get it.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib.resources
import logging
import os
import pathlib
import random
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from experiments import documentation
from experiments.home_sentences import home_sentences
from qpr_jax.data.question_pairs import read_question_pairs, transitive_clusters
from qpr_jax.text.cleaning import folded
from qpr_jax.text.tokenizer import normalized_text

log = logging.getLogger("qpr_jax")

LOGS = "sample_files", "logs.jsonl"  # of `qpr sample`
CLINIC = pathlib.Path(__file__).with_name("clinic.toml")
MOST = 2_500  # texts of a table, about
QUERIES_OF_GROUP = 3  # at most
UNANSWERABLE = 0.2  # share of groups that are not indexed
RUN = 8  # words in a row that two texts share by more than chance


@dataclass(frozen=True)
class Table:
    """Texts, and which of them mean the same.

    Attributes:
      texts: n texts of distinct spellings.
      groups: int64 [n], equal for duplicates; a text alone has a number of its own.
      contrasts: int64 [c, 2], rows of near misses.
      queries: texts that are searched among the rows `indexed`.
      answers: int64 [q], the group that answers a query, or -1 for none.
      indexed: int64 [k], rows of texts.
    """

    name: str
    texts: list[str]
    groups: np.ndarray
    contrasts: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    queries: list[str] = field(default_factory=list)
    answers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    indexed: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


# Texts with the label that duplicates share.
Labeled = Iterable[tuple[str, object]]


def make_table(
    name: str,
    labeled: Labeled,
    contrasts: Iterable[tuple[str, str]] = (),
    *,
    asked: int = QUERIES_OF_GROUP,
) -> Table:
    """Make a table with queries of its own texts; of texts with equal spellings the first stays.

    A near miss is left out if its texts share a label. A fifth of the groups is not indexed, and
    its queries have no answer. Of the other groups one text at least is indexed.
    """
    rows: dict[str, int] = {}
    texts, labels = list[str](), list[object]()
    for text, label in labeled:
        if (key := folded(text)) not in rows:
            rows[key] = len(texts)
            texts.append(text)
            labels.append(label)
    groups = pd.factorize(np.array([str(label) for label in labels], object))[0].astype(np.int64)
    pairs = [(rows.get(folded(a), -1), rows.get(folded(b), -1)) for a, b in contrasts]
    kept = sorted({(min(p), max(p)) for p in pairs if min(p) >= 0 and groups[p[0]] != groups[p[1]]})
    near = np.array(kept, np.int64).reshape(-1, 2)
    return with_queries(Table(name, texts, groups, near), asked)


def with_queries(table: Table, most: int = QUERIES_OF_GROUP) -> Table:
    """Take at most so many queries from the texts of each group of a table."""
    rng, members = np.random.default_rng(0), defaultdict[int, list[int]](list)
    for row in rng.permutation(len(table.texts)).tolist():
        members[int(table.groups[row])].append(row)
    queries, answers, indexed = list[int](), list[int](), list[int]()
    for group in sorted(members):
        rows, hidden = members[group], rng.random() < UNANSWERABLE
        asked = rows[0 if hidden else 1 :][:most]
        queries += asked
        answers += [-1 if hidden else group] * len(asked)
        indexed += [] if hidden else [row for row in rows if row not in asked]
    texts = [table.texts[row] for row in queries]
    return replace(table, queries=texts, answers=np.array(answers), indexed=np.sort(indexed))


def with_titles(name: str, pages: Sequence[tuple[str, str]]) -> Table:
    """Make a table of titles that search first sentences, a fifth of which is missing."""
    if not pages:
        raise FileNotFoundError("its pages")
    titles, firsts = ([folded(page[side]) for page in pages] for side in (0, 1))
    once = [
        titles.count(title) == 1 == firsts.count(first) and title != first
        for title, first in zip(titles, firsts, strict=True)
    ]
    left = [page for page, single in zip(pages, once, strict=True) if single]
    order = np.random.default_rng(0).permutation(len(left))[: MOST // 2].tolist()
    asked = [left[i] for i in order]
    count = int(len(asked) * (1 - UNANSWERABLE))
    return Table(
        name,
        [first for _, first in asked[:count]] + [title for title, _ in asked],
        np.concatenate([np.arange(count), np.arange(len(asked))]),
        queries=[title for title, _ in asked],
        answers=np.where(np.arange(len(asked)) < count, np.arange(len(asked)), -1),
        indexed=np.arange(count),
    )


def sampled(frame: pd.DataFrame, most: int) -> list[tuple[str, str]]:
    """Sample 1 to `most` questions of each answer of a log."""
    rng, rows = np.random.default_rng(0), list[tuple[str, str]]()
    for answer, part in frame.groupby("answer"):
        questions = part["question"].unique()
        chosen = rng.permutation(len(questions))[: rng.integers(1, most + 1)]
        rows += [(questions[i], str(answer)) for i in chosen]
    return rows


def read_log(data: pathlib.Path, name: str) -> pd.DataFrame:
    """Read the columns `question` and `answer` of a log."""
    return pd.read_json(data / "qa_logs" / f"{name}.jsonl.gz", lines=True, dtype=False)


def split_logs(data: pathlib.Path) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the rows of logs to learn from, and those held out."""
    clinc, web = (read_log(data, name) for name in ("clinc150", "webquestions"))
    held_out = clinc["answer"].isin(sorted(clinc["answer"].unique())[::3])
    learned = len(web) * 2 // 3
    return {
        "clinc150": (clinc[~held_out], clinc[held_out]),
        "webquestions": (web[:learned], web[learned:]),
    }


def scored_texts(data: pathlib.Path) -> set[str]:
    """Return the test sentences of Tatoeba, normalized."""
    texts = set[str]()
    for path in (data / "parallel").glob("tatoeba_test.*.eng.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts.update(map(normalized_text, file))
    return texts


def sample(options: argparse.Namespace) -> Table:
    """Read the logs of `qpr sample`."""
    with importlib.resources.files("qpr_jax.data").joinpath(*LOGS).open() as file:
        rows = pd.read_json(file, lines=True)
    return make_table("sample", zip(rows["question"], rows["answer"], strict=True))


def clinc(options: argparse.Namespace) -> Table:
    """Read the intents of clinc150 that `experiments.open_texts` leaves out."""
    (_, held_out), _ = split_logs(options.data).values()
    return make_table("clinc150", sampled(held_out, 20), asked=8)


def webquestions(options: argparse.Namespace) -> Table:
    """Read the held-out questions of one answer, which at most five questions have."""
    _, (_, held_out) = split_logs(options.data).values()
    single = held_out[held_out.groupby("question")["answer"].transform("nunique") == 1]
    few = single[single.groupby("answer")["question"].transform("nunique") <= 5]
    return make_table("webquestions", zip(few["question"], few["answer"], strict=True))


def quora(options: argparse.Namespace) -> Table:
    """Sample test questions of Quora, at most four of a cluster, and labeled non-duplicates."""
    from qpr_jax.data.splits import TEST
    from qpr_jax.training.config import load_config
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.sources import find_quora

    found = load_dataset(load_config("quora_sdml", {}), find_quora())
    data, clusters, rng = found.data, found.clusters, np.random.default_rng(0)
    tested = found.splits.split_of == TEST
    apart = data.pairs[~data.is_duplicate & tested[data.pairs].any(axis=1)]
    apart = apart[rng.permutation(len(apart))[:400]]
    others = rng.permutation(np.unique(clusters[tested]))[:600]
    rows = apart.ravel()
    for cluster in np.union1d(clusters[rows], others).tolist():
        members = np.flatnonzero((clusters == cluster) & tested)
        rows = np.append(rows, rng.permutation(members)[:4])
    texts = data.questions  # one without a cluster, -1, has no duplicate
    kept = dict.fromkeys(rows.tolist())
    labeled = [(texts[row], clusters[row] if clusters[row] >= 0 else -2 - row) for row in kept]
    return make_table("quora", labeled, [(texts[a], texts[b]) for a, b in apart.tolist()])


def tatoeba(options: argparse.Namespace) -> Table:
    """Read English sentences that share a German translation, among test sentences."""
    from qpr_jax.data.parallel_sentences import read_translations

    found = read_translations(f"en-de:{options.data}/parallel/tatoeba.en-de.tsv.gz")
    english = defaultdict[str, dict[str, str]](dict)
    for one, other in zip(found.sources, found.targets, strict=True):
        english[normalized_text(other)].setdefault(normalized_text(one), one)
    linked, used = list[tuple[str, str]](), set[str]()
    for german in random.Random(0).sample(sorted(english), len(english)):
        members = english[german]
        if 1 < len(members) < 6 and not used & {*members} and len(linked) < 1_000:
            linked += [(text, german) for text in members.values()]
            used |= {*members}
    alone = sorted(scored_texts(options.data) - used)
    return make_table("tatoeba", linked + [(text, text) for text in alone[:: len(alone) // 800]])


def pairs_table(path: pathlib.Path, options: argparse.Namespace | None = None) -> Table:
    """Read a CSV of labeled pairs; groups are the closure of the duplicates."""
    data = read_question_pairs(path)
    texts, duplicates = data.questions, data.pairs[data.is_duplicate]
    clusters = transitive_clusters(len(texts), duplicates).tolist()
    labeled = [
        (text, group if group >= 0 else text) for text, group in zip(texts, clusters, strict=True)
    ]
    others = data.pairs[~data.is_duplicate].tolist()
    return make_table(path.stem, labeled, [(texts[a], texts[b]) for a, b in others])


def clinic(options: argparse.Namespace) -> Table:
    """Fill the templates of `clinic.toml`; its first texts without an answer are never indexed."""
    rules = tomllib.loads(CLINIC.read_text(encoding="utf-8"))
    labeled, contrasts = list[tuple[str, object]](), list[tuple[str, str]]()
    for number, cluster in enumerate(rules["cluster"]):
        slot = re.search(r"\{(\w+)\}", cluster["same"][0])
        values = rules["values"][slot[1]] if slot else [""]
        firsts = []
        for place, value in enumerate(values):
            used = cluster["same"][: None if place == 0 else 2]
            wordings = [text.replace(slot[0], value) if slot else text for text in used]
            labeled += [(text, (number, place)) for text in wordings]
            firsts.append(wordings[0])
        others = firsts[1:] + cluster.get("other", [])
        labeled += [(text, text) for text in cluster.get("other", [])]
        contrasts += [(firsts[0], other) for other in others]
    table = make_table("clinic", labeled, contrasts)
    more = rules["unanswerable"]
    answers = np.append(table.answers, np.full(len(more), -1))
    return replace(table, queries=table.queries + more, answers=answers)


_DEBIAN = "apt-get download {0}; dpkg -x {0}_*.deb FOLDER/{0}; --sources FOLDER"
_DATA = "set $QPR_DATA_DIR to the folder of the data"
# The readers of tables, and how to get what each reads.
TABLES: dict[str, tuple[Callable[[argparse.Namespace], Table], str]] = {
    "sample": (sample, ""),
    "clinc150": (clinc, _DATA),
    "webquestions": (webquestions, _DATA),
    "quora": (quora, _DATA),
    "tatoeba": (tatoeba, _DATA),
    "home": (
        lambda options: make_table("home", *home_sentences()),
        "pip install --no-deps home-assistant-intents",
    ),
    "office_help": (
        lambda o: with_titles("office_help", documentation.office_help(o.sources)),
        _DEBIAN.format("libreoffice-help-en-us"),
    ),
    "perlfaq": (
        lambda o: with_titles("perlfaq", documentation.perlfaq(o.sources)),
        _DEBIAN.format("perl-doc"),
    ),
    "clinic": (clinic, ""),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where sources are."""
    path, data = pathlib.Path, os.environ.get("QPR_DATA_DIR", "")
    parser.set_defaults(data=path(data))
    parser.add_argument("--tables", type=path, help="folder of *_pairs.csv, each one a table")
    parser.add_argument("--sources", type=path, default=path(), help="folder of Debian packages")
    parser.add_argument("--only", help="names of tables, with commas between")


def read_tables(options: argparse.Namespace) -> list[Table]:
    """Read all tables whose sources are there."""
    readers = dict(TABLES)
    for path in sorted(options.tables.glob("*_pairs.csv")) if options.tables else ():
        readers[path.stem] = functools.partial(pairs_table, path), ""
    names = options.only.split(",") if options.only else [*readers]
    tables = []
    for name in names:
        read, remedy = readers[name]
        try:
            tables.append(read(options))
        except (OSError, ImportError) as error:
            log.warning("%s is skipped (%s): %s", name, error, remedy)
    return tables


def in_training(table: Table, training: Iterable[str]) -> list[str]:
    """Return the texts and queries of a table that stand in training texts (see `text_keys`)."""
    texts_of = defaultdict[str, set[str]](set)
    for text in [*table.texts, *table.queries]:
        for key in text_keys(text):
            texts_of[key].add(text)
    found = set[str]()
    for line in training:
        found.update(*(texts_of[key] for key in text_keys(line) if key in texts_of))
    return sorted(found)


def text_keys(text: str) -> list[str]:
    """Return a text without case and marks, and its runs of RUN words.

    Two texts share a key if they are equal without case and marks, or share RUN words in a row.
    """
    whole = normalized_text(text)
    words = whole.split()
    return [whole, *(" ".join(words[at : at + RUN]) for at in range(len(words) - RUN + 1))]
