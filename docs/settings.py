"""Write docs/settings.md from the declarations of the settings.

    python docs/settings.py

A test holds that the page is what this prints.
"""

from __future__ import annotations

import pathlib
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from qpr_jax.old_names import OLD_NAMES
from qpr_jax.training.config import TrainConfig, declarations, read
from qpr_jax.training.declaration import Setting
from qpr_jax.training.losses_config import LOSS_NAMES, LOSSES
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.presets import PRESETS
from qpr_jax.training.sources import SOURCES

PAGE = pathlib.Path(__file__).with_name("settings.md")
# Choices that a registry has and the declaration has not.
CHOICES = {
    "data.source": tuple(SOURCES),
    "encoder.kind": tuple(MODEL_FAMILIES),
    "loss.names": LOSS_NAMES,
}
_HEAD = """# Settings

Written by `python docs/settings.py` from the declarations in `qpr_jax/training/config.py`.

The settings of a training stand in sections. `python -m experiments.main` takes each as a flag,
`qpr train` as `--set` or as a line of a TOML file; several values are separated by commas:

    python -m experiments.main --config=quora_best --config.encoder.filters=200
    qpr train runs/mine pairs.tsv --config quora_best --set encoder.filters=200
    qpr train runs/mine pairs.tsv --config mine.toml

```toml
batch_size = 1024

[encoder]
filters = 200
kernel_sizes = [1, 3, 5]
```

A flag goes before the config, and the config before the defaults below. An unknown name is refused
with the nearest one. A training warns of changed settings that it does not read. A run may be
resumed with another value of the settings marked `*`; with another value of any other setting it is
refused.
"""


def page() -> str:
    """The contents of docs/settings.md."""
    lines = [_HEAD, "## At the top, without a section", ""]
    section = ""
    for name, (setting, kind) in declarations().items():
        here = name.rpartition(".")[0]
        if here != section or lines[-1] == "":
            if here:
                about = type(read(TrainConfig(), here)).__doc__
                lines += [""] * (lines[-1] != "") + [f"## `{here}`", "", str(about), ""]
            lines += ["| setting | type | default | allowed | what it is |", "|---" * 5 + "|"]
            section = here
        lines.append(_row(name, setting, kind))
    lines += ["", *_losses(), "", *_presets(), "", *_old_names()]
    return "\n".join(lines) + "\n"


def _row(name: str, setting: Setting, kind: Any) -> str:
    several = typing.get_origin(kind) is tuple
    word = (typing.get_args(kind)[0] if several else kind).__name__
    cells = (
        f"`{name}`{'' if setting.result else ' `*`'}",
        f"{word}, several" if several else word,
        _value(read(TrainConfig(), name)),
        _allowed(setting, CHOICES.get(name, setting.choices)),
        setting.help,
    )
    return f"| {' | '.join(cells)} |"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`" if value else "none"
    return "empty" if value == "" else f"`{value}`"


def _allowed(setting: Setting, choices: Sequence[str]) -> str:
    bounds = (
        ("at least", setting.min),
        ("more than", setting.above),
        ("at most", setting.max),
        ("less than", setting.below),
    )
    texts = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
    if setting.unset is not None:
        texts.append(f"or {setting.unset:g}")
    return ", ".join([*(f"`{choice}`" for choice in choices), *texts])


def _losses() -> Iterable[str]:
    """Which loss reads which settings."""
    yield from ("## Which loss reads which setting", "")
    yield "Losses of pairs also read `loss.mask_own_cluster`, `batch.sampling` and"
    yield "`batch.hard_negatives`, which takes questions of `data.negatives` where that is set."
    yield from ("", "| loss | reads | settings |", "|---|---|---|")
    data = {"pairs": "pairs", "labeled": "labeled pairs"}
    for name in LOSS_NAMES:
        spec = LOSSES[name]
        names = ", ".join(f"`loss.{setting}`" for setting in spec.settings.values())
        yield f"| `{name}` | {data[spec.data]} | {names} |"


def _presets() -> Iterable[str]:
    """What each config changes."""
    yield from ("## Configs", "")
    yield from ("`NAME:smoke` is the config NAME at tiny shapes, of 12 steps.", "")
    yield from ("| config | changes |", "|---|---|")
    for name, changes in PRESETS.items():
        values = (
            f"`{key}={','.join(map(str, v)) if isinstance(v, tuple) else v}`"
            for key, v in changes.items()
        )
        yield f"| `{name}` | {', '.join(values) or 'none: the defaults'} |"


def _old_names() -> Iterable[str]:
    """The names that settings had in version 0.1."""
    yield from ("## Names of version 0.1", "")
    yield "Refused, with the present name; those that did not change are not listed."
    yield from ("", "| version 0.1 | now |", "|---|---|")
    for old, new in OLD_NAMES.items():
        if new in declarations():
            yield f"| {old} | `{new}` |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
