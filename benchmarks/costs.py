"""What commands say that they will take, against what they took.

    python -m benchmarks.costs --run runs/quora_sdml --folder /tmp/costs

Index, encode and duplicates read the questions of $QPR_DATA_DIR, and, for more than there are,
these with words of others at their ends, all distinct; train reads the pair file. Each command is a
process of its own, whose two lines are read: estimate and actual are of the same minutes. In
brackets is the estimate over the actual one. The table is in docs/costs.md.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from experiments.measuring import positive
from qpr_jax.cli.program import run_program
from qpr_jax.data.quora import read_quora
from qpr_jax.errors import UserError

COMMANDS = ("index", "encode", "duplicates", "train")
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_AMOUNTS = r"([\d. a-z]+), ([\d.]+ [KMG]B) memory, ([\d.]+ [KMG]B) disk"
_SAID = re.compile(rf"(?:about|at most) {_AMOUNTS}; ")
_TOOK = re.compile(rf"took {_AMOUNTS}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="Folder of the encoder.")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="For files; new.")
    parser.add_argument("--counts", type=positive, nargs="+", default=[10_000, 165_000, 2_000_000])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--factory", help="Of the index.")
    parser.add_argument("--assignments", type=positive, help="Of the index.")
    parser.add_argument("--max-distance", default="0.3", help="Of duplicates.")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    print("| command | questions | | time | memory | disk |\n|---|---|---|---|---|---|", flush=True)
    for count in given.counts if set(given.commands) - {"train"} else ():
        path = given.folder / f"{count}.tsv"
        write_questions(path, count)
        for name in given.commands:
            if name != "train":
                show(name, f"{count:,}", command(name, path, given), given.folder)
    if "train" in given.commands:
        show("train", "pairs", command("train", given.folder, given), given.folder)
    return 0


def command(name: str, path: pathlib.Path, given: argparse.Namespace) -> list[str]:
    """The arguments of `qpr`; what it writes is in the folder of `path`."""
    out = str(given.folder / "out")
    if name == "index":
        options = {"--factory": given.factory, "--assignments": given.assignments}
        chosen = [str(part) for pair in options.items() if pair[1] for part in pair]
        return ["index", out, str(path), "--run", given.run, *chosen]
    if name == "encode":
        return ["encode", given.run, str(path), "--out", f"{out}.npy"]
    if name == "duplicates":
        words = ["--run", given.run, "--out", out, "--max-distance", given.max_distance]
        return ["duplicates", str(path), *words]
    pairs = pathlib.Path(data_folder(), "quora", "quora_duplicate_questions.tsv")
    return ["train", out, str(pairs), "--config", "quora_sdml", "--set", "max_epochs=1"]


def show(name: str, count: str, arguments: Sequence[str], folder: pathlib.Path) -> None:
    """Run a command and print two rows of the table; then remove what it wrote."""
    program = [sys.executable, "-m", "qpr_jax.cli.main", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    said, took = _SAID.search(done.stderr), _TOOK.search(done.stderr)
    if done.returncode or not said or not took:
        raise UserError(f"{name} of {count}: {done.stderr.strip().splitlines()[-1]}")
    print(f"| {name} | {count} | said | {' | '.join(said.groups())} |")
    cells = [
        f"{b} ({amount(a) / max(amount(b), 1e-9):.2f})"
        for a, b in zip(said.groups(), took.groups(), strict=True)
    ]
    print(f"| | | took | {' | '.join(cells)} |", flush=True)
    for left in folder.glob("out*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def amount(text: str) -> float:
    """Seconds of `2 min 51 s`, bytes of `1.2 GB`."""
    words = text.split()
    return sum(float(n) * _UNITS[unit] for n, unit in zip(words[::2], words[1::2], strict=True))


def write_questions(path: pathlib.Path, count: int) -> None:
    """Write a table of distinct questions."""
    with path.open("w", encoding="utf-8") as file:
        file.write("id\tquestion\n")
        for number, text in enumerate(distinct_questions(count)):
            file.write(f"{number}\t{text}\n")


def distinct_questions(count: int) -> Iterator[str]:
    """Real questions and, beyond these, copies that end in two words of another and a number."""
    real = read_quora(pathlib.Path(data_folder(), "quora", "quora_duplicate_questions.tsv"))
    texts = [" ".join(text.split()) for text in real.questions]
    for number in range(count):
        copy, row = divmod(number, len(texts))
        if copy:
            other = texts[(row * 7919 + copy * 104_729) % len(texts)].split()[:2]
            yield f"{texts[row]} {' '.join(other)} {copy}"
        else:
            yield texts[row]


def data_folder() -> str:
    """The folder of the data sets."""
    folder = os.environ.get("QPR_DATA_DIR")
    if not folder:
        raise UserError("expected $QPR_DATA_DIR, the folder of the data sets, got none")
    return folder


if __name__ == "__main__":
    sys.exit(run_program(main))
