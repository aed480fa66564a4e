"""Runs, a transformer and lexical search on sets of questions that no run of Quora has trained on.

    python -m experiments.out_of_domain --baselines                 BM25, TF-IDF, all-MiniLM-L6-v2
    python -m experiments.out_of_domain --runs=NAME=FOLDER,...      finished runs, each as a row
    python -m experiments.out_of_domain --write_beir=FOLDER         the sets, in BEIR's format

A finished row is not made again, unless the system, the sets or their files are others. FOLDER
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
from experiments.study import Flag, Flags, Study, Trials
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
from experiments.tables import difference_cell, score_record, table_lines, write_scores
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
    """Score the rows that are not done."""
    most = _SMALL if flags.smoke else MOST
    files = {name: sha256_of(find_set(name)) for name in SOURCES}
    sets: dict[str, QuestionSet] = {}
    for name, row in rows.items():
        kept = flags.workdir / name
        identity = {"system": row.identity, "most": most, "files": files}
        if read_object(kept / SCORES).get("identity") == identity:
            log.info("%s is done", name)
            continue
        sets = sets or {name: read_set(name, most) for name in SOURCES}
        _describe(flags.workdir, sets)
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


def _describe(workdir: pathlib.Path, sets: dict[str, QuestionSet]) -> None:
    """Keep what the page says of the sets, and the clusters of their queries."""
    facts = {
        name: {
            "questions": len(questions.texts),
            "queries": len(questions.queries),
            "relevant": questions.relevance.nnz / max(1, len(questions.queries)),
        }
        for name, questions in sets.items()
    }
    write_json(workdir / SETS, facts)
    write_ranks(workdir / CLUSTERS, {name: questions.clusters for name, questions in sets.items()})


def write_sets(flags: Flags) -> list[str]:
    """Write the sets in BEIR's format."""
    for name in SOURCES:
        folder = pathlib.Path(flags.write_beir).expanduser() / name
        write_folder(folder, read_set(name, _SMALL if flags.smoke else MOST))
        log.info("see %s", folder)
    return []


def page(done: Trials) -> list[str]:
    """The sets, the scores, the differences to BM25, and the unknown words."""
    sets = read_object(done.workdir / SETS)
    scores = {name: row["sets"] for name, row in in_order(done.read(SCORES)).items()}
    write_scores(done, "python -m experiments.out_of_domain", _records(done, scores, list(sets)))
    return [
        *_sets(sets),
        *_scores(scores, list(sets)),
        *_against(BM25, done, scores, list(sets)),
        *_against(TFIDF, done, scores, list(sets)),
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


def _against(baseline: str, done: Trials, scores: dict[str, Any], sets: list[str]) -> list[str]:
    """Differences in nDCG@10 to a baseline, and where it wins."""
    if baseline not in scores:
        return []
    gains = _gains(baseline, done, scores, sets)
    rows = []
    for name, stage in _stages(scores):
        if name == baseline:
            continue
        found = [gains.get((name, stage, one)) for one in sets]
        cells = ["" if gain is None else difference_cell(*gain) for gain in found]
        lost = [one for one, gain in zip(sets, found, strict=True) if gain and gain[2] < 0]
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


def _gains(
    baseline: str, done: Trials, scores: dict[str, Any], sets: list[str]
) -> dict[tuple[str, str, str], tuple[float, float, float]]:
    """(row, stage, set) -> the difference in nDCG@10 to a baseline, and its interval."""
    clusters = read_ranks(done.workdir / CLUSTERS)
    values = {name: read_ranks(done.workdir / name / QUERIES) for name in scores}
    found = {}
    for name, stage in _stages(scores):
        for one in sets:
            key = f"{one} {stage} {METRICS[0]}"
            if name != baseline and key in values[name]:
                gains = values[name][key] - values[baseline][f"{one} {ONE} {METRICS[0]}"]
                low, high = mean_interval(gains, clusters[one])
                found[name, stage, one] = float(gains.mean()), low, high
    return found


def _records(done: Trials, scores: dict[str, Any], sets: list[str]) -> list[dict[str, Any]]:
    """The scores of each set, those of nDCG@10 also less BM25."""
    gains = _gains(BM25, done, scores, sets) if BM25 in scores else {}
    records = []
    for name, stage in _stages(scores):
        row = name if stage == ONE else f"{name}, two stages"
        for one in sets:
            for metric, mean in scores[name].get(one, {}).get(stage, {}).items():
                gain = gains.get((name, stage, one), ()) if metric == METRICS[0] else ()
                minus = BM25 if gain else ""
                records.append(score_record(row, f"{one} {metric}", mean, (), minus, gain))
    return records


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
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
