"""Changed queries: typos and the like must not change the first hit, "not" and other numbers must.

    python -m experiments.robustness --baselines              BM25, TF-IDF, all-MiniLM-L6-v2
    python -m experiments.robustness --runs=NAME=FOLDER,...   finished runs, each as a row
    python -m experiments.robustness --rebuild                the page from what is kept

The figures of the page's tables, but their intervals, are in scores.json, too.

The queries are test questions of the Quora pairs, which a run of these pairs must have held out,
searched among all questions. A row that is kept is not made again, unless the system, the changes
or the file are others. FOLDER of a run may be any encoder that `qpr` reads, NAME is what the page
calls it. Needs the extras `lexical` and `minilm`. With the `teacher.cache` of a training that had
the teacher as `--teacher_cache`, the transformer need not encode all questions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.changed_hits import UNCHANGED, Corpus, find_hits, read_corpus
from experiments.query_changes import (
    CHANGES,
    EXAMPLE,
    OTHER,
    SAME,
    example,
)
from experiments.study import Flags, KeptRows, Study
from experiments.systems import (
    FLAGS,
    ONE,
    MakeSystem,
    baselines,
    given_runs,
    in_order,
    run_identity,
    run_system,
    title_of,
)
from experiments.tables import table_lines
from experiments.trials import log
from qpr_jax.data.sources import find_quora
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import mean_interval, read_ranks, write_ranks
from qpr_jax.files import (
    read_object,
    replace_folder,
    sha256_of,
    write_json,
)
from qpr_jax.retriever import run_encoder
from qpr_jax.training.overrides import load_config
from qpr_jax.training.report import save_figure

MOST = 1000  # queries of a change that keeps the meaning
ACCEPTED = 0.9  # the share of right first hits of unchanged queries that a threshold accepts
FACTS, HITS = "row.json", "hits.npz"  # of a row
SCORES = "scores.json"
QUERIES = "queries.npz"  # of all rows
_SMALL = 20  # queries, with --smoke
_SPLIT_SETTINGS = ("data.split_seed", "data.held_out_pairs", "data.max_held_out_cluster")


def score_baselines(flags: Flags) -> list[str]:
    """Search with what is no run."""
    made = baselines(flags.teacher_cache).items()
    return _keep({name: (make, [name]) for name, make in made}, flags)


def score_runs(flags: Flags) -> list[str]:
    """Search with the runs that `--runs` names."""
    rows = {}
    expected = load_config("quora_sdml").data
    for name, folder in given_runs(flags.runs).items():
        encoder = run_encoder(folder)
        of_quora = encoder.settings.get("data.source", "quora") == "quora"
        for setting in _SPLIT_SETTINGS if of_quora else ():
            value = getattr(expected, setting.partition(".")[2])
            if (got := encoder.settings.get(setting, value)) != value:
                what = f"{folder}: expected a run with `{setting}` {value}, got {got}"
                raise UserError(what, remedy="it has not held out the same questions")
        rows[name] = functools.partial(run_system, folder), run_identity(folder)
    return _keep(rows, flags)


def _keep(rows: Mapping[str, tuple[MakeSystem, list[str]]], flags: Flags) -> list[str]:
    """Search with the rows that are not kept, and keep what they find."""
    most = _SMALL if flags.smoke else MOST
    data, corpus = sha256_of(find_quora()), None
    for name, (make, system) in rows.items():
        kept = flags.results / "rows" / name
        identity = {"system": system, "most": most, "changes": [*CHANGES], "data": data}
        if read_object(kept / FACTS).get("identity") == identity:
            log.info("%s is kept", name)
            continue
        corpus = corpus or read_corpus(load_config("quora_sdml"), most)
        _describe(flags, corpus)
        log.info("%s: indexing %s questions", name, f"{len(corpus.questions):,}")
        hits = find_hits(make(corpus.questions), corpus)
        with replace_folder(kept) as part:
            write_json(part / FACTS, {"identity": identity})
            write_ranks(part / HITS, hits)
    return []


def _describe(flags: Flags, corpus: Corpus) -> None:
    """Keep which queries are changed, and the clusters of all."""
    queries = {name: changed.queries for name, changed in corpus.changed.items()}
    clusters = {"clusters": corpus.clusters[corpus.rows]}
    write_ranks(flags.results / QUERIES, clusters | queries)


class Kept(NamedTuple):
    """One stage of a row: what `find_hits` gave for each change."""

    name: str
    stage: str
    right: dict[str, np.ndarray]
    score: dict[str, np.ndarray]

    @property
    def title(self) -> str:
        """What the page calls it."""
        return title_of(self.name) + ("" if self.stage == ONE else ", two stages")

    @property
    def threshold(self) -> float:
        """The score that `ACCEPTED` of the right first hits of unchanged queries reach."""
        scores = self.score[UNCHANGED][self.right[UNCHANGED]]
        return float(np.quantile(scores, 1 - ACCEPTED)) if len(scores) else np.inf

    def still(self, name: str, queries: np.ndarray) -> np.ndarray:
        """Of queries whose hit was right before, whether it is the old paraphrase still."""
        return self.right[name][self.right[UNCHANGED][queries]]

    def accepted(self, name: str, queries: np.ndarray) -> np.ndarray:
        """As `still`, and the score of the hit reaches the threshold."""
        before = self.right[UNCHANGED][queries]
        return self.still(name, queries) & (self.score[name][before] >= self.threshold)


def read_kept(kept: KeptRows) -> list[Kept]:
    """Each stage of each row."""
    found = []
    for name in in_order({path.name: path for path in kept.rows.glob("[!.]*")}):
        hits = read_ranks(kept.rows / name / HITS)
        for stage in dict.fromkeys(key.split(" ")[1] for key in hits):
            parts = [
                {change: hits[f"{change} {stage} {part}"] for change in (UNCHANGED, *CHANGES)}
                for part in ("right", "score")
            ]
            found.append(Kept(name, stage, *parts))
    return found


def page(kept: KeptRows) -> list[str]:
    """The hits that changes keep, and those that they must not keep."""
    queries, rows = read_ranks(kept.results / QUERIES), read_kept(kept)
    if rows:
        _plot(kept, rows, queries)
    scores = [scores_of(row, queries) for row in rows]
    by_name: dict[str, dict[str, Any]] = {row.name: {} for row in rows}
    for row, found in zip(rows, scores, strict=True):
        by_name[row.name][row.stage] = found
    write_json(kept.results / SCORES, by_name)
    return [
        "# Robustness",
        "",
        "Made by `python -m experiments.robustness`; `--rebuild` makes this page from what is kept",
        f"next to it. Test questions of the Quora pairs, {len(queries['clusters']):,} in all, are",
        "changed, and searched among all questions as they were, but their own, by exact search. A",
        "right hit is a paraphrase of the query as it was.",
        "",
        *kept.discussion(),
        *_same_meaning(rows, scores, queries),
        *_other_meaning(rows, scores, queries),
    ]


def scores_of(row: Kept, queries: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The figures of a stage, as `scores.json` has them.

    Returns:
      The threshold; H@1 of the queries of changes that keep the meaning, before a change
      (`UNCHANGED`) and after each; of each change of meaning the shares of the second table, null
      where no query is left.
    """
    right = {UNCHANGED: row.right[UNCHANGED][queries[SAME[0]]]}
    right |= {name: row.right[name] for name in SAME}
    found: dict[str, Any] = {name: float(hits.mean()) for name, hits in right.items()}
    found["threshold"] = row.threshold if np.isfinite(row.threshold) else None
    for name in OTHER:
        some = queries[name]
        before = row.right[UNCHANGED][some]
        shares = {
            "before": before,
            "refused": row.score[UNCHANGED][some][before] < row.threshold,
            "still": row.still(name, some),
            "accepted": row.accepted(name, some),
        }
        found[name] = {part: float(v.mean()) if len(v) else None for part, v in shares.items()}
    return found


def _share_kept(row: Kept, name: str, queries: np.ndarray) -> float:
    """H@1 after a change over H@1 of the same queries before; 0 where that is 0."""
    return float(row.right[name].sum() / max(1, row.right[UNCHANGED][queries].sum()))


def _same_meaning(
    rows: list[Kept], scores: list[dict[str, Any]], queries: dict[str, np.ndarray]
) -> list[str]:
    lines = []
    for name in SAME:
        cells = [
            f"{found[name]:.3f} ({100 * _share_kept(row, name, queries[name]):.0f} %)"
            for row, found in zip(rows, scores, strict=True)
        ]
        lines.append([f"{CHANGES[name].title}: *{example(name)}*", *cells])
    before = [f"{found[UNCHANGED]:.3f}" for found in scores]
    half = _half_width(rows, queries)
    return [
        "## Same meaning: how many first hits stay right",
        "",
        f"H@1 of {len(queries[SAME[0]]):,} queries, and its share of H@1 without the change. A",
        "typo is in one word of four letters or more, but for its first letter. By resamples of",
        f"clusters, each H@1 is known to ± {half:.3f} (95 %).",
        "",
        *table_lines(["", *(row.title for row in rows)], [[f"none: *{EXAMPLE}*", *before], *lines]),
        "![share of H@1 kept](robustness.png)",
        "",
    ]


def _half_width(rows: list[Kept], queries: dict[str, np.ndarray]) -> float:
    """Half of the widest 95 % interval of H@1 after a change that keeps the meaning."""
    widths = []
    for row in rows:
        for name in SAME:
            clusters = queries["clusters"][queries[name]]
            low, high = mean_interval(row.right[name].astype(float), clusters)
            widths.append((high - low) / 2)
    return max(widths, default=0.0)


def _other_meaning(
    rows: list[Kept], scores: list[dict[str, Any]], queries: dict[str, np.ndarray]
) -> list[str]:
    head = ["", "threshold"]
    for name in OTHER:
        title = f"{CHANGES[name].title}, {len(queries[name]):,} queries"
        head += [f"{title}: H@1 before", "below the threshold before"]
        head += ["still the old hit", "and above the threshold"]
    lines = []
    for row, found in zip(rows, scores, strict=True):
        cells = [row.title, f"{row.threshold:.3g}"]
        for name in OTHER:
            some = queries[name]
            before = row.right[UNCHANGED][some]
            for part in ("before", "refused"):
                share = found[name][part]
                cells.append("" if share is None else f"{share:.2f}")
            for values in (row.still(name, some), row.accepted(name, some)):
                cells.append(_interval_cell(values, queries["clusters"][some][before]))
        lines.append(cells)
    examples = [f"*{example(name)}*" for name in OTHER]
    return [
        "## Another meaning: how many first hits stay, though they are wrong now",
        "",
        f"*{EXAMPLE}* becomes",
        f"{' or '.join(examples)}.",
        "*Still the old hit*: of the queries whose first hit was right, the share whose first hit",
        "is a paraphrase of the old query: the search has not noticed, so less is better. There is",
        "hardly ever a right question to find, so the best that a search can do is to give its hit",
        f"a low score. *Threshold*: the score that {100 * ACCEPTED:.0f} % of the right first hits",
        "of unchanged queries reach; where the old hit has less, it counts as noticed. *Below the",
        "threshold before*: what it refuses of the right hits of the same queries, unchanged.",
        "A score is minus a squared distance, a cosine (TF-IDF), BM25's sum or, of two stages, a",
        "probability. In brackets: 95 % intervals.",
        "",
        'The word "not" is put behind the subject of questions that ask why, how, where, when,',
        "what or which, and only where subject and verb fit; not into yes-or-no questions, which",
        "ask the same with it; and where no paraphrase has a negation. A number is changed where",
        "all paraphrases of the query have it and none has the new one, so that none is right any",
        "more; a year by 1 to 3, another number by up to a quarter, or 2.",
        "",
        *table_lines(head, lines),
    ]


def _interval_cell(values: np.ndarray, clusters: np.ndarray) -> str:
    if not len(values):
        return ""
    low, high = mean_interval(values.astype(float), clusters)
    return f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"


def _plot(kept: KeptRows, rows: list[Kept], queries: dict[str, Any]) -> None:
    """Plot the share of H@1 that each change keeps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(SAME))[::-1]
    for number, row in enumerate(rows):
        shares = [100 * _share_kept(row, name, queries[name]) for name in SAME]
        shift = 0.35 - 0.7 * number / max(1, len(rows) - 1)
        two = row.title.endswith("two stages")
        style: dict[str, Any] = {"color": f"C{number}", "label": row.title.replace("`", "")}
        axis.plot(shares, places + shift, "D" if two else "o", ms=5, **style)
    axis.set_yticks(places, [CHANGES[name].title for name in SAME])
    axis.set(xlabel="share of H@1 kept, %")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(figure, kept.results / "robustness.png")


STUDY = Study(
    name="robustness",
    results="robustness",
    trials=lambda flags: [],
    page=page,
    data=lambda flags: (None, None),
    flags=FLAGS,
    actions={"runs": score_runs, "baselines": score_baselines},
    measurements=(QUERIES,),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
