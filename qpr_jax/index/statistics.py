"""Provisional: the branch `light` replaces this file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Statistics:
    """How many questions have a word."""

    count: int = 0

    @classmethod
    def build(cls, texts: Iterable[str]) -> Statistics:
        """Of these texts."""
        made = cls()
        made.add([*texts])
        return made

    def add(self, texts: Sequence[str]) -> None:
        """Count texts."""
        self.count += len(texts)
