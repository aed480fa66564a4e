"""Hard negatives: none, labeled, by rank, by margin, denoised; and how many are paraphrases.

    python -m experiments.hard_negatives                      all rows but the denoised, the page
    python -m experiments.hard_negatives --cross_encoder=FOLDER  with those by the cross-encoder
    python -m experiments.hard_negatives --rows=none,margin   some methods

The negatives are mined first, among the training questions, by the encoder of `--run`, or of
`quora_sdml`, which is then trained in the work directory; where that has a light re-ranker, one
method asks it. How many of them are paraphrases is
counted where links of known clusters are hidden from the mining.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections import Counter
from typing import Any

from experiments.hidden_paraphrases import Corpus, Method, false_negatives
from experiments.study import Flag, Flags, Study, Trials, quora_data
from experiments.tables import difference_cell, score_cell, score_records, table_lines, write_scores
from experiments.trials import Data, Trial, load, log, seeded, shrink
from qpr_jax.cli.negatives import cross_encoder_score
from qpr_jax.data.splits import HELD_OUT, TEST, TRAIN, VALIDATION, group_questions
from qpr_jax.files import locked, read_object, write_atomically, write_json
from qpr_jax.index.negatives import Rules, query_groups
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.sources import SOURCES

# A quarter of the filters, and few epochs, so that a row takes about three minutes of 2 cores.
CHANGES: dict[str, Any] = {
    "encoder.filters": 150,
    "batch.sampling": "clusters",
    "loss.mask_own_cluster": True,
    "max_epochs": 3,
    "optimizer.learning_rate_decay": "linear",
    "checkpoint_every": 1000,
}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sdml": ("SDML, eps 0.3", {}),
    "ranking": (
        "multiple negatives ranking",
        {"loss.names": ("ranking",), "loss.smoothing": 0.0, "encoder.normalize": True},
    ),
}
NEGATIVES = 256  # of a batch of 512 pairs
# method -> what the page calls it, the rules of mining; None: nothing is mined
METHODS: dict[str, tuple[str, Rules | None]] = {
    "none": ("none", None),
    "labeled": ("labeled as non-duplicates", None),
    "rank_1": ("the nearest, ranks 1 and 2", Rules(count=2)),
    "rank_10": ("ranks 10 to 50, at random", Rules(count=2, from_rank=10, seed=0)),
    "margin": ("the nearest with a relative margin of 0.5", Rules(count=2, relative_margin=0.5)),
    "light": ("the nearest that the light re-ranker takes for no paraphrase", Rules(count=2)),
    "denoised": ("the nearest that the cross-encoder takes for no paraphrase", Rules(count=2)),
}
# Rules whose negatives are counted, but not trained on.
COUNTED_ONLY: dict[str, tuple[str, Rules]] = {
    "rank_5": ("ranks 5 to 20, at random", Rules(count=2, from_rank=5, to_rank=20, seed=0)),
    **{
        f"margin_{margin:g}": (
            f"the nearest with a relative margin of {margin:g}",
            Rules(count=2, relative_margin=margin),
        )
        for margin in (0.0, 0.05, 0.2, 1.0)
    },
    "rank_5_margin": (
        "ranks 5 to 50 with a relative margin of 0.5, at random",
        Rules(count=2, from_rank=5, relative_margin=0.5, seed=0),
    ),
}
LIGHT, DENOISED = "light", "denoised"
COUNTED = "false_negatives.json"
_SAMPLE = 3000  # training queries whose negatives are counted, about


def row_config(method: str, loss: str, seed: int = 0, folder: str = "") -> TrainConfig:
    """The settings of a row; mined negatives are in a folder."""
    changes = CHANGES | LOSSES[loss][1] | {"seed": seed}
    if method != "none":
        changes["batch.hard_negatives"] = NEGATIVES
    if METHODS[method][1]:
        changes["data.negatives"] = f"{folder}/{method}.jsonl"
    return load("quora_sdml", changes)


def methods(flags: Flags) -> list[str]:
    """The methods that the flags ask for, if there is who judges: a re-ranker, a cross-encoder."""
    has = {
        LIGHT: not flags.run or pathlib.Path(flags.run, "export", "reranker").is_dir(),
        DENOISED: bool(flags.cross_encoder),
    }
    return [name for name in flags.rows or METHODS if has.get(name, True)]


def trials(flags: Flags) -> list[Trial]:
    """Every method with every loss, the first seeds of all first."""
    folder = str(flags.workdir / "negatives")
    return [
        Trial(seeded(f"{method}_{loss}", seed), row_config(method, loss, seed, folder))
        for seed in range(flags.seeds)
        for method in methods(flags)
        for loss in LOSSES
    ]


def mine(flags: Flags) -> Data:
    """Mine what is not mined yet, and count the paraphrases in it; the data and their SHA-256."""
    path, sha256 = quora_data(flags)
    rules = {name: found for name in methods(flags) if (found := METHODS[name][1])}
    counted = {} if flags.rows else {name: found for name, (_, found) in COUNTED_ONLY.items()}
    where = flags.workdir / "negatives"
    with locked(flags.workdir / ".negatives.lock", wait=True):
        known = read_object(flags.results / COUNTED)
        mined = {*known} & {path.stem for path in where.glob("*.jsonl")}
        left = {n: r for n, r in rules.items() if n not in mined}
        left |= {n: r for n, r in counted.items() if n not in known}
        if not left or not path:
            return path, sha256
        config = load("quora_sdml", {"rerank.candidates": 50})
        config = shrink(config) if flags.smoke else config
        data, clusters, splits = SOURCES["quora"].read(config, path)
        groups, split_of = group_questions(data.questions, clusters), splits.split_of
        run = flags.run or _train_miner(config, flags)
        trained = Corpus(data.questions, groups, split_of == TRAIN, run)
        both = Corpus(data.questions, groups, split_of != TEST, run)
        validation = split_of[both.rows] == VALIDATION
        for name, chosen in left.items():
            score = cross_encoder_score(flags.cross_encoder) if name == DENOISED else None
            method = Method(chosen, light=name == LIGHT, score=score)
            log.info("mining: %s", name)
            known[name] = {
                "train": false_negatives(trained, None, method, most=_SAMPLE),
                "validation": false_negatives(both, validation, method),
            }
            if name in rules:
                known[name]["mined"] = _mine_into(where / f"{name}.jsonl", trained, method)
            write_json(flags.results / COUNTED, known)
    return path, sha256


def _train_miner(config: TrainConfig, flags: Flags) -> str:
    from qpr_jax.training.main import train_and_evaluate

    run = str(flags.workdir / "miner" / "run")
    train_and_evaluate(config, run)
    return run


def _mine_into(file: pathlib.Path, corpus: Corpus, method: Method) -> dict[str, int]:
    """Write the negatives of all questions with a known paraphrase; the counts."""
    counts: Counter[str] = Counter()
    queries = query_groups(corpus.questions, corpus.groups)
    with write_atomically(file, "w") as lines:
        for some in corpus.find(corpus.groups, queries, method, counts):
            fields = (negative.fields(corpus.questions) for negative in some)
            lines.writelines(json.dumps(row) + "\n" for row in fields)
    return dict(counts)


def page(done: Trials) -> list[str]:
    """The scores of every row less those of none, and the shares of paraphrases."""
    counted = read_object(done.results / COUNTED)
    plain = {f"{method}_{loss}": f"none_{loss}" for method in METHODS for loss in LOSSES}
    records = score_records(done, "query", "exact", minus=plain.get)
    write_scores(done, "python -m experiments.hard_negatives", records)
    return [*_scores(done), *_shares(counted)]


def _scores(done: Trials) -> list[str]:
    lines = []
    for loss, (title, _) in LOSSES.items():
        rows, plain = [], f"none_{loss}"
        for method, (text, _) in METHODS.items():
            name = f"{method}_{loss}"
            if name not in done:
                continue
            cells = [text]
            for split in HELD_OUT:
                scores = done.scores(split, "query", "exact")
                for metric in (0, 2):
                    cells.append(score_cell(scores, name, metric))
                if plain not in done or method == "none":
                    cells.append("")
                    continue
                difference = scores.mean(name)[2] - scores.mean(plain)[2]
                cells.append(difference_cell(difference, *scores.interval(name, plain)[:, 2]))
            rows.append(cells)
        if rows:
            head = ["negatives"]
            for split in HELD_OUT:
                head += [f"{split} H@1", "MRR", "MRR less none's"]
            lines += [f"## {title}", "", *table_lines(head, rows)]
    return lines


def _shares(counted: dict[str, Any]) -> list[str]:
    rows = []
    for method, (text, _) in (METHODS | COUNTED_ONLY).items():
        if method not in counted:
            continue
        mined = counted[method].get("mined")
        cells = [text, f"{mined['negatives']:,}" if mined else ""]
        for split in ("train", "validation"):
            found = counted[method][split]
            share = found["false"] / max(1, found["negatives"])
            queries = found["queries_with_false"] / max(1, found["queries"])
            a_query = found["negatives"] / max(1, found["queries"])
            cells += [f"{a_query:.2f}", f"{share:.3f}", f"{queries:.3f}"]
        rows.append(cells)
    if not rows:
        return []
    head = ["negatives", "mined"]
    for split in ("training", "validation"):
        head += [f"{split}: a query", "false", "queries with one"]
    return [
        "## How many are paraphrases",
        "",
        "Each cluster of three questions or more is split at random into two halves, and mining",
        "knows each half as a cluster of its own. Queries are the questions with another in their",
        "half. Counted is how many of their negatives are of the other half: paraphrases by labels",
        "that the mining did not see. Negatives that are paraphrases by no label are not counted,",
        "and queries without a hidden paraphrase, which have none to find, are left out, so these",
        "shares compare the methods; they are not the shares of the files that are trained on.",
        f"About {_SAMPLE:,} queries of training clusters, which the encoder (and the cross-",
        "encoder) have been trained on, among the training questions; and those of the validation",
        "clusters, which they have not, among training and validation questions.",
        "At most two a query.",
        "",
        *table_lines(head, rows),
    ]


STUDY = Study(
    name="hard_negatives",
    results="hard_negatives",
    trials=trials,
    page=page,
    data=mine,
    flags={
        "rows": Flag((), "Only these methods.", (*METHODS,)),
        "run": Flag("", "The run whose encoder mines; empty: train `quora_sdml`."),
        "cross_encoder": Flag("", "The cross-encoder that denoises; empty: no denoised rows."),
        "seeds": Flag(1, "Trainings of each row."),
    },
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
