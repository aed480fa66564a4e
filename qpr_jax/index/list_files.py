"""The lists of a search in files, so that a million visits are not held in memory."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from qpr_jax.files import read_json, write_atomically, write_json
from qpr_jax.index.list_kernels import group_visits


@dataclasses.dataclass(frozen=True)
class Lists:
    """The lists of n vectors, which are numbered from 0; arrays are mapped from files.

    Attributes:
      home: int32 [n], the list of each vector.
      starts, visits: int64 [n + 1], int32 [V]: the further lists of each, ascending.
      guest_starts, guests: int64 [L + 1], int32 [V]: the visitors of each list, ascending.
      facts: how the lists were chosen, as JSON.
    """

    home: np.ndarray
    starts: np.ndarray
    visits: np.ndarray
    guest_starts: np.ndarray
    guests: np.ndarray
    facts: dict[str, Any]

    @property
    def count(self) -> int:
        """How many lists there are."""
        return len(self.guest_starts) - 1


def write_lists(
    path: pathlib.Path,
    parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]],
    count: int,
    facts: dict[str, Any],
) -> Lists:
    """Write lists as files whose names begin with `path`, the facts last.

    Args:
      parts: (home int32, number of visits int64, visits int32) of some vectors after others.
      count: of lists.
      facts: JSON, to which the greatest size and the mean of visits are added.
    """
    homes, counts = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)]
    with write_atomically(_file(path, "visits")) as file:
        for home, visited, visits in parts:
            homes.append(home)
            counts.append(visited)
            file.write(visits.tobytes())
    home, starts = np.concatenate(homes), np.cumsum(np.concatenate(counts))
    visits = _map(path, "visits", np.int32)
    guest_starts, guests = np.zeros(count + 1, np.int64), np.zeros(0, np.int32)
    if len(visits):
        guests = np.memmap(_file(path, "guests"), np.int32, "w+", shape=visits.shape)
    group_visits(starts, visits, guest_starts, np.asarray(guests))
    if isinstance(guests, np.memmap):
        guests.flush()
    for name, array in (("home", home), ("starts", starts), ("guest_starts", guest_starts)):
        with write_atomically(_file(path, name)) as file:
            file.write(array.tobytes())
    sizes = np.bincount(home, minlength=count)
    mean = len(visits) / max(1, len(home))
    facts = {"lists": count, "largest": int(sizes.max()), "visits": mean, **facts}
    write_json(path.with_suffix(".json"), facts)
    return read_lists(path)


def read_lists(path: pathlib.Path) -> Lists:
    """The lists that `write_lists` wrote."""
    arrays = {
        "home": np.int32, "starts": np.int64, "visits": np.int32, "guest_starts": np.int64,
        "guests": np.int32,
    }  # fmt: skip
    mapped = {name: _map(path, name, kind) for name, kind in arrays.items()}
    return Lists(**mapped, facts=read_json(path.with_suffix(".json")))


def has_lists(path: pathlib.Path) -> bool:
    """Whether all files are there."""
    return path.with_suffix(".json").exists()


def _file(path: pathlib.Path, name: str) -> pathlib.Path:
    return path.with_name(f"{path.name}-{name}.bin")


def _map(path: pathlib.Path, name: str, kind: type) -> np.ndarray:
    file = _file(path, name)
    if not file.exists() or not file.stat().st_size:  # an empty file cannot be mapped
        return np.zeros(0, kind)
    # Copied where it is written to, since the loops are compiled for arrays that can be.
    return np.asarray(np.memmap(file, kind, "c"))
