"""Errors that a user can fix, and text that a terminal shows safely."""

from __future__ import annotations

import contextlib
import difflib
import json
import numbers
import re
import reprlib
import shlex
from collections.abc import Iterable, Iterator

# Control characters (escape codes, line ends), marks that reorder text, line separators, lone
# surrogates. Joiners stay: scripts and emoji need them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_REPR = reprlib.Repr()
_REPR.maxstring = 60


class UserError(ValueError):
    """A user's mistake, in one line: `setting`: what is wrong; the remedy.

    Programs print it without a traceback; any other exception is a bug.

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
        """Return the whole message."""
        start = f"`{self.setting}`: " if self.setting else ""
        end = f"; {self.remedy}" if self.remedy else ""
        return f"{start}{self.what}{end}"


def check_number(name: str, value: object, what: str, least: float, most: float) -> float:
    """Return an argument as a float; UserError unless it is a number within the limits.

    what: the kind of number that is expected, as the message says it.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not least <= float(value) <= most:  # type: ignore[arg-type]
        raise UserError(f"expected {what}, got {value!r:.80}", setting=name)
    return float(value)  # type: ignore[arg-type]


class UnavailableError(UserError):
    """A server that does not answer now; the same call may succeed later."""


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came and the state is saved; `args[0]` is the signal's number."""


def format_error(error: BaseException) -> tuple[str, int] | None:
    """Return the printable line and the exit status of a user's error; None for a bug."""
    match error:
        case UserError():
            return printable(f"error: {error}"), 1
        case KeyboardInterrupt():
            return "stopped", 130
        case OSError():
            what = re.sub(r"^\[Errno \d+\] ", "", str(error))
            return printable(f"error: {what}; run the command again once this is fixed"), 1
        case MemoryError():
            return "error: out of memory; give fewer rows at a time, or use a larger machine", 1
    return None


@contextlib.contextmanager
def needs(what: str, install: str, *, setting: str = "") -> Iterator[None]:
    """Context in which a package that is not installed is a UserError with the command for pip.

    Args:
      what: what needs them, as the message begins.
      install: what pip installs: an extra of the checkout, as `.[serve]`, or a package.
      setting: the setting or option that asks for them, or "".
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "qpr_jax":
            raise  # a bug
        got = "found none" if isinstance(error, ModuleNotFoundError) else f"got an error ({error})"
        place = " in a checkout" if install.startswith(".") else ""
        what = f"{what}: expected the package {package or '?'}, {got}"
        remedy = f"pip install {shlex.quote(install)}{place}"
        raise UserError(what, setting=setting, remedy=remedy) from None


def did_you_mean(name: str, names: Iterable[str], least: float = 0.6) -> str:
    """Return " (did you mean `NAME`?)" for the nearest of some names; "" where none is near.

    least: the similarity of a near name, up to 1.
    """
    by_key = {other.casefold(): other for other in names if other != name and other[:1] != "."}
    nearest = difflib.get_close_matches(name.casefold(), by_key, 1, least)
    return f" (did you mean `{by_key[nearest[0]]}`?)" if nearest else ""


def later_format(found: object, formats: Iterable[str]) -> str:
    """Return the remedy for what a later version wrote, as `qpr_jax index 2`; "" for others."""
    name, _, number = f"{found}".rpartition(" ")
    versions = [format.rpartition(" ")[2] for format in formats if format.startswith(f"{name} ")]
    if number.isdigit() and any(int(version) < int(number) for version in versions):
        return "a later version of qpr_jax wrote it: install that one, or make it again with this"
    return ""


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, as `1 query` or `2,000 queries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def printable(text: str) -> str:
    r"""Escape characters that a terminal would act on, such as `\x1b` and `\u202e`."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_json(value: object) -> str:
    """Return JSON on one line, in which `printable` has nothing to escape."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def short(value: object) -> str:
    """Shorten a value for a message."""
    try:
        return _REPR.repr(value)
    except ValueError:  # an integer with too many digits to print
        return f"a large {type(value).__name__}"


def shortened(text: str, length: int = 100) -> str:
    """Return `text` on one printable line of at most `length` characters."""
    line = printable(" ".join(text[: 10 * length].split()))
    return line if len(line) <= length else f"{line[: length - 1]}…"
