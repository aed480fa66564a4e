"""The files of a search for duplicates, written a part at a time in any of OUTPUTS.

pairs          id1, id2, score, distance, question1, question2; most probable first
groups         a row for each member: group, id, kept, weakest, link1, link2, distance, question,
               of_table where there are rows of another table, and its payload
deduplicated   id, question, rows (how many it stands for), and its payload
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

from qpr_jax.data.quoted_tsv import tsv_cell
from qpr_jax.duplicates.result import OTHER, Group, groups_of, kept_of, pairs_of
from qpr_jax.duplicates.search import Found
from qpr_jax.errors import UserError
from qpr_jax.extras import needs
from qpr_jax.files import read_object, write_atomically
from qpr_jax.results import payload_names
from qpr_jax.text.tokenizer import replace_surrogates

_INFO = "info.json"
_NAMES = ("pairs", "groups", "deduplicated")
OUTPUTS = ("csv", "tsv", "jsonl", "parquet")
PAIRS = ("id1", "id2", "score", "distance", "question1", "question2")
GROUPS = ("group", "id", "kept", "weakest", "link1", "link2", "distance", "question")
DEDUPLICATED = ("id", "question", "rows")

_CHUNK = 16_384  # rows that are written at once
_TYPES = {
    **dict.fromkeys(("score", "distance", "weakest"), "float64"),
    **dict.fromkeys(("group", "rows"), "int64"),
    **dict.fromkeys(("kept", OTHER), "bool_"),
    **dict.fromkeys(("question", "question1", "question2"), "string"),
}
# Types of Parquet by the types of the values of a field, as of `kind_of`; of others, strings.
_KINDS = {
    **dict.fromkeys(("int", "long", "int long"), "int64"),
    **dict.fromkeys(("float", "float int"), "float64"),
    "bool": "bool_",
}

Rows = Iterable[Sequence[object]]


def write_files(folder: pathlib.Path, found: Found, output: str) -> None:
    """Write the three files of what was found."""
    fields = [*found.rows.kinds]
    has_others = found.rows.has_others
    group_names = (*GROUPS, OTHER) if has_others else GROUPS

    def write(name: str, fixed: Sequence[str], rows: Rows, payload: Sequence[str]) -> None:
        names = [*fixed, *payload_names(payload, fixed)]
        path = folder / f"{name}.{output}"
        if output == "parquet":
            kinds = dict(zip(names[len(fixed) :], payload, strict=True))
            types = {n: _type(n, kinds.get(n), found.rows.kinds) for n in names}
            _write_parquet(path, types, rows, strings=_has_strings(found))
        else:
            with write_atomically(path, "w") as file:
                _WRITERS[output](file, names, rows)

    write("pairs", PAIRS, pairs_of(found), ())
    members = _members(groups_of(found), fields, has_others=has_others)
    write("groups", group_names, members, fields)
    kept = ((*row[:2], row.rows, *_values(row.payload, fields)) for row in kept_of(found))
    write("deduplicated", DEDUPLICATED, kept, fields)


def file_names(output: str) -> list[str]:
    """The names of the three files of an output."""
    return [f"{name}.{output}" for name in _NAMES]


def check_inputs(folder: pathlib.Path, output: str, inputs: Iterable[str]) -> None:
    """UserError where an input is a file of the folder that would be written or removed."""
    names = [_INFO, *file_names(output), *_listed(folder)]
    files = [folder / name for name in names if (folder / name).exists()]
    for path in filter(os.path.exists, inputs):
        if any(os.path.samefile(path, file) for file in files):
            raise UserError(
                f"{path}: expected an input that is no file of the output, got one",
                setting="out",
                remedy="name another folder",
            )


def check_folder(folder: pathlib.Path, output: str) -> None:
    """UserError where a file would be replaced that no run has written."""
    for name in file_names(output):
        if (folder / name).exists() and name not in _listed(folder):
            raise UserError(
                f"{folder}: expected no file {name} of another program, got one",
                setting="out",
                remedy="name another folder, or remove the file",
            )


def remove_before(folder: pathlib.Path, output: str) -> None:
    """Remove what a run before wrote and this one does not replace, as its info.json lists it."""
    for name in _listed(folder) - {*file_names(output)}:
        (folder / name).unlink(missing_ok=True)
    (folder / _INFO).unlink(missing_ok=True)


def _listed(folder: pathlib.Path) -> set[str]:
    """The files that info.json lists, of those that a run can write."""
    listed = read_object(folder / _INFO).get("files")
    can_be = {name for output in OUTPUTS for name in file_names(output)}
    return {name for name in can_be if isinstance(listed, list) and name in listed}


def _members(groups: Iterable[Group], fields: list[str], *, has_others: bool) -> Rows:
    for number, group in enumerate(groups):
        fixed = zip(group.ids, group.stays, group.questions, strict=True)
        others = zip(group.of_table, group.payloads, strict=True)
        for (value, stays, text), (of_table, payload) in zip(fixed, others, strict=True):
            more = (of_table,) if has_others else ()
            link = (group.weakest, *group.link, group.distance)
            yield (number, value, stays, *link, text, *more, *_values(payload, fields))


def _values(payload: Mapping[str, object] | None, fields: Sequence[str]) -> list[object]:
    return [(payload or {}).get(name) for name in fields]


def _write_csv(file: IO[str], names: Sequence[str], rows: Rows) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*map(replace_surrogates, names)])
    writer.writerows([replace_surrogates(_cell(value)) for value in row] for row in rows)


def _write_tsv(file: IO[str], names: Sequence[str], rows: Rows) -> None:
    for row in itertools.chain([names], rows):
        cells = (tsv_cell(replace_surrogates(_cell(value))) for value in row)
        file.write("\t".join(cells) + "\n")


def _write_jsonl(file: IO[str], names: Sequence[str], rows: Rows) -> None:
    file.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


_WRITERS: dict[str, Callable[[IO[str], Sequence[str], Rows], None]] = {
    "csv": _write_csv,
    "tsv": _write_tsv,
    "jsonl": _write_jsonl,
}


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_output(output: str) -> None:
    """UserError where the package for an output is missing."""
    if output == "parquet":
        with needs("Parquet", "qpr_jax[parquet]", setting="output"):
            import pyarrow.parquet  # noqa: F401


def _type(name: str, field: str | None, kinds: Mapping[str, Sequence[str]]) -> str:
    """The type of a column of Parquet; "id": whole numbers, or strings where some are."""
    if field is None:
        return _TYPES.get(name, "id")
    return _KINDS.get(" ".join(kind for kind in kinds[field] if kind != "NoneType"), "string")


def _has_strings(found: Found) -> bool:
    return any(part.has_string_ids for part in found.rows.parts)


def _write_parquet(
    path: pathlib.Path, types: Mapping[str, str], rows: Rows, *, strings: bool
) -> None:
    import pyarrow
    import pyarrow.parquet

    kinds = [("string" if strings else "int64") if t == "id" else t for t in types.values()]
    names = [*map(replace_surrogates, types)]
    fields = [(name, getattr(pyarrow, kind)()) for name, kind in zip(names, kinds, strict=True)]
    schema = pyarrow.schema(fields)
    with write_atomically(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for some in _chunks(rows):
            columns = zip(*some, strict=True)
            arrays = [
                pyarrow.array([*map(_as_string, cells)] if kind == "string" else cells, field.type)
                for cells, kind, field in zip(columns, kinds, schema, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _as_string(value: object) -> str | None:
    return None if value is None else replace_surrogates(_cell(value))


def _chunks(rows: Rows) -> Iterator[list[Sequence[object]]]:
    stream = iter(rows)
    return iter(lambda: [*itertools.islice(stream, _CHUNK)], [])
