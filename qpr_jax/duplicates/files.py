"""The files of a search for duplicates, in any of OUTPUTS.

pairs         id1, id2, score, distance, question1, question2; most probable first
groups        a row for each member: the columns of the input, group, kept, weakest, link1, link2,
              distance, and of_table where there are rows of another table
deduplicated  the columns of the input, and rows: how many a row stands for
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from qpr_jax.data.columns import tsv_cell
from qpr_jax.duplicates.result import Duplicates, Table
from qpr_jax.errors import UserError, needs
from qpr_jax.files import read_object, write_atomically
from qpr_jax.text.tokenizer import replace_surrogates

INFO = "info.json"
OUTPUTS = ("csv", "tsv", "jsonl", "parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a text begins that a spreadsheet computes
_NAMES = ("pairs", "groups", "deduplicated")


def write_files(folder: pathlib.Path, found: Duplicates, output: str, *, excel: str = "") -> None:
    """Write the files of what was found, each whole or not at all.

    excel: the separator of "csv"; if there is one, write "csv" and "tsv" as spreadsheets read them:
      with a byte order mark, and ' before text that they would take for a formula.
    """
    for name in _NAMES:
        _write(folder / f"{name}.{output}", getattr(found, name), output, excel=excel)


def file_names(output: str) -> list[str]:
    """The names of the files of an output."""
    return [f"{name}.{output}" for name in _NAMES]


def check_output(output: str) -> None:
    """UserError where the package for an output is missing."""
    if output == "parquet":
        with needs("Parquet", ".[parquet]", setting="output"):
            import pyarrow.parquet  # noqa: F401


def check_folder(folder: pathlib.Path, output: str, inputs: Iterable[str]) -> None:
    """UserError where a file would be replaced that is an input, or that no run has written."""
    listed = _listed(folder)
    names = [INFO, *file_names(output), *listed]
    files = [folder / name for name in names if (folder / name).exists()]
    for path in filter(os.path.exists, inputs):
        if any(os.path.samefile(path, file) for file in files):
            what = f"{path}: the input is a file of the output folder"
            raise UserError(what, setting="out", remedy="name another folder")
    for name in file_names(output):
        if (folder / name).exists() and name not in listed:
            what = f"{folder}: {name} is there already, and not from `qpr duplicates`"
            raise UserError(what, setting="out", remedy="name another folder, or remove the file")


def pairs_file(path: str) -> str:
    """The file of pairs of an output folder, as its info.json lists it; any other path as it is."""
    listed = _listed(pathlib.Path(path)) if os.path.isdir(path) else ()
    return next((os.path.join(path, name) for name in listed if name.startswith("pairs.")), path)


def remove_before(folder: pathlib.Path, output: str) -> None:
    """Remove the files of a run before, as its info.json lists them, but for those of `output`."""
    for name in _listed(folder) - {*file_names(output)}:
        (folder / name).unlink(missing_ok=True)


def _listed(folder: pathlib.Path) -> set[str]:
    """The files that info.json lists, of those that a run can write."""
    listed = read_object(folder / INFO).get("files")
    can_be = {name for output in OUTPUTS for name in file_names(output)}
    return {name for name in can_be if isinstance(listed, list) and name in listed}


def _write(path: pathlib.Path, table: Table[Any], output: str, *, excel: str) -> None:
    if output == "parquet":
        import pyarrow.parquet

        with write_atomically(path) as file:
            pyarrow.parquet.write_table(table.to_arrow(), file)
        return
    columns = table.columns().values
    names, rows = [*columns], zip(*columns.values(), strict=True)
    with write_atomically(path, "w") as file:
        if output == "jsonl":
            lines = (json.dumps(dict(zip(names, row, strict=True))) for row in rows)
            file.writelines(f"{line}\n" for line in lines)
            return
        if excel:
            file.write("\ufeff")
        cells = ([_cell(v, excel=excel) for v in row] for row in itertools.chain([names], rows))
        if output == "csv":
            csv.writer(file, delimiter=excel or ",", lineterminator="\n").writerows(cells)
        else:
            file.writelines("\t".join(map(tsv_cell, row)) + "\n" for row in cells)


def _cell(value: object, *, excel: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return replace_surrogates(json.dumps(value, ensure_ascii=False))
    return replace_surrogates(f"'{value}" if excel and value.startswith(_FORMULA) else value)
