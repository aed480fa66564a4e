"""What a semantic cache answers: paraphrases, and questions whose answer it lacks.

    python -m experiments.semantic_cache [--results DIR]

Sentences of home-assistant-intents, of blocks of templates that no model of pairs was fitted to.
One of each block is cached. Asked are the same in other words, and contrasts, which mean something
else that is not cached. Of 30 wordings a contrast has the one most like the cached sentence. All
name all of their slots.
"""

from __future__ import annotations

import argparse
import difflib
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from examples.semantic_cache import SemanticCache
from experiments import home_sentences as home
from experiments.pages import table_lines, write_page
from experiments.scores import Scores, commit
from qpr_jax import Retriever
from qpr_jax.cli.program import run_program
from qpr_jax.distant.cluster_folder import wilson
from qpr_jax.text.cleaning import folded

SAME, COMMAND, STATE = "paraphrase", "opposite command", "other state"
NUMBER, ROOM, WORD = "other number", "other room", "other word"
OPPOSITES = {"HassTurnOn": "HassTurnOff", "HassIncreaseTimer": "HassDecreaseTimer"}
OPPOSITES |= {"HassPauseTimer": "HassUnpauseTimer", "HassMediaPause": "HassMediaUnpause"}
OPPOSITES |= {"HassMediaNext": "HassMediaPrevious"}
OPPOSITES |= {second: first for first, second in OPPOSITES.items()}
WORDINGS, DRAWS, SHOWN, MARK = 30, 20, 3, chr(0)
BOUNDS = {"cosine": (0.7, 0.8, 0.9, 0.95), "search": (0.3, 0.5, 0.7), "pair": (0.5, 0.7, 0.9, 0.95)}
ENCODERS = {"cosine": ["minilm"], **dict.fromkeys(("search", "pair"), ["minilm", "open_student"])}
Asked = tuple[str, str, home.Meaning]  # its kind, text and meaning
Drawn = tuple[home.Block, home.Slots]


def make_questions() -> tuple[dict[str, home.Meaning], list[Asked]]:
    """Return the cached sentences, and what is asked: of each block one question a kind."""
    rng, asked = random.Random(1), list[Asked]()
    rules, _, blocks = home.read_blocks(random.Random(0))
    seen = {folded(text) for text, _ in home.home_sentences()[0]}

    def new_text(drawn: Drawn, like: str = "") -> str:
        (_, rule), slots = drawn
        marked = {name: (f"{MARK}{words}", value) for name, (words, value) in slots.items()}
        texts = [home.fill(rule, marked, rules, rng) for _ in range(WORDINGS)]
        texts = [text.replace(MARK, "") for text in texts if text.count(MARK) == len(slots)]
        texts = [text for text in texts if folded(text) not in seen]
        alike = [difflib.SequenceMatcher(None, text, like).ratio() for text in texts]
        found = texts[int(np.argmax(alike))] if texts else ""
        seen.add(folded(found))
        return found

    drawn = [(block, home.draw_slots(block[1], rules["lists"], rng)) for block in blocks]
    first = [(text, each) for each in drawn if (text := new_text(each))]
    cached = {text: home.meaning_of(*block, slots) for text, (block, slots) in first}
    for text, each in first:
        for kind, (block, slots) in changes(each, drawn, rules["lists"], rng):
            meaning = home.meaning_of(*block, slots)
            if (meaning in cached.values()) == (kind == SAME):
                words = new_text((block, slots), "" if kind == SAME else text)
                asked += [(kind, words, meaning)] if words else []
    return cached, asked


def changes(
    first: Drawn, drawn: list[Drawn], lists: Mapping[str, Any], rng: random.Random
) -> Iterator[tuple[str, Drawn]]:
    """Yield what may be asked about a cached sentence, once a kind."""
    (intent, rule), slots = first
    found = {SAME: first}
    for other, same in drawn:
        if OPPOSITES.get(intent) == other[0] and {*slots} == {*same}:
            if all(rule.get(key) == other[1].get(key) for key in ("slots", "requires_context")):
                found.setdefault(COMMAND, (other, slots))
    for _ in range(DRAWS):
        for name, value in home.draw_slots(rule, dict(lists), rng).items():
            base = name.partition(":")[0]
            kind = (
                NUMBER if "range" in lists.get(base, ()) else STATE if "_states" in base else WORD
            )
            kind = ROOM if base in ("area", "floor") else kind
            if value[1] != slots[name][1]:
                found.setdefault(kind, (first[0], slots | {name: value}))
    yield from found.items()


def ask(
    encoder: str, cached: dict[str, home.Meaning], asked: list[Asked]
) -> Iterator[dict[str, Any]]:
    """Yield the best hit of each question by each scorer."""
    with tempfile.TemporaryDirectory() as folder:
        Retriever.load(encoder).save(folder)
        cache = SemanticCache(folder)
        for text in cached:
            cache.put(text, "")
        for kind, text, meaning in asked:
            near = cache.retriever.search(text, k=1, rerank=False)[0][0]
            first = cache.retriever.search(text, k=1)[0][0]
            hits = {"cosine": (1 - near.distance / 2, near), "search": (first.score, first)}
            for name, (score, hit) in (hits | {"pair": cache.best(text)}).items():
                right = cached[hit.question] == meaning
                row = {"scorer": f"{encoder} {name}", "kind": kind, "asked": text}
                yield row | {"cached": hit.question, "score": score, "right": right}


def main() -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default="runs/semantic_cache")
    folder = parser.parse_args().results
    cached, asked = make_questions()
    frame = pd.DataFrame([row for name in ENCODERS["pair"] for row in ask(name, cached, asked)])
    frame.to_csv("/work/scratch/cache/frame.csv")
    ...
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
