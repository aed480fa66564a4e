"""Write the texts that the packaged encoder learns from: all are openly licensed.

    python -m experiments.open_texts [--wordnet /usr/share/wordnet]

writes `runs/open_texts.txt`, which `--config=open_student` reads. The texts are those of logs and
translations in $QPR_DATA_DIR, definitions and examples of WordNet, and requests made by the grammar
`help_desk.toml`. Held out for evaluation are every third intent of clinc150, the
last third of webquestions, and the test sentences of Tatoeba.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import os
import pathlib
import random
import re
import sys
import tomllib

import pandas as pd

from qpr_jax.cli.program import run_program
from qpr_jax.data.parallel_sentences import read_translations
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically
from qpr_jax.text.tokenizer import normalized_text

log = logging.getLogger("qpr_jax")

OUT = pathlib.Path("runs/open_texts.txt")
GRAMMAR = pathlib.Path(__file__).with_name("help_desk.toml")
REQUESTS = {"ask": 5, "cannot": 3, "trouble": 3, "where": 2, "other": 2}  # rules, and their weights
MADE, SIMPLE, DEFINITIONS, PHRASES = 60_000, 16_000, 40_000, 12_000  # texts of each kind
UNUSED = {"05", "15", "18", "20"}  # WordNet's files of animals, places, persons, plants
_SLOT = re.compile(r"\{(\w+)\}")


def texts_of(data: pathlib.Path, wordnet: pathlib.Path) -> dict[str, list[str]]:
    """Read or make the texts of each source."""
    (clinc, _), (web, _) = split_logs(data).values()
    simple = read_log(data, "simplequestions")["question"].tolist()
    tatoeba = read_translations(f"en-de:{data}/parallel/tatoeba.en-de.tsv.gz").sources
    definitions, examples, phrases = read_wordnet(wordnet)
    rng = random.Random(0)
    return {
        "Tatoeba": tatoeba,
        "WebQuestions": web["question"].tolist(),
        "CLINC150": clinc["question"].tolist(),
        "SimpleQuestions": rng.sample(simple, SIMPLE),
        "WordNet, examples": examples,
        "WordNet, definitions": rng.sample(definitions, DEFINITIONS),
        "WordNet, phrases": rng.sample(phrases, PHRASES),
        "help desk": make_requests(tomllib.loads(GRAMMAR.read_text()), MADE, rng),
    }


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


def read_wordnet(folder: pathlib.Path) -> tuple[list[str], list[str], list[str]]:
    """Return the definitions of WordNet, its examples, and its entries of several words.

    Source: wndb(5WN), https://wordnet.princeton.edu/documentation/wndb5wn
    """
    definitions, examples, phrases = dict[str, None](), dict[str, None](), dict[str, None]()
    for name in ("noun", "verb", "adj", "adv"):
        path = folder / f"data.{name}"
        if not path.is_file():
            remedy = "install Debian's package wordnet-base, or give --wordnet"
            raise UserError(f"expected WordNet's data files, found no {path}", remedy=remedy)
        for line in path.read_text().splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields, _, gloss = line.partition(" | ")
            _, file, _, count, *words = fields.split()
            examples.update(dict.fromkeys(re.findall(r'"([^"]{8,200})"', gloss)))
            if file in UNUSED:
                continue
            definition = re.sub(r'"[^"]*"|\([^)]*\)', "", gloss).strip(" ;:")
            if 3 <= len(definition.split()) <= 30:
                definitions[definition] = None
            entries = [word.replace("_", " ") for word in words[: 2 * int(count, 16) : 2]]
            phrases.update(dict.fromkeys(entry for entry in entries if " " in entry))
    return [*definitions], [*examples], [*phrases]


def make_requests(rules: dict[str, list[str]], count: int, rng: random.Random) -> list[str]:
    """Make `count` distinct texts; some begin with a capital or end with a mark."""

    def expand(name: str) -> str:
        return _SLOT.sub(lambda slot: expand(slot[1]), rng.choice(rules[name]))

    made = dict[str, None]()
    while len(made) < count:
        text = expand(rng.choices([*REQUESTS], [*REQUESTS.values()])[0])
        if rng.random() < 0.3:
            text = text[0].upper() + text[1:]
        if rng.random() < 0.3:
            text += rng.choice("??..!")
        made[text] = None
    return [*made]


def scored_texts(data: pathlib.Path) -> set[str]:
    """Return the test sentences of Tatoeba, normalized."""
    texts = set[str]()
    for path in (data / "parallel").glob("tatoeba_test.*.eng.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts.update(map(normalized_text, file))
    return texts


def main() -> int:
    """Write the texts, each once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wordnet", type=pathlib.Path, default="/usr/share/wordnet")
    given = parser.parse_args()
    data = pathlib.Path(os.environ.get("QPR_DATA_DIR", ""))
    held_out, written = scored_texts(data), set[str]()
    with write_atomically(OUT, "w") as out:
        for source, texts in texts_of(data, given.wordnet).items():
            lines = {" ".join(text.split()) for text in texts} - written
            lines = {line for line in lines if normalized_text(line) not in held_out}
            out.writelines(f"{line}\n" for line in sorted(lines))
            written |= lines
            log.info("%s: %s texts", source, f"{len(lines):,}")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
