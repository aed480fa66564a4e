"""Amounts as people read them: times, sizes, rates."""

from __future__ import annotations

_GB, _MB = 10**9, 10**6


def duration(seconds: float) -> str:
    """As `0.1 s` (the least), `4.2 s`, `40 s`, `2 min 51 s`, `3 h 20 min`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.1):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Bytes as `1.2 GB`, `40 MB` or `3 KB`."""
    if count >= 0.95 * _GB:
        return f"{count / _GB:.1f} GB"
    return f"{count / _MB:.0f} MB" if count >= _MB else f"{count / 1000:.0f} KB"


def rounded(rate: float) -> str:
    """A rate with two figures, as `16,000`."""
    if rate < 10:
        return f"{rate:.1f}"
    digits = len(str(int(rate))) - 2
    return f"{round(rate, -digits):,.0f}"
