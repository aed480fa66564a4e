"""Small tables in files of the format that their ending names, and what programs wrote."""

import csv
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from qpr_jax.data.question_pairs import PAIRS_HEADER

HEADER = ("id", *PAIRS_HEADER)  # of Quora's file


def write_table(path: Any, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write .csv, .tsv, .jsonl or .json; returns the path."""
    path = pathlib.Path(path)
    records = [dict(zip(names, row, strict=True)) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(record) + "\n" for record in records)
        elif path.suffix == ".json":
            json.dump(records, file)
        else:
            writer = csv.DictWriter(file, names, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(records)
    return str(path)


def read_table(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read .csv, .tsv or .jsonl."""
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return [*csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]
