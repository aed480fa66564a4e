"""Runs, a transformer and lexical search on sets of questions that no run of Quora has trained on.

    python -m experiments.out_of_domain --baselines                 BM25, TF-IDF, all-MiniLM-L6-v2
    python -m experiments.out_of_domain --runs=NAME=FOLDER,...      finished runs, each as a row
    python -m experiments.out_of_domain --write_beir=FOLDER         the sets, in BEIR's format
    python -m experiments.out_of_domain --rebuild                   the page from what is kept

A row that is kept is not made again, unless the system, the sets or their files are others. FOLDER
of a run may be any encoder that `qpr` reads, NAME is what the page calls it. Needs the extras
`lexical` and `minilm`, and `qa_logs/` and `parallel/` in `$QPR_DATA_DIR`. `qpr evaluate RUN --beir
FOLDER/clinc150` scores the first stage of any encoder on a set, or on one's own in that format.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any, NamedTuple

import numpy as np

from experiments.question_sets import (
    GENERIC,
    MOST,
    SOURCES,
    QuestionSet,
    Training,
    find_set,
    read_set,
    training_of,
    write_folder,
)
from experiments.study import Flag, Flags, KeptRows, Study
from experiments.systems import (
    BM25,
    FLAGS,
    ONE,
    TFIDF,
    MakeSystem,
    baselines,
    given_runs,
    in_order,
    run_identity,
    run_system,
    search_others,
    title_of,
    unknown_share,
)
from experiments.tables import difference_cell, table_lines
from experiments.trials import log
from qpr_jax.evaluation.bootstrap import mean_interval, read_ranks, write_ranks
from qpr_jax.files import (
    read_object,
    replace_folder,
    sha256_of,
    write_json,
)
from qpr_jax.retriever import run_encoder

SCORES, QUERIES = "scores.json", "queries.npz"  # of a row
SETS, CLUSTERS = "sets.json", "clusters.npz"  # of all rows
METRICS = ("ndcg@10", "hits@1")
_SMALL = 200  # questions of a set, with --smoke


class Row(NamedTuple):
    """A row to score: its system over some questions, its training, and what it depends on."""

    make: MakeSystem
    training: Training
    identity: list[str]


def score_baselines(flags: Flags) -> list[str]:
    """Score what is no run."""
    made = baselines(flags.teacher_cache).items()
    return _keep({name: Row(make, Training(), [name]) for name, make in made}, flags)


def score_runs(flags: Flags) -> list[str]:
    """Score the runs that `--runs` names."""
    rows = {}
    for name, folder in given_runs(flags.runs).items():
        training = training_of(folder, run_encoder(folder).settings)
        rows[name] = Row(functools.partial(run_system, folder), training, run_identity(folder))
    return _keep(rows, flags)


def _keep(rows: dict[str, Row], flags: Flags) -> list[str]:
    """Score the rows that are not kept, and keep them."""
    most = _SMALL if flags.smoke else MOST
    files = {name: sha256_of(find_set(name)) for name in SOURCES}
    sets: dict[str, QuestionSet] = {}
    for name, row in rows.items():
        kept = flags.results / "rows" / name
        identity = {"system": row.identity, "most": most, "files": files}
        if read_object(kept / SCORES).get("identity") == identity:
            log.info("%s is kept", name)
            continue
        sets = sets or {name: read_set(name, most) for name in SOURCES}
        _describe(flags.results, sets)
        log.info("%s: searching", name)
        scores, queries = score_row(row, sets)
        with replace_folder(kept) as part:
            write_json(part / SCORES, {"identity": identity, "sets": scores})
            write_ranks(part / QUERIES, queries)
    return []


def score_row(
    row: Row, sets: dict[str, QuestionSet]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Score a row on the sets that it was not trained on.

    Returns:
      Set -> stage -> the means of `METRICS`, and `unknown`, the share of unknown words of an
      encoder; and the scores of each query, as `SET STAGE METRIC`.
    """
    found: dict[str, Any] = {}
    queries: dict[str, np.ndarray] = {}
    for name, questions in sets.items():
        if row.training.has_seen(questions):
            log.info("%s: trained on it", name)
            continue
        system = row.make(questions.texts)
        texts = [questions.texts[i] for i in questions.queries]
        found[name] = {}
        if system.encoder is not None:
            found[name]["unknown"] = unknown_share(system.encoder, questions.texts)
        for stage, search in system.searches.items():
            rows, _ = search_others(search, texts, questions.queries, 10)
            scores = questions.scores(rows)
            found[name][stage] = {metric: float(scores[metric].mean()) for metric in METRICS}
            for metric in METRICS:
                queries[f"{name} {stage} {metric}"] = scores[metric].astype(np.float32)
            log.info("%s, %s: %s", name, stage, found[name][stage])
    return found, queries


def _describe(results: pathlib.Path, sets: dict[str, QuestionSet]) -> None:
    """Keep what the page says of the sets, and the clusters of their queries."""
    facts = {
        name: {
            "questions": len(questions.texts),
            "queries": len(questions.queries),
            "relevant": questions.relevance.nnz / max(1, len(questions.queries)),
        }
        for name, questions in sets.items()
    }
    write_json(results / SETS, facts)
    write_ranks(results / CLUSTERS, {name: questions.clusters for name, questions in sets.items()})


def write_sets(flags: Flags) -> list[str]:
    """Write the sets in BEIR's format."""
    for name in SOURCES:
        folder = pathlib.Path(flags.write_beir).expanduser() / name
        write_folder(folder, read_set(name, _SMALL if flags.smoke else MOST))
        log.info("see %s", folder)
    return []


def page(kept: KeptRows) -> list[str]:
    """The sets, the scores, the differences to BM25, and the unknown words."""
    sets = read_object(kept.results / SETS)
    scores = {name: row["sets"] for name, row in in_order(kept.read(SCORES)).items()}
    return [
        "# Out of domain",
        "",
        "Made by `python -m experiments.out_of_domain`; `--rebuild` makes this page from what is",
        "kept next to it. Questions of other kinds than Quora's, with a relevance that nobody",
        "labeled for paraphrases. A cell is empty where the run was trained on the file of the",
        "set, by the hashes that the run keeps.",
        "",
        *kept.discussion(),
        *_sets(sets),
        *_scores(scores, list(sets)),
        *_against(BM25, kept, scores, list(sets)),
        *_against(TFIDF, kept, scores, list(sets)),
        *_unknown(scores, list(sets)),
    ]


def _sets(sets: dict[str, Any]) -> list[str]:
    rows = []
    for name, facts in sets.items():
        counts = [f"{facts['questions']:,}", f"{facts['queries']:,}", f"{facts['relevant']:.1f}"]
        rows.append([name, SOURCES[name].relevant, *counts])
    return [
        "## The sets",
        "",
        "Each query is searched among the other questions of its set. *Relevant*: how many of",
        f"them are, in the mean. Of larger files at most {MOST:,} questions, drawn once: of",
        "`clinc150` at random; else half of them with all that share their label, and half that",
        "share it with no other. `simplequestions` and `opentriviaqa` are without answers of",
        f'more than {GENERIC} questions, such as "true", which say nothing. Same answer is not',
        "same meaning: *When was Jane Austen born?* and another question about 1775 count as",
        "relevant to each other, so that no search by meaning can find all.",
        "",
        *table_lines(["set", "relevant by", "questions", "queries", "relevant"], rows),
    ]


def _scores(scores: dict[str, Any], sets: list[str]) -> list[str]:
    rows = []
    for name, stage in _stages(scores):
        pairs = [scores[name].get(one, {}).get(stage) for one in sets]
        cells = [" / ".join(f"{pair[m]:.3f}" for m in METRICS) if pair else "" for pair in pairs]
        rows.append([title_of(name) if stage == ONE else "", stage, *cells])
    return [
        "## nDCG@10 / H@1",
        "",
        "Per query, by exact search. Two stages: with the light re-ranker of the run, which",
        "learned from Quora, too.",
        "",
        *table_lines(["", "stages", *sets], rows),
    ]


def _against(baseline: str, kept: KeptRows, scores: dict[str, Any], sets: list[str]) -> list[str]:
    """Differences in nDCG@10 to a baseline, and where it wins."""
    if baseline not in scores:
        return []
    clusters = read_ranks(kept.results / CLUSTERS)
    values = {name: read_ranks(kept.rows / name / QUERIES) for name in scores}
    rows = []
    for name, stage in _stages(scores):
        cells, lost = [], []
        for one in sets if name != baseline else ():
            key = f"{one} {stage} {METRICS[0]}"
            if key not in values[name]:
                cells.append("")
                continue
            gains = values[name][key] - values[baseline][f"{one} {ONE} {METRICS[0]}"]
            low, high = mean_interval(gains, clusters[one])
            cells.append(difference_cell(float(gains.mean()), low, high))
            lost += [one] if high < 0 else []
        if cells:
            title = title_of(name) if stage == ONE else ""
            rows.append([title, stage, *cells, ", ".join(lost) or "none"])
    title = title_of(baseline)
    return [
        f"## Against {title}",
        "",
        f"The difference in nDCG@10 to {title}, with its 95 % interval from 2,000 resamples of the",
        f"labels. {title} wins where the whole interval is below 0.",
        "",
        *table_lines(["", "stages", *sets, f"{title} wins"], rows),
    ]


def _stages(scores: dict[str, Any]) -> list[tuple[str, str]]:
    """Each row with each of its stages."""
    return [
        (name, stage)
        for name, by_set in scores.items()
        for stage in dict.fromkeys(s for found in by_set.values() for s in found if s != "unknown")
    ]


def _unknown(scores: dict[str, Any], sets: list[str]) -> list[str]:
    rows = []
    for name, by_set in scores.items():
        if any("unknown" in found for found in by_set.values()):
            shares = (by_set.get(one, {}).get("unknown") for one in sets)
            rows.append([title_of(name), *(f"{s:.3f}" if s is not None else "" for s in shares)])
    return [
        "## Unknown words",
        "",
        "The share of the words of a set that have no embedding of their own: they share one with",
        "others (`quora_sdml`, `quora_distilled`), are sums of n-grams or, to the transformer,",
        "several pieces. BM25 and TF-IDF know the words of the set that they search.",
        "",
        *table_lines(["", *sets], rows),
    ]


STUDY = Study(
    name="out_of_domain",
    results="out_of_domain",
    trials=lambda flags: [],
    page=page,
    data=lambda flags: (None, None),
    flags=FLAGS | {"write_beir": Flag("", "Folder that gets the sets in BEIR's format.")},
    actions={"runs": score_runs, "baselines": score_baselines, "write_beir": write_sets},
    measurements=(SETS,),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
