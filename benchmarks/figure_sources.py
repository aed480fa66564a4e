"""Where the figures of the pages come from: files below results/, and expressions over them.

`benchmarks.figures` explains both.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import json
import operator
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

_ENDS = ("", ".json", ".jsonl", ".csv", ".tsv")
KNOWN = ("command", "commit", "machine", "date")  # what `measured` says, null where not known
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
    "stdev": statistics.stdev,
    "len": len,
}


class Unknown(Exception):
    """An expression that leads to no number."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder below results/, whose files and folders are its keys."""

    path: pathlib.Path

    def __getitem__(self, name: str) -> Any:
        for path in (self.path / f"{name}{end}" for end in _ENDS):
            if path.exists() and path.name:
                return Folder(path) if path.is_dir() else read(path)
        raise KeyError(name)


@functools.cache
def read(path: pathlib.Path) -> Any:
    """The value of a JSON file, or the list of rows of a table."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return [
        {key: _as_number(cell) for key, cell in row.items()}
        for row in csv.DictReader(
            text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ","
        )
    ]


def _as_number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell


class Sources:
    """The figures below a folder like results/."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        ends = (".json", ".jsonl")
        paths = (self.folder / "benchmarks" / f"{name}{end}" for end in ends)
        path = next((path for path in paths if path.exists()), None)
        if path:
            self.used.add(f"benchmarks/{path.name}")
            value = read(path)
            return value.get("figures", value) if isinstance(value, dict) else value
        value = Folder(self.folder)[name]
        self.used.add(name)
        return value

    def missing_facts(self, name: str) -> str:
        """Which facts about the measurement of a file or folder are nowhere, as a line."""
        path = self.folder / name
        value = read(path) if path.suffix == ".json" and path.exists() else {}
        others = read(self.folder / "measured.json") if "measured" not in value else {}
        facts = value.get("measured") or others.get(name, {})
        return ", ".join(key for key in KNOWN if key not in facts)


def evaluate(expression: str, names: Callable[[str], Any]) -> Any:
    """The value of an expression.

    Raises:
      Unknown: it is none, or a key does not exist.
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, names)
    except (SyntaxError, LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise Unknown(f"`{expression.strip()}` has no value ({error!r})") from error


def _value(node: ast.expr, names: Callable[[str], Any]) -> Any:
    of = functools.partial(_value, names=names)
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            return names(name)
        case ast.List(elts=parts):
            return [of(part) for part in parts]
        case ast.Slice(lower=ast.expr() as lower, upper=ast.expr() as upper, step=None):
            return slice(of(lower), of(upper))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -of(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](single(of(left)), single(of(right)))
        case ast.Attribute(value=inner, attr=key):
            return _item(of(inner), key)
        case ast.Subscript(value=inner, slice=key):
            return _item(of(inner), of(key))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS and args:
            found = [of(arg) for arg in args]
            return _FUNCTIONS[name](found[0] if len(found) == 1 else [*map(single, found)])
        case ast.Call(func=inner, args=[], keywords=keywords):
            values = {keyword.arg: of(keyword.value) for keyword in keywords}
            return [row for row in of(inner) if all(row[k] == v for k, v in values.items())]
    raise ValueError(f"not allowed: {ast.unparse(node)}")


def _item(value: Any, key: Any) -> Any:
    if isinstance(value, list) and isinstance(key, str):
        return [row[key] for row in value]
    return value[key]


def single(value: Any) -> Any:
    """The part of a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def numbers_in(value: Any) -> list[float]:
    """All numbers of a value, in their order."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) else []


def number(expression: str, names: Callable[[str], Any]) -> float:
    """The one number that an expression has."""
    found = numbers_in(evaluate(expression, names))
    if len(found) != 1:
        raise Unknown(f"`{expression}` has {len(found)} numbers")
    return found[0]
