"""Check the figures of the pages against the files that they come from, or rewrite them.

    python -m benchmarks.figures --check     # in the tests; changes nothing
    python -m benchmarks.figures             # rewrites the figures that differ

A figure is a number of a page that is: in a body cell of a table; a decimal number; a number with a
thousands separator; or one before a unit (`_UNIT`: s, MiB, %, "times", "a second", ...) or before
"of" and a number. Numbers in code, links and comments are none, nor are versions (0.10.2; after
"version", "Python" and the like); other small numbers in prose need no source. Each figure of the
checked pages (`PAGES`) has its source or says that it is a constant, in comments, which no reader
of the page sees:

    0.853<!--=quora.h1-->                  the value of an expression
    <!--rows encoding.table: MiB, rate-->  a line before a table: a row's numbers in their order
    | `x`<!--row encoding.table.x--> | 1 | the same, of this row alone
    <!--where h = quora.test.exact-->      a name for an expression, for the whole page
    12<!--constant-->                      a number that nobody measured: a setting, a definition
    <!--constants: defaults-->             a line before a block: all of it that has no other tag

The first name of an expression is results/benchmarks/NAME.json (its `figures`), else the folder
results/NAME. Then `.key`, `["key"]`, `[0]` and `[2:4]` lead
to the number; the files of a folder (JSON, JSON lines, CSV, TSV) are keys without their suffix. Of
a list of rows `.key` is the list of their values, and `(size=8192)` the rows with that value.
+ - * / and `min`, `max`, `mean`, `median`, `stdev`, `sum`, `len` compute. `rows` looks up the label
of each row: its first cell, or the first ones joined by ", ", where the first ones that are empty
repeat the row above; without columns all numbers of the found row count, else those of the
expressions, in which the keys of the row are names.

A page must show the value rounded to the digits that it shows. results/measured.json says by which
command, commit and machine, and when, files and folders were made that do not say it themselves
(`measured`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.figure_sources import Sources, Unknown, evaluate, number, numbers_in, single
from qpr_jax.files import write_atomically

ROOT = pathlib.Path(__file__).resolve().parent.parent
_GENERATED = ("docs/settings.md", "docs/commands.md")  # tests compare them with their programs
_LEFT = ("docs/upgrade.md",)  # its numbers are of versions, and limits that the formats set
_BY_HAND = ("asymmetric", "duplicates", "one_query", "opening", "review", "typos")
PAGES = [
    "BUILD.md",
    "README.md",
    *sorted(
        page
        for path in ROOT.glob("docs/*.md")
        if (page := path.relative_to(ROOT).as_posix()) not in (*_GENERATED, *_LEFT)
    ),
    *(f"results/benchmarks/{name}.md" for name in _BY_HAND),
    "results/milvus/README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("results/*/discussion.md")),
]

_NUMBER = re.compile(
    r"(?<![\w.,/^])(?<!\w-)(?<!\d:)[-+]?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d+)?(?:e[-+]?\d+)?"
    r"(?![\w^]|\.\d|,\d{3}|-[a-z]|:\d)"
)
_UNIT = re.compile(
    r"(?:(?:,| and| to| or) [\d.,]+)*"  # "11 and 23 ms"
    r"\s?(?:%|times\b|(?:[mµun]?s|seconds?|min|minutes?|hours?|days?|[kKMGT]i?B|bytes?|G?FLOP/s)\b"
    r"|\w+/s\b|(?:\w+ ){0,2}a second\b|of [\d])"
)
_VERSION = re.compile(
    r"(?:[Vv]ersions?|Python|PyTorch|JAX|sentence-transformers|Java|BY"
    r"|pytrec_eval|HTTP|Format|format|formats|driver|Zen|TLS|SHA)[ -]$"
)
_HIDDEN = re.compile(
    r"(?ms)^ *```.*?^ *```|^    .*?$|`[^`\n]*(?:\n[^`\n]+){0,3}`|\]\([^)]*\)|https?://\S+"
)
_COMMENT = re.compile(r"(?s)<!--(.*?)-->")


def shown_like(value: float, text: str) -> str:
    """The value with the digits, sign and separators of `text`."""
    if "e" in text:
        digits = len(text.split("e")[0].partition(".")[2])
        mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = len(text.partition(".")[2])
    plain = text.lstrip("+-").replace(",", "")
    zeros = min(len(plain) - len(plain.rstrip("0")), len(plain) - 2)
    if not decimals and zeros > 1:  # 83,000 is rounded to thousands, or to hundreds
        for place in range(zeros, 1, -1):
            if _written(round(value, -place), text, 0) == text:
                return text
        value = round(value, -zeros)
    return _written(value, text, decimals)


def _written(value: float, text: str, decimals: int) -> str:
    comma = "" if re.search(r"\d{4}", text) else ","
    written = f"{value:{'+' if text[0] == '+' else ''}{comma}.{decimals}f}"
    if float(written.replace(",", "")) == 0 and text.lstrip("+-")[0] == text[0]:
        written = written.lstrip("-")
    return re.sub(r"(^|[+-])0\.", r"\1.", written) if re.match(r"[+-]?\.", text) else written


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number of a page at `start`; its source, "" for a constant, None where it has no tag."""

    start: int
    text: str
    source: str | None


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table whose numbers have one source.

    labels: the first cells, joined, and where the numbers after them begin; a row with a tag of
      its own has one, "", and its numbers begin there.
    """

    numbers: tuple[Figure, ...]
    labels: tuple[tuple[str, int], ...]
    source: str
    columns: str


def figures_of(text: str) -> Iterator[Figure | Row]:
    """The figures of a page, in their order, and all tagged numbers."""
    tags = {match.start(): match[1].strip() for match in _COMMENT.finditer(text)}
    hidden = text
    for pattern in (_COMMENT, _HIDDEN):
        hidden = pattern.sub(lambda match: re.sub(r"[^\n]", "\x00", match[0]), hidden)
    start, block, table_line = 0, "", 0
    above: list[str] = []
    for line in text.splitlines(keepends=True):
        end, shown = start + len(line), hidden[start : start + len(line)]
        own = [tag for place, tag in tags.items() if start <= place < end]
        if not line.strip():
            block = ""
        elif line.startswith("<!--"):
            block = own[0] if own else ""
        table_line = table_line + 1 if shown.lstrip().startswith("|") else 0
        rest = []
        for match in _NUMBER.finditer(hidden, start, end):
            tag = tags.get(match.end(), "")
            if tag.startswith(("=", "constant")):
                yield Figure(match.start(), match[0], tag[1:] if tag[0] == "=" else "")
            elif table_line not in (1, 2) and _is_figure(hidden, match, cell=table_line > 2):
                rest.append(match)
        by_row = next((tag for tag in own if tag.startswith("row ")), "")
        if table_line > 2 and (by_row or block.startswith("rows ")):
            source, _, columns = (by_row or block).partition(" ")[2].partition(":")
            numbers = tuple(Figure(match.start(), match[0], None) for match in rest)
            tagged = (("", start + line.index("<!--row ")),) if by_row else ()
            labels = tagged or tuple(_labels(line, start, above))
            yield Row(numbers, labels, source, columns)
        else:
            source = "" if block.startswith("constants") else None
            yield from (Figure(match.start(), match[0], source) for match in rest)
        start = end


def _labels(line: str, start: int, above: list[str]) -> Iterator[tuple[str, int]]:
    """The first cells, joined, and where they end; the first empty ones are as in the row above."""
    cells = [_COMMENT.sub("", cell) for cell in line.strip().strip("|").split("|")]
    shown = [re.sub(r"[*`]", "", cell).strip() for cell in cells]
    empty = len([*itertools.takewhile(lambda cell: not cell, shown)])
    shown[:empty] = above[:empty]
    above[:] = shown
    place = start + line.index("|") + 1
    for count, cell in enumerate(line.strip().strip("|").split("|"), start=1):
        place += len(cell) + 1
        yield ", ".join(filter(None, shown[:count])), place


def _is_figure(hidden: str, match: re.Match[str], *, cell: bool) -> bool:
    """Whether a number in prose or in a cell of a table needs a source."""
    before, after = hidden[max(0, match.start() - 40) : match.start()], hidden[match.end() :][:40]
    if _VERSION.search(before.replace("\n", " ")):
        return False
    return bool(cell or "." in match[0] or "," in match[0] or _UNIT.match(after.replace("\n", " ")))


@dataclasses.dataclass
class Checked:
    """A page: what is wrong with it, its text with the right figures, and how many it has."""

    problems: list[str]
    text: str
    sourced: int = 0


@dataclasses.dataclass
class Values:
    """The values of a page's figures, by its own names and a folder like results/."""

    sources: Sources
    names: dict[str, str]

    def find(self, name: str, row: Any = None, within: str = "") -> Any:
        """The value of a name: a key of the row, a name of the page, or a source."""
        if isinstance(row, dict) and name in row:
            return row[name]
        if name in self.names and name != within:
            return evaluate(self.names[name], lambda other: self.find(other, within=name))
        return self.sources[name]

    def of(self, figure: Figure | Row) -> list[tuple[Figure, float]]:
        """The numbers that a figure or a row shows, each with its value.

        Raises:
          Unknown: there is none, or the row shows more or fewer.
        """
        if isinstance(figure, Figure):
            return [(figure, number(figure.source or "", self.find))]
        value, start = single(evaluate(figure.source, self.find)), figure.labels[0][1]
        if figure.labels[0][0]:
            known = [(value[label], end) for label, end in figure.labels if label in value]
            if not known:
                raise Unknown(f"`{figure.source}` has no row {figure.labels[0][0]!r}")
            value, start = known[0]
        if figure.columns:
            columns = evaluate(f"[{figure.columns}]", lambda name: self.find(name, value))
            numbers = numbers_in(columns)
        else:
            numbers = numbers_in(value)
        shown = [number for number in figure.numbers if number.start >= start]
        if len(shown) != len(numbers):
            raise Unknown(f"{len(shown)} numbers, but `{figure.source}` has {numbers}")
        return [*zip(shown, numbers, strict=True)]


def names_of(text: str) -> dict[str, str]:
    """The names that a page gives to expressions."""
    tags = (tag.strip() for tag in _COMMENT.findall(text))
    named = (tag.removeprefix("where ") for tag in tags if tag.startswith("where "))
    parts = (part.partition("=") for tag in named for part in tag.split(";"))
    return {name.strip(): expression for name, _, expression in parts}


def check(page: str, text: str, folder: pathlib.Path) -> Checked:
    """Compare a page with the files of a folder like results/."""
    sources = Values(Sources(folder), names_of(text))
    result, changes = Checked([], text), []
    for figure in figures_of(text):
        first = figure if isinstance(figure, Figure) else next(iter(figure.numbers), None)
        if first is None or (isinstance(figure, Figure) and figure.source == ""):
            continue
        where = f"{page}:{text.count(chr(10), 0, first.start) + 1}"
        if isinstance(figure, Figure) and figure.source is None:
            wrong = "expected its source or `<!--constant-->`, got none"
            result.problems.append(f"{where}: {first.text}: {wrong}")
            continue
        try:
            values = sources.of(figure)
        except Unknown as error:
            wrong = f"{error}; correct the expression or measure it again"
            result.problems.append(f"{where}: {first.text}: {wrong}")
            continue
        result.sourced += len(values)
        for shown, value in values:
            right = shown_like(value, shown.text)
            if right != shown.text:
                changes.append((shown, right))
                wrong = f"its source says {right} ({value:g}); run `python -m benchmarks.figures`"
                result.problems.append(f"{where}: {shown.text}: {wrong}, or measure it again")
    for shown, right in sorted(changes, key=lambda change: -change[0].start):
        end = shown.start + len(shown.text)
        result.text = result.text[: shown.start] + right + result.text[end:]
    for name in sorted(sources.sources.used):
        if missing := sources.sources.missing_facts(name):
            result.problems.append(f"{page}: results/{name} does not say its {missing}")
    return result


def main() -> int:
    """Check or rewrite the pages; 1 where something is wrong that a rewrite does not put right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("pages", nargs="*", default=PAGES)
    given = parser.parse_args()
    sourced = wrong = 0
    for page in given.pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        checked = check(page, text, ROOT / "results")
        if not given.check and checked.text != text:
            with write_atomically(ROOT / page, "w") as file:
                file.write(checked.text)
            print(f"{page}: rewritten")
            checked = check(page, checked.text, ROOT / "results")
        sourced, wrong = sourced + checked.sourced, wrong + len(checked.problems)
        for problem in checked.problems:
            print(problem, file=sys.stderr)
    print(f"{sourced} figures of {len(given.pages)} pages; {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
