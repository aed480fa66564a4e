"""From names, files and flags to a `TrainConfig`."""

from __future__ import annotations

import difflib
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig, declarations, flatten
from qpr_jax.training.presets import PRESETS, smoke_changes


def load_config(spec: str, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """The config that `spec` names: NAME of a preset, PATH.toml, or one of them with `:smoke`.

    `:smoke` shrinks it to tiny shapes, few rows and 12 steps; NAME_smoke is read as NAME:smoke.

    Raises:
      UserError: there is no such preset, file or setting, or a value is wrong.
    """
    name, _, variant = spec.partition(":")
    if name not in PRESETS and name.removesuffix("_smoke") in PRESETS:
        name, variant = name.removesuffix("_smoke"), "smoke"
    path = pathlib.Path(name)
    if variant not in ("", "smoke") or (variant == "" and ":" in spec):
        raise UserError(f"expected NAME or NAME:smoke, got {spec!r}", setting="config")
    if name in PRESETS:
        config = from_flat(PRESETS[name])
    elif path.suffix == ".toml":
        config = from_flat(_read_toml(path))
    else:
        presets = ", ".join(sorted(PRESETS))
        raise UserError(
            f"expected one of {presets}, or the path of a TOML file, got {name!r}",
            setting="config",
        )
    config = override(config, changes or {})
    return override(config, smoke_changes(flatten(config))) if variant else config


def override(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """A copy of `config` with some settings changed, by dotted name.

    A value may be a text, as in `{"loss.weights": "1,0.5"}`.

    Raises:
      UserError: there is no such setting, or its value is wrong.
    """
    values = config.model_dump()
    for name, value in changes.items():
        require_name(name)
        section, _, last = name.rpartition(".")
        (values[section] if section else values)[last] = value
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise _user_error(error) from None


def from_flat(settings: Mapping[str, Any]) -> TrainConfig:
    """The config of settings by dotted name; those left out have their defaults."""
    return override(TrainConfig(), settings)


def require_name(name: str) -> None:
    """Raise UserError unless there is a setting of this dotted name."""
    known = declarations()
    if name in known:
        return
    section = [full for full in known if full.startswith(f"{name}.")]
    last = name.rpartition(".")[2]
    near = section or [full for full in known if full.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(name, known, 1)
    near = near or difflib.get_close_matches(last, {f.rpartition(".")[2] for f in known}, 1)
    remedy = f"did you mean `{near[0]}`?" if near else "docs/settings.md lists all settings"
    raise UserError(f"there is no setting `{name}`", remedy=remedy)


def _user_error(error: ValidationError) -> UserError:
    """The first of pydantic's errors: the setting, what it must be, and what it is."""
    first = error.errors()[0]
    name = ".".join(part for part in first["loc"] if isinstance(part, str))
    rule = re.sub(r"^\w+ should ", "must ", first["msg"])
    rule = re.sub(r"(, unable| after validation|, got a number).*", "", rule)
    return UserError(f"{rule}, got {first['input']!r:.80}", setting=name)


def _read_toml(path: pathlib.Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: expected a TOML file of settings, found none") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected TOML, got {error}", remedy="fix the file") from None
    except (RecursionError, MemoryError):
        what = f"{path}: expected TOML, got values nested too deeply"
        raise UserError(what, remedy="fix the file") from None
    return _flat(tables)


def _flat(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one dictionary of dotted names."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        full = prefix + name
        flat |= _flat(value, f"{full}.") if isinstance(value, dict) else {full: value}
    return flat
