"""Measure the right and the wrong answers of a semantic cache.

    python -m experiments.semantic_cache [--results DIR]

The sentences are those of home-assistant-intents that name all of their slots, from blocks of
templates that no model of pairs was fitted to. The cache has one sentence of each block. Questions
are paraphrases of it, and contrasts, whose answer the cache lacks; of 30 wordings of a contrast the
one nearest to the cached sentence is asked.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from typing import Any

import pandas as pd

from examples.semantic_cache import SemanticCache
from experiments import home_sentences as home
from experiments.pages import table_lines, write_page
from experiments.scores import Scores, commit
from qpr_jax import Retriever
from qpr_jax.cli.program import run_program
from qpr_jax.evaluation.scores import wilson
from qpr_jax.text.cleaning import number_key

BOUNDS = {"cosine": (0.8, 0.9, 0.95), "cosine and numbers": (0.8, 0.9), "search": (0.3, 0.5, 0.7)}
BOUNDS |= {"pair": (0.5, 0.9, 0.95, 0.99, 0.999)}
FOUND = (35, 50, 75, 100, 125)  # paraphrases


def ask(encoder: str, cached: dict[str, home.Meaning], asked: list[home.Question]) -> pd.DataFrame:
    """Find the best hit of each question by each scorer."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        Retriever.load(encoder).save(folder)
        cache = SemanticCache(folder)
        for text in cached:
            cache.put(text, "")
        for kind, text, meaning in asked:
            near = cache.retriever.search(text, k=20, rerank=False)[0]
            cosines = [1 - hit.distance / 2 for hit in near]
            first = cache.retriever.search(text)[0][0]
            numbers = [number_key(hit.question) == number_key(text) for hit in near]
            same = max(range(len(near)), key=lambda i: cosines[i] * numbers[i])
            scored = {
                "cosine": (cosines[0], near[0]),
                "cosine and numbers": (cosines[same] * numbers[same], near[same]),
                "search": (first.score, first),
                "pair": cache.best(text),
            }
            for name, (score, hit) in scored.items():
                right = cached[hit.question] == meaning
                rows.append((f"`{encoder}`, {name}", kind, text, hit.question, score, right))
    return pd.DataFrame(rows, columns=["scorer", "kind", "asked", "cached", "score", "right"])


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default="runs/semantic_cache")
    options = parser.parse_args()
    questions = home.cached_and_asked()
    table = pd.concat([ask(encoder, *questions) for encoder in ("minilm", "open_student")])
    facts = {"seeds": 1, "command": "python -m experiments.semantic_cache", "commit": commit()}
    records, lines, equal = list[dict[str, Any]](), list[list[str]](), list[list[str]]()
    for scorer, found in table.groupby("scorer", sort=False):
        right = found["right"] & (found["kind"] == home.SAME)
        bounds = found["score"][right].sort_values(ascending=False).iloc[[n - 1 for n in FOUND]]
        wrong = found["score"][~found["right"]]
        equal.append([str(scorer), *(str((wrong >= bound).sum()) for bound in bounds)])
        for bound in BOUNDS[str(scorer).partition(", ")[2]]:
            hit = found["score"] >= bound
            cases = {"found": (hit & right)[found["kind"] == home.SAME]}
            cases["wrong"] = hit & ~found["right"]
            kinds = cases["wrong"].groupby(found["kind"])
            cases |= {f"wrong, {kind}": each for kind, each in kinds}
            lines.append([str(scorer), str(bound)])
            for metric, each in cases.items():
                low, high = wilson(float(each.mean()), len(each))
                of = {"row": f"{scorer} {bound}", "metric": metric, "mean": each.mean()}
                records.append(of | {"low": low, "high": high} | facts)
                lines[-1].append(f"{each.sum()} of {len(each)} [{low:.2f}, {high:.2f}]")
    options.results.mkdir(parents=True, exist_ok=True)
    Scores(pd.DataFrame(records)).write(options.results)
    page = table_lines(["decided by", "from", *cases], lines)
    page += ["Wrong answers from the score on at which so many paraphrases are found:", ""]
    page += table_lines(["decided by", *map(str, FOUND)], equal)
    write_page(options.results, "A semantic cache", page)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
