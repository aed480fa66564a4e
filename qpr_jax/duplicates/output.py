"""The tables of a search for duplicates, and their files in any of OUTPUTS.

pairs         id1, id2, score, distance, question1, question2; most probable first
groups        a row for each member: the columns of the input, group, kept, central, words, weakest,
              link1, link2, distance, and of_table where there are rows of another table
deduplicated  the columns of the input, and rows: how many a row stands for
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from qpr_jax import kinds
from qpr_jax.data.columns import read_rows, tsv_cell
from qpr_jax.data.entries import Id, Payload, is_missing
from qpr_jax.data.tables import Table
from qpr_jax.errors import UserError, needs
from qpr_jax.files import StrPath, read_object, write_atomically
from qpr_jax.index.protocol import Question
from qpr_jax.results import TableColumns, arrow_table, attributes
from qpr_jax.text.tokenizer import replace_surrogates

INFO = "info.json"
OUTPUTS = ("csv", "tsv", "jsonl", "parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a text begins that a spreadsheet computes
TableName = Literal["pairs", "groups", "deduplicated"]
TABLES: tuple[TableName, ...] = ("pairs", "groups", "deduplicated")


class Pair(NamedTuple):
    """Two rows that are duplicates.

    score: how likely that is, 0 to 1; None in a file of pairs without it. distance: squared.
    """

    id1: Id
    id2: Id
    score: float | None
    distance: float
    question1: str
    question2: str


def pair_key(id1: object, id2: object) -> int:
    """Return a hash of two ids, 64 bits; also where a pair stands in the random order.

    Their order counts: with `against` each is of a table of its own.
    """
    text = f"{len(str(id1))} {id1} {id2}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class Group(NamedTuple):
    """Rows that are duplicates of each other.

    Attributes:
      ids, questions, payloads: of the rows, in the order of the ids.
      of_table: whether each row is of the table, and not of what it is compared with.
      kept: the id of the row that stays.
      stays: whether each row is this one.
      central: the text that is nearest to the mean of the group.
      words: those that set the group apart, best first (`duplicates.groups`).
      weakest: the score of the pair that joined the group last.
      link: the ids of this pair; smaller id first, or the table's with `against`.
      distance: of this pair.
    """

    ids: list[Id]
    questions: list[str]
    payloads: list[Payload | None]
    of_table: list[bool]
    stays: list[bool]
    central: str
    words: list[str]
    kept: Id
    weakest: float
    link: tuple[Id, Id]
    distance: float


class Row(NamedTuple):
    """A row of the table; `rows`: how many it stands for, itself included."""

    id: Id
    question: str
    payload: Payload | None
    rows: int


def member_columns(groups: Sequence[Group], *, with_others: bool) -> dict[str, list[Any]]:
    """Return the columns of groups, a row for each member; `of_table` if `with_others`."""
    members = [(i, group, n) for i, group in enumerate(groups) for n in range(len(group.ids))]
    columns: dict[str, list[Any]] = {
        "group": [i for i, _, _ in members],
        "kept": [group.stays[n] for _, group, n in members],
        "central": [group.central for _, group, _ in members],
        "words": [" ".join(group.words) for _, group, _ in members],
        "weakest": [group.weakest for _, group, _ in members],
        "link1": [group.link[0] for _, group, _ in members],
        "link2": [group.link[1] for _, group, _ in members],
        "distance": [group.distance for _, group, _ in members],
    }
    if with_others:
        columns["of_table"] = [group.of_table[n] for _, group, n in members]
    return columns


def with_table(
    table: Table, questions: Sequence[Question], numbers: list[int], added: dict[str, list[Any]]
) -> TableColumns:
    """Return the columns of a table, then `id` if it has none, then others.

    Args:
      table: names its columns.
      questions: the rows of the table, then the rows of the other table or of the index.
      numbers: the rows that are returned.
      added: columns of these rows; one whose name the table has gets "qpr_" before it.
    """
    rows = [questions[number] for number in numbers]
    names = dict.fromkeys(table.chosen.names)
    for row in rows:
        names |= dict.fromkeys(row.payload or ())
    values: dict[str, list[Any]]
    values = {name: [(row.payload or {}).get(name) for row in rows] for name in names}
    values[table.chosen.text] = [row.text for row in rows]
    if table.chosen.id:
        values[table.chosen.id] = [row.id for row in rows]
    else:
        added = attributes(rows, ["id"]) | added
    fixed = {}
    for name, column in added.items():
        while name in values:
            name = f"qpr_{name}"
        fixed[name] = column
    typed = None if "of_table" in added else table.select(numbers, names)
    return TableColumns(values | fixed, fixed, typed)


def write_tables(
    folder: pathlib.Path, tables: Mapping[TableName, TableColumns], output: str, *, excel: str = ""
) -> None:
    """Write the file of each table, whole or not at all.

    excel: the separator of "csv"; if there is one, write "csv" and "tsv" as spreadsheets read them:
      with a byte order mark, and ' before text that they would take for a formula.
    """
    for name, table in tables.items():
        _write(folder / f"{name}.{output}", table, output, excel=excel)


def file_names(output: str) -> list[str]:
    """Return the names of the files of an output."""
    return [f"{name}.{output}" for name in TABLES]


def check_output(output: str) -> None:
    """UserError where the package for an output is missing."""
    if output == "parquet":
        with needs("Parquet", ".[parquet]", setting="output"):
            import pyarrow.parquet  # noqa: F401


def check_folder(folder: pathlib.Path, output: str, inputs: Iterable[str]) -> None:
    """UserError where a file would be replaced that is an input, or be put beside others' files."""
    kinds.refuse_output(folder, kinds.PAIRS)
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
    others = os.listdir(folder) if os.path.isdir(folder) else []
    if kinds.kind_of(folder) != kinds.PAIRS and any(name[:1] != "." for name in others):
        what = f"{folder}: expected an empty folder or an earlier result, found other files"
        raise UserError(what, setting="out", remedy="name another folder")


def pairs_file(path: str) -> str:
    """Return the file of pairs of an output folder, as its info.json lists it.

    Any other path as it is, but UserError for one that holds another thing.
    """
    kinds.refuse_kind(path, kinds.PAIRS, kinds.PACKED)
    if not os.path.exists(path):
        near = kinds.similar_path(path, kinds.PAIRS)
        raise UserError(f"{path}: found none{near}", remedy=kinds.instead(kinds.PAIRS))
    listed = _listed(pathlib.Path(path)) if os.path.isdir(path) else ()
    return next((os.path.join(path, name) for name in listed if name.startswith("pairs.")), path)


def info_of(pairs: StrPath) -> dict[str, Any]:
    """Return the info.json of the folder that a file of pairs was written to; {} for others."""
    path = pathlib.Path(pairs)
    try:
        listed = _listed(path.parent)
    except UserError:  # of another program
        return {}
    return read_object(path.parent / INFO) if path.name in listed else {}


def read_other_columns(pairs: StrPath) -> tuple[dict[str, Payload], dict[str, Payload]]:
    """Read the payloads of rows from the files beside a file of pairs.

    Returns:
      Payloads without empty cells, by the ids of first texts of pairs, and by those of second ones.
    """
    path, info = pathlib.Path(pairs), info_of(pairs)
    key, payload = info.get("id_column"), info.get("payload") or ()
    wanted = {key, "of_table", *payload}
    files = [path.name] if info.get("first_hits") else info.get("files", [])[1:]
    first, second = dict[str, Payload](), dict[str, Payload]()
    for name in files if key and payload else ():
        rows = read_rows(str(path.with_name(name)), lambda names: [n for n in names if n in wanted])
        for _, fields in rows:
            if isinstance(fields, dict) and key in fields:
                other = f"{fields.get('of_table')}".lower() == "false" or info.get("first_hits")
                cells = {n: fields[n] for n in payload if not is_missing(fields.get(n) or None)}
                (second if other else first)[str(fields[key])] = cells
    return (first, second) if second else (first, first)


def remove_before(folder: pathlib.Path, output: str) -> None:
    """Remove the files of a run before, as its info.json lists them, but for those of `output`."""
    for name in _listed(folder) - {*file_names(output)}:
        (folder / name).unlink(missing_ok=True)


def _listed(folder: pathlib.Path) -> set[str]:
    """Return the files that info.json lists, of those that a run can write."""
    listed = read_object(folder / INFO).get("files")
    can_be = {name for output in OUTPUTS for name in file_names(output)}
    return {name for name in can_be if isinstance(listed, list) and name in listed}


def _write(path: pathlib.Path, table: TableColumns, output: str, *, excel: str) -> None:
    if output == "parquet":
        import pyarrow.parquet

        with write_atomically(path) as file:
            pyarrow.parquet.write_table(arrow_table(table), file)
        return
    columns = table.values
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
