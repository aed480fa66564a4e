"""Write docs/settings.md from the declarations of the settings.

python docs/settings.py
"""

from __future__ import annotations

import builtins
import pathlib
import typing
from collections.abc import Iterable
from typing import Any

from pydantic.fields import FieldInfo

from qpr_jax.training.config import MAY_CHANGE, TrainConfig, declarations, flatten
from qpr_jax.training.objectives import LOSSES, reads, settings_of
from qpr_jax.training.presets import PRESETS
from qpr_jax.training.sources import SOURCES

PAGE = pathlib.Path(__file__).with_name("settings.md")
_HEAD = """# Settings

Written by `python docs/settings.py` from the declarations in `qpr_jax/training/config.py`.

The settings of a training stand in sections. `python -m experiments.main` takes each as a flag,
`qpr train` as `--set` or in [a TOML file](train.md#change-what-it-learns); several values are
separated by commas, in TOML in brackets:

<!-- not run: `qpr train` is run by the guide of training -->

```bash
python -m experiments.main --config=quora_best --config.encoder.filters=200
qpr train runs/mine pairs.tsv --config quora_best --set encoder.filters=200
```

A flag goes before the config, and the config before the defaults below. An unknown name is refused
with the nearest one. `qpr presets NAME --all` prints a file to start from. A run may be resumed
with another value of the settings marked `*`; with other values of other settings it is refused.
"""


def page() -> str:
    """The contents of docs/settings.md."""
    lines = [_HEAD, "## At the top, without a section", ""]
    section = ""
    for name, field in declarations().items():
        here = name.rpartition(".")[0]
        if here != section or lines[-1] == "":
            if here:
                lines += [""] * (lines[-1] != "") + [f"## `{here}`", "", _section_help(here), ""]
            lines += ["| setting | type | default | allowed | what it is |", "|---" * 5 + "|"]
            section = here
        lines.append(_row(name, field))
    lines += ["", *_losses(), "", *_presets()]
    return "\n".join(lines) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    cells = (
        f"`{name}`{' `*`' if MAY_CHANGE in field.metadata else ''}",
        _type(field.annotation),
        _value(flatten(TrainConfig())[name]),
        ", ".join([*(f"`{choice}`" for choice in _choices(name, field)), *_bounds(field)]),
        field.description or "",
    )
    return f"| {' | '.join(cells)} |"


def _section_help(section: str) -> str:
    return str(type(getattr(TrainConfig(), section)).__doc__)


def _type(kind: Any) -> str:
    """`int`, or `int, several`."""
    match typing.get_origin(kind):
        case builtins.tuple:
            return f"{_type(typing.get_args(kind)[0])}, several"
        case typing.Annotated:
            return _type(typing.get_args(kind)[0])
        case typing.Literal:
            return "str"
    return str(kind.__name__)


def _choices(name: str, field: FieldInfo) -> Iterable[str]:
    """The values of a setting that has a list of them."""
    registries = {
        "data.source": SOURCES,
        "loss.names": LOSSES,
    }
    if typing.get_origin(field.annotation) is typing.Literal:
        return typing.get_args(field.annotation)
    return registries.get(name, ())


def _bounds(field: FieldInfo) -> Iterable[str]:
    """`at least 0`, `less than 1`."""
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for rule in field.metadata:
        for key, word in words.items():
            if hasattr(rule, key):
                yield f"{word} {getattr(rule, key)}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`" if value else "none"
    return "empty" if value == "" else f"`{value}`"


def _losses() -> Iterable[str]:
    """Which loss reads which settings."""
    yield from ("## Which loss reads which setting", "")
    names = "`loss.symmetric`, `loss.mask_own_cluster` and `batch.sampling`"
    yield f"Losses of pairs also read {names}."
    yield from ("", "| loss | reads | settings |", "|---|---|---|")
    for name in LOSSES:
        names = ", ".join(f"`loss.{setting}`" for setting in settings_of(name))
        data = "labeled pairs" if reads(name, "labels") else "pairs"
        yield f"| `{name}` | {data} | {names} |"


def _presets() -> Iterable[str]:
    """What each config changes."""
    yield from ("## Configs", "")
    yield from ("`NAME:smoke` is the config NAME at tiny shapes, of 12 steps.", "")
    yield from ("| config | changes |", "|---|---|")
    for name, changes in PRESETS.items():
        values = (
            f"`{key}={','.join(map(str, v)) if isinstance(v, list) else v}`"
            for key, v in changes.items()
        )
        yield f"| `{name}` | {', '.join(values) or 'none: the defaults'} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
