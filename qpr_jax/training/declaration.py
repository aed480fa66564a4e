"""The declaration of a setting: help, range, choices. Loads no JAX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting.

    min, max: the range, both included. above, below: the same, excluded. choices: the values
    allowed, if they are few. unset: a value outside the range that means none. result: whether
    the result of a run depends on it beyond rounding.
    """

    help: str
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    unset: float | None = None
    result: bool = True


def setting(default: Any, help: str, **limits: Any) -> Any:
    """Declare a field of a section; `limits` as in `Setting`."""
    return field(default=default, metadata={"setting": Setting(help, **limits)})
