"""The packaged encoder beside all-MiniLM-L6-v2, on parts of data that it was not trained on.

    python -m benchmarks.held_out [--quick]

Every third intent of clinc150 and the last third of webquestions, which `python -m
experiments.open_texts` leaves out. Each question is searched among the others of its part.
"""

from __future__ import annotations

import os
import pathlib
import sys

from benchmarks import report
from experiments.open_texts import read_log
from experiments.question_sets import Labeled, QuestionSet, choose, relevance_of
from experiments.systems import TWO_STAGES, TextSearch, baseline, run_system, search_others
from qpr_jax.cli.program import run_program
from qpr_jax.text.tokenizer import normalized_text

MOST, QUICK = 10_000, 1_000  # questions of a part


def read_parts(data: pathlib.Path) -> dict[str, Labeled]:
    """Questions with their labels."""
    clinc, web = ([*read_log(data, name)] for name in ("clinc150", "webquestions"))
    intents = {*sorted({intent for _, intent in clinc})[::3]}
    return {
        "clinc150, 50 intents": _distinct([pair for pair in clinc if pair[1] in intents]),
        "webquestions, a third": _distinct(web[len(web) * 2 // 3 :]),
    }


def _distinct(pairs: list[tuple[str, str]]) -> Labeled:
    """Each text once, with all its labels."""
    labels: dict[str, dict[str, None]] = {}
    for text, label in pairs:
        labels.setdefault(text, {})[normalized_text(label)] = None
    return [*labels], [tuple(own) for own in labels.values()]


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
    for name, (texts, labels) in read_parts(pathlib.Path(os.environ["QPR_DATA_DIR"])).items():
        chosen = choose(labels, QUICK if given.quick else MOST, 0, whole=True)
        relevance = relevance_of([labels[i] for i in chosen])
        part = QuestionSet([texts[i] for i in chosen], relevance)
        packaged = run_system(pathlib.Path("open_student"), part.texts)
        searches = {
            "BM25": baseline("bm25")(part.texts)[""],
            "`open_student`": packaged[""],
            "`open_student`, two stages": packaged[TWO_STAGES],
            "all-MiniLM-L6-v2": run_system(pathlib.Path("minilm"), part.texts)[""],
        }
        rows += [[name, *row] for row in measure(part, searches)]
    table = report.Table(
        "Questions that were not trained on", ["part", "by", "nDCG@10", "H@1"], rows
    )
    report.finish("held_out", given, [table])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
