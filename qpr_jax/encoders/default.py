"""The encoder of a call that names none: an accurate one, or for many rows a fast one."""

from __future__ import annotations

import itertools
import logging
import pathlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

from qpr_jax.encoders.load import MINILM, PACKAGED, STUDENT, load_encoder
from qpr_jax.progress import duration

log = logging.getLogger("qpr_jax")

MOST_ROWS = 50_000  # that `minilm` encodes by default; it takes about a minute
_TIMED = 128  # texts that tell how fast it is here


def default_folder(texts: Sequence[object], count: int | None = None) -> pathlib.Path:
    """The folder of `minilm` for up to 50,000 texts, else of `open_student`; a line says so.

    Args:
      texts: all of them, or at least the first 50,001.
      count: how many there are; None: not known.
    """
    if len(texts) <= MOST_ROWS:
        text = "encoder: %s; `--encoder %s` is about 20 times as fast, and less accurate"
        log.info(text, MINILM, STUDENT)
        return PACKAGED[MINILM]
    some = texts[:: max(1, len(texts) // _TIMED)]
    sample = [text for text in some if isinstance(text, str)]
    encoder = load_encoder(PACKAGED[MINILM])
    encoder.encode(sample[:1])  # loads the model
    start = time.monotonic()
    encoder.encode(sample)
    seconds = (time.monotonic() - start) / max(1, len(sample)) * (count or MOST_ROWS)
    rows, each = f"{MOST_ROWS:,}", "" if count else f" for {MOST_ROWS:,} rows"
    text = "encoder: %s, since there are more than %s rows; `--encoder %s` is more accurate, and "
    text += "takes about %s%s"
    log.info(text, STUDENT, rows, MINILM, duration(seconds), each)
    return PACKAGED[STUDENT]


def default_encoder(
    entries: Iterable[tuple[int, Any, str, Any]],
) -> tuple[pathlib.Path, Iterable[tuple[int, Any, str, Any]]]:
    """Return the folder of the encoder for entries, (line, id, text, payload), and the entries."""
    rest = iter(entries)
    first = [*itertools.islice(rest, MOST_ROWS + 1)]
    return default_folder([entry[2] for entry in first]), itertools.chain(first, rest)
