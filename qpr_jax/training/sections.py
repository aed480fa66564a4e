"""What sections of settings share: the base class, and the types of their fields. Loads no JAX."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

T = TypeVar("T")


class Section(BaseModel):
    """A section of settings. Unknown names and wrong values are refused, also on assignment."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)


def _split(value: Any) -> Any:
    """Several values from a text with commas; a single value becomes a tuple of one."""
    if isinstance(value, str):
        parts = (part.strip(" '\"") for part in value.strip("()[] ").split(","))
        return tuple(part for part in parts if part)
    return value if isinstance(value, list | tuple) else (value,)


Several = Annotated[tuple[T, ...], BeforeValidator(_split)]

MAY_CHANGE = "may change on resume"
# The result of a run does not depend on such a setting beyond rounding.
MayChange = Annotated[T, MAY_CHANGE]
