"""From names, files and flags to a `TrainConfig`."""

from __future__ import annotations

import copy
import difflib
import pathlib
import runpy
import tomllib
import typing
from collections.abc import Mapping
from typing import Any

from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig, declarations, flatten, read, write
from qpr_jax.training.presets import PRESETS, smoke_changes


def load_config(
    spec: str, changes: Mapping[str, Any] | None = None, *, python_files: bool = False
) -> TrainConfig:
    """The config that `spec` names: NAME of a preset, PATH.toml, or one of them with `:smoke`.

    `:smoke` shrinks it to tiny shapes, few rows and 12 steps; NAME_smoke is read as NAME:smoke.
    With `python_files`, PATH.py with `get_config() -> TrainConfig` is read too. UserError if there
    is no such preset or file, or it has an unknown setting or a wrong value.
    """
    name, _, variant = spec.partition(":")
    if name not in PRESETS and name.removesuffix("_smoke") in PRESETS:
        name, variant = name.removesuffix("_smoke"), "smoke"
    path = pathlib.Path(name)
    if variant not in ("", "smoke") or (variant == "" and ":" in spec):
        raise UserError(f"expected NAME or NAME:smoke, got {spec!r}", setting="config")
    if name in PRESETS:
        config = override(TrainConfig(), PRESETS[name])
    elif path.suffix == ".toml":
        config = _read_toml(path)
    elif path.suffix == ".py" and python_files and path.is_file():
        config = _read_python(path)
    else:
        kinds = "the path of a TOML" + " or Python" * python_files + " file"
        raise UserError(
            f"expected one of {', '.join(sorted(PRESETS))}, or {kinds}, got {name!r}",
            setting="config",
        )
    config = override(config, changes or {})
    return override(config, smoke_changes(flatten(config))) if variant else config


def override(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """A copy of `config` with some settings changed, by dotted name.

    The value of a tuple may be a text with commas. UserError if there is no such setting, or the
    value has the wrong type.
    """
    changed = copy.deepcopy(config)
    for name, value in changes.items():
        require_name(name)
        write(changed, name, _converted(name, value))
    return changed


def from_flat(settings: Mapping[str, Any]) -> TrainConfig:
    """The config of settings by dotted name; those left out have their defaults."""
    return override(TrainConfig(), settings)


def require_name(name: str) -> None:
    """Raise UserError unless there is a setting of this dotted name."""
    known = declarations()
    if name in known:
        return
    section = [full for full in known if full.startswith(f"{name}.")]
    if section:
        hint = f"did you mean `{section[0]}`?"
    else:
        last = name.rpartition(".")[2]
        near = [full for full in known if full.rpartition(".")[2] == last]
        near = near or difflib.get_close_matches(name, known, 1)
        near = near or difflib.get_close_matches(last, {f.rpartition(".")[2] for f in known}, 1)
        hint = f"did you mean `{near[0]}`?" if near else "`qpr settings` lists them"
    raise UserError(f"there is no setting `{name}`; {hint}")


def parse_value(name: str, text: str) -> Any:
    """The value that a text of the command line gives the setting `name`: TOML, or a bare word."""
    require_name(name)
    _, kind = declarations()[name]
    if kind is str or typing.get_origin(kind) is tuple:
        return text
    try:
        return tomllib.loads(f"value = {text.lower() if kind is bool else text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _converted(name: str, value: Any) -> Any:
    """`value` in the type of the setting; UserError where it has another."""
    _, kind = declarations()[name]
    several = typing.get_origin(kind) is tuple
    element = typing.get_args(kind)[0] if several else kind
    elements = list(value) if several and isinstance(value, list | tuple) else [value]
    if several and isinstance(value, str):
        parts = [part.strip(" '\"") for part in value.strip("()[] ").split(",")]
        elements = [_number(part, element) for part in parts if part]
    elements = [_number(v, float) if element is float and type(v) is int else v for v in elements]
    if any(type(v) is not element for v in elements):
        what = "one or more of " * several + element.__name__
        raise UserError(
            f"expected {what}, as {read(TrainConfig(), name)!r}, got {value!r}", setting=name
        )
    return tuple(elements) if several else elements[0]


def _number(value: str | int, kind: type) -> Any:
    """The value as a number of `kind` where it is one; else as it is."""
    try:
        return value if kind is str else kind(value)
    except (ValueError, OverflowError):
        return value


def _read_toml(path: pathlib.Path) -> TrainConfig:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: expected a TOML file of settings, found none") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected TOML, got {error}", remedy="fix the file") from None
    except (RecursionError, MemoryError):
        what = f"{path}: expected TOML, got values nested too deeply"
        raise UserError(what, remedy="fix the file") from None
    return override(TrainConfig(), _flat(tables))


def _flat(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one dictionary of dotted names."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        full = prefix + name
        flat |= _flat(value, f"{full}.") if isinstance(value, dict) else {full: value}
    return flat


def _read_python(path: pathlib.Path) -> TrainConfig:
    get_config = runpy.run_path(str(path)).get("get_config")
    config = get_config() if get_config else None
    if not isinstance(config, TrainConfig):
        raise UserError(f"{path}: expected a function `get_config` that returns a `TrainConfig`")
    return config
