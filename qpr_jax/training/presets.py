"""Presets: named changes of the default settings, read from presets.toml. Needs no extra."""

from __future__ import annotations

import pathlib
import tomllib
from typing import Any

from qpr_jax.errors import UserError, did_you_mean


def read_tables(path: pathlib.Path) -> dict[str, Any]:
    """Read a TOML file; UserError where it is missing or no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: expected a TOML file of settings, found none") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected TOML, got {error}", remedy="fix the file") from None


def flat_settings(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one dictionary of dotted names."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        full = prefix + name
        flat |= flat_settings(value, f"{full}.") if isinstance(value, dict) else {full: value}
    return flat


def _settings(name: str) -> dict[str, Any]:
    """Return the settings of a preset, after those of the preset that it starts from."""
    start = _settings(FACTS[name]["from"]) if "from" in FACTS[name] else {}
    return start | flat_settings(FACTS[name]["settings"])


# By name: `summary`, and where measured `hits_at_1` and `mrr` (test queries) and `minutes`.
FACTS = read_tables(pathlib.Path(__file__).with_name("presets.toml"))
PRESETS: dict[str, dict[str, Any]] = {name: _settings(name) for name in FACTS}


def check_spec(spec: str) -> None:
    """UserError unless `spec`, as of `config.load_config`, names a preset or a TOML file."""
    name = spec.removesuffix(":smoke")
    if name not in PRESETS and not name.endswith(".toml"):
        what = f"expected one of {', '.join(sorted(PRESETS))}, or the path of a TOML file"
        raise UserError(f"{what}, got {spec!r}{did_you_mean(name, PRESETS)}", setting="config")
