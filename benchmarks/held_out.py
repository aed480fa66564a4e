"""The packaged encoder beside all-MiniLM-L6-v2, on parts of data that it was not trained on.

    python -m benchmarks.held_out [--quick]

Every third intent of clinc150 and the last third of webquestions, which `python -m
experiments.open_texts` leaves out. Each question is searched among the others of its part.
"""

from __future__ import annotations

import os
import pathlib
import sys

import pandas as pd

from benchmarks import report
from experiments.left_out import split_logs
from experiments.question_sets import Labeled, QuestionSet, make_set
from experiments.systems import TWO_STAGES, TextSearch, baseline, run_system, search_others
from qpr_jax.cli.program import run_program
from qpr_jax.text.tokenizer import normalized_text

MOST, QUICK = 10_000, 1_000  # questions of a part


def distinct(log: pd.DataFrame) -> Labeled:
    """Each question once, with all its answers."""
    answers = log["answer"].map(normalized_text).groupby(log["question"], sort=False).unique()
    return [*answers.index], [*answers.map(tuple)]


def measure(part: QuestionSet, searches: dict[str, TextSearch]) -> list[list[str]]:
    """nDCG@10 and H@1 of each search."""
    queries, rows = part.queries, []
    texts = [part.texts[i] for i in queries.tolist()]
    for name, search in searches.items():
        found, _ = search_others(search, texts, queries, 10)
        scores = part.scores(found)
        rows.append([name, *(f"{scores[metric].mean():.3f}" for metric in ("ndcg@10", "hits@1"))])
    return rows


def main() -> int:
    """Measure."""
    given = report.parser(__doc__).parse_args()
    rows = []
    (_, clinc), (_, web) = split_logs(pathlib.Path(os.environ["QPR_DATA_DIR"])).values()
    for name, log in {"clinc150, 50 intents": clinc, "webquestions, a third": web}.items():
        part = make_set(distinct(log), QUICK if given.quick else MOST)
        packaged = run_system("open_student", part.texts)
        searches = {
            "BM25": baseline("bm25")(part.texts)[""],
            "`open_student`": packaged[""],
            "`open_student`, two stages": packaged[TWO_STAGES],
            "all-MiniLM-L6-v2": run_system("minilm", part.texts)[""],
        }
        rows += [[name, *row] for row in measure(part, searches)]
    table = report.Table(
        "Questions that were not trained on", ["part", "by", "nDCG@10", "H@1"], rows
    )
    report.finish("held_out", given, [table])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
