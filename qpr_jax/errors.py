"""Errors that a user can fix."""

from __future__ import annotations

from qpr_jax.printable import printable


class UserError(ValueError):
    """A user's mistake, in one line: `setting`: what is wrong; the remedy.

    Programs print it without a traceback; any other exception is a bug.

    Example:
      >>> raise UserError(
      ...     f"expected at least one batch of {size} pairs, got {pairs}",
      ...     setting="batch_size",
      ...     remedy="lower it, or give more pairs",
      ... )

    Attributes:
      what: what was expected and what came.
      setting: the setting or option that is wrong, by its dotted name (`batch.encode_chunk`), or
        "".
      remedy: what to do, or "".
    """

    def __init__(self, what: str, *, setting: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.setting, self.remedy = what, setting, remedy

    def __str__(self) -> str:
        """The whole message."""
        start = f"`{self.setting}`: " if self.setting else ""
        end = f"; {self.remedy}" if self.remedy else ""
        return f"{start}{self.what}{end}"


class UnavailableError(UserError):
    """A server that does not answer now; the same call may succeed later."""


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came and the state is saved; `args[0]` is the signal's number."""


def format_error(error: BaseException) -> tuple[str, int] | None:
    """Return the line to print and the exit status of a user's error; None for a bug.

    Texts from files may be part of the line, so it is made printable.
    """
    match error:
        case UserError():
            return printable(f"error: {error}"), 1
        case KeyboardInterrupt():
            return "stopped", 130
        case OSError():
            return printable(f"error: {error}; run the command again once this is fixed"), 1
        case MemoryError():
            return "error: out of memory; give fewer rows at a time, or use a larger machine", 1
    return None
