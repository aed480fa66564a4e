"""How names and files give the settings of a training, and what identifies a run. Loads no JAX."""

from __future__ import annotations

import difflib
import functools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from qpr_jax.errors import UserError, did_you_mean
from qpr_jax.training.presets import PRESETS, flat_settings, read_tables
from qpr_jax.training.sections import MAY_CHANGE, Section, TrainConfig


@functools.cache
def declarations() -> dict[str, FieldInfo]:
    """Return the fields of all settings by dotted name, as `early_stopping.metric`."""
    found: dict[str, FieldInfo] = {}
    for name, field in TrainConfig.model_fields.items():
        if isinstance(field.default, Section):
            fields = type(field.default).model_fields
            found |= {f"{name}.{own}": own_field for own, own_field in fields.items()}
        else:
            found[name] = field
    return found


def flatten(config: TrainConfig) -> dict[str, Any]:
    """Return all settings by dotted name, as `early_stopping.metric`."""
    return flat_settings(config.model_dump())


def fingerprint(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that the result of a run depends on, flat, as JSON gives them back."""
    fields, values = declarations(), flat_settings(config.model_dump(mode="json"))
    return {name: values[name] for name in fields if MAY_CHANGE not in fields[name].metadata}


def gives_vectors(config: TrainConfig) -> bool:
    """Return whether `teacher.model` is a file of a teacher's vectors."""
    return config.teacher.model.endswith(".npy")


def trains(config: TrainConfig) -> bool:
    """Return whether there are steps at all; a pretrained encoder can be indexed as it is."""
    return bool(config.max_epochs or config.teacher.model)


_SMOKE: dict[str, Any] = {
    "data.held_out_pairs": 200,
    "text.vocabulary_size": 1000,
    "text.hash_bins": 50,
    "encoder.embedding_dim": 16,
    "encoder.filters": 24,
    "encoder.output_dim": 16,
    "batch_size": 32,
    "max_steps": 12,
    "early_stopping.every_steps": 5,
    "checkpoint_every": 3,
}
_SMOKE_LIMITS = {"data.recombined": 500, "optimizer.warmup_steps": 2}


def load_config(spec: str, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Return the config that `spec` names, with some settings changed, by dotted name.

    `spec` is the NAME of a preset, PATH.toml, or one of them with `:smoke`, which shrinks it to
    tiny shapes, few rows and 12 steps.

    Raises:
      UserError: there is no such preset, file or setting, or a value is wrong.
    """
    name = spec.removesuffix(":smoke")
    if name in PRESETS:
        settings = PRESETS[name]
    elif name.endswith(".toml"):
        settings = flat_settings(read_tables(pathlib.Path(name)))
    else:
        what = f"expected one of {', '.join(sorted(PRESETS))}, or the path of a TOML file"
        raise UserError(f"{what}, got {spec!r}{did_you_mean(name, PRESETS)}", setting="config")
    config = override(TrainConfig(), {**settings, **(changes or {})})
    if name == spec:
        return config
    rows = 300 if config.data.source == "synthetic" else 3000
    values = flatten(config)
    limits = {name: min(values[name], most) for name, most in _SMOKE_LIMITS.items()}
    return override(config, {**_SMOKE, "data.max_rows": rows, **limits})


def override(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Return a copy of `config` with some settings changed, by dotted name.

    A value may be a text, as in `{"loss.names": "sdml,triplet"}`. UserError where there is no such
    setting or its value is wrong.
    """
    values = config.model_dump()
    for name, value in changes.items():
        if name not in declarations():
            raise UserError(f"there is no setting `{name}`", remedy=_nearest(name))
        section, _, last = name.rpartition(".")
        (values[section] if section else values)[last] = value
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
    name = ".".join(part for part in first["loc"] if isinstance(part, str))
    rule = re.sub(r"^\w+ should ", "must ", first["msg"])
    rule = re.sub(r"(, unable| after validation|, got a number).*", "", rule)
    raise UserError(f"{rule}, got {first['input']!r:.80}", setting=name)


def _nearest(name: str) -> str:
    """Return the remedy for an unknown setting."""
    names = declarations()
    last = name.rpartition(".")[2]
    near = [full for full in names if full.startswith(f"{name}.") or full.endswith(f".{last}")]
    near = near or difflib.get_close_matches(name, names, 1)
    return f"did you mean `{near[0]}`?" if near else "docs/settings.md lists all settings"
