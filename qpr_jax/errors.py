"""Errors that a user can fix, and how each program spells a setting or option in them."""

from __future__ import annotations

import re
from collections.abc import Callable

# How a program writes a setting or an option: (name, value or None) -> text; "" for what it lacks.
Spelling = Callable[[str, str | None], str]

_ALTERNATIVE = re.compile(r", or |, ")
_MARKUP = re.compile(r"\{([a-z_.]+)(?:=([^{}]*))?\}")


class UserError(ValueError):
    """A user's mistake, in one line: what was expected, what came, and the remedy.

    Programs print it without a traceback; any other exception is a bug.

    Example:
      >>> raise UserError(
      ...     f"expected at least one batch of {size} pairs, got {pairs}",
      ...     setting="batch_size",
      ...     remedy="lower {batch_size}, or give more pairs",
      ... )

    Attributes:
      what: what was expected and what came; printed as it is.
      setting: the setting or option that is wrong, by its name (`batch.encode_chunk`), or "".
      remedy: what to do. `{name}` and `{name=value}` in it are settings or options, which each
        program spells its own way (`spell`). A literal; `ref` writes a value known only later. Of
        several ways, "do this, or that with {name}", a program that lacks an option leaves out its
        way.
    """

    def __init__(self, what: str, *, setting: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.setting, self.remedy = what, setting, remedy

    def line(self, spelling: Spelling) -> str:
        """The whole message, with settings and options as `spelling` writes them."""
        start = f"{_word(self.setting, None, spelling)}: " if self.setting else ""
        end = f"; {_spelled(_possible(self.remedy, spelling), spelling)}" if self.remedy else ""
        return f"{start}{self.what}{end}"

    def __str__(self) -> str:
        """The whole message, as a caller of the Python functions reads it."""
        return self.line(python_spelling)


class UnavailableError(UserError):
    """A server that does not answer now; the same call may succeed later."""


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came and the state is saved; `args[0]` is the signal's number."""


def ref(name: str, value: object) -> str:
    """The markup of a setting with a value that is known only when the error is raised."""
    return f"{{{name}={value}}}"


# Options that in Python are a value of an argument.
_ARGUMENTS = {"no_ids": "id_column=''", "no_payload": "payload=False"}


def python_spelling(name: str, value: str | None) -> str:
    """`name`, or `name=value`, in backquotes."""
    name = _ARGUMENTS.get(name, name)
    return f"`{name}`" if value is None else f"`{name}={value}`"


_program_spelling: Spelling = python_spelling


def set_spelling(spelling: Spelling) -> None:
    """Spell settings and options this way in all that this program prints."""
    global _program_spelling
    _program_spelling = spelling


def spell(text: str) -> str:
    """`text` with its `{name}` and `{name=value}` as this program spells them; for log lines."""
    return _spelled(text, _program_spelling)


def format_error(error: BaseException) -> tuple[str, int] | None:
    """The line to print and the exit status of an error that is no bug; None for a bug."""
    match error:
        case UserError():
            return f"error: {error.line(_program_spelling)}", 1
        case KeyboardInterrupt():
            return "stopped", 130
        case OSError():
            return f"error: {error}; run the command again once this is fixed", 1
    return None


def _spelled(text: str, spelling: Spelling) -> str:
    return _MARKUP.sub(lambda match: _word(match[1], match[2], spelling), text)


def _word(name: str, value: str | None, spelling: Spelling) -> str:
    return spelling(name, value) or python_spelling(name, value)


def _possible(remedy: str, spelling: Spelling) -> str:
    """The remedy without the ways whose options the program lacks, if any are left."""

    def is_possible(text: str) -> bool:
        return all(spelling(match[1], match[2]) for match in _MARKUP.finditer(text))

    if is_possible(remedy):
        return remedy
    left = [*filter(is_possible, _ALTERNATIVE.split(remedy))]
    start = ", ".join(left[:-1])
    return f"{start}, or {left[-1]}" if start else left[0] if left else remedy
