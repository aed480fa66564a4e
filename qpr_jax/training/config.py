"""The settings of a training: how they fit each other, and how names and files give them.

The sections are in `sections`. Loads no JAX.
"""

from __future__ import annotations

import difflib
import functools
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from qpr_jax.errors import UserError
from qpr_jax.index.recipe import Recipe, check_recipe
from qpr_jax.training.presets import PRESETS, flat_settings, read_tables
from qpr_jax.training.sections import (
    MAY_CHANGE,
    BatchConfig,
    Count,
    CrossEncoderConfig,
    DataConfig,
    EarlyStoppingConfig,
    EncoderConfig,
    IndexConfig,
    LossConfig,
    MayChange,
    OptimizerConfig,
    Positive,
    RerankConfig,
    Section,
    TeacherConfig,
    TextConfig,
    refuse_if,
    setting,
)


class TrainConfig(Section):
    """Every setting of a training; the defaults are the paper's experiment on the Quora pairs.

    Settings may be assigned one by one; whether they fit each other is checked when a config is
    made, and again when a training begins.
    """

    model_config = ConfigDict(validate_assignment=False)

    job: Literal["encoder", "cross_encoder"] = setting("encoder", "What to train.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = setting(
        0, "Seed of the weights and of the order of the pairs."
    )
    batch_size: Positive = setting(512, "Pairs of a batch, over all devices.")
    max_epochs: Count = setting(10, "Epochs over the pairs; 0: imitate the teacher alone.")
    max_steps: Count = setting(0, "Most steps on pairs (without pairs: of imitation); 0: no limit.")
    precision: Literal["highest", "high", "default"] = setting(
        "highest",
        "JAX's precision of float32 matrix products, in encoder and loss; a CPU always computes in "
        "float32.",
    )
    devices: MayChange[Count] = setting(0, "Devices to use; 0: all.")
    distributed: MayChange[bool] = setting(False, "Train together with other processes.")
    checkpoint_every: Positive = setting(200, "Steps between two checkpoints.")
    data: DataConfig = DataConfig()
    text: TextConfig = TextConfig()
    encoder: EncoderConfig = EncoderConfig()
    loss: LossConfig = LossConfig()
    batch: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    teacher: TeacherConfig = TeacherConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    index: IndexConfig = IndexConfig()
    rerank: RerankConfig = RerankConfig()
    cross_encoder: CrossEncoderConfig = CrossEncoderConfig()

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        names, weights = self.loss.names, self.loss.weights
        refuse_if(
            weights and len(weights) != len(names),
            "loss.weights",
            f"must be empty or a number for each of {','.join(names)}, got {weights}",
        )
        refuse_if(
            self.distributed and self.devices,
            "devices",
            f"must be 0 where several processes train: each uses all it sees, got {self.devices}",
        )
        if not self.encoder.pretrained:  # else the dimension is known when the folder is read
            recipe = Recipe(self.index.factory, probes=self.index.probes)
            check_recipe(recipe, self.encoder.output_dim)
        if self.job == "cross_encoder":
            refuse_if(
                self.encoder.kind != "bert",
                "encoder.kind",
                f"must be bert for a cross-encoder, got {self.encoder.kind!r}",
                "set `encoder.kind=bert` and `encoder.pretrained`",
            )
            refuse_if(
                self.distributed,
                "distributed",
                "must be false: a cross-encoder trains in one process",
            )
        return self

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        metric, taught = self.early_stopping.metric, has_teacher(self)
        refuse_if(
            self.teacher.words and gives_vectors(self),
            "teacher.words",
            "must be false: the teacher is a file of vectors, not an encoder",
        )
        refuse_if(
            taught and not self.max_epochs and not self.teacher.epochs,
            "teacher.epochs",
            "there is nothing to train: it and `max_epochs` are 0",
            "set one of them",
        )
        refuse_if(
            metric == "agreement" and not taught,
            "early_stopping.metric",
            "cannot be agreement: there is no teacher",
            "set `teacher.model`",
        )
        return self

    @model_validator(mode="after")
    def _check_translations(self) -> Self:
        if self.data.parallel:
            refuse_if(
                self.job == "encoder" and not has_teacher(self),
                "data.parallel",
                "must be empty: translations learn the vectors of a teacher, and there is none",
                "set `teacher.model`, or leave out `data.parallel`",
            )
        else:
            for name, given in (
                ("text.added_words", self.text.added_words),
                ("batch.translations", self.batch.translations),
                ("early_stopping.metric", self.early_stopping.metric == "translation"),
            ):
                refuse_if(given, name, "needs translations, got none", "set `data.parallel`")
        if self.text.added_words:
            kind, start = self.encoder.kind, self.encoder.pretrained
            refuse_if(
                kind != "cnn" or not start,
                "text.added_words",
                f"only a pretrained cnn gets words, got kind {kind!r} and {start or 'none'}",
                "set `encoder.pretrained` to its run, or `text.added_words=0`",
            )
            refuse_if(
                self.max_epochs,
                "max_epochs",
                f"must be 0 where words are added: few pairs have them, got {self.max_epochs}",
            )
        return self


@functools.cache
def declarations() -> dict[str, FieldInfo]:
    """The fields of all settings by dotted name, as `early_stopping.metric`."""
    found: dict[str, FieldInfo] = {}
    for name, field in TrainConfig.model_fields.items():
        if isinstance(field.default, Section):
            fields = type(field.default).model_fields
            found |= {f"{name}.{own}": own_field for own, own_field in fields.items()}
        else:
            found[name] = field
    return found


def read(config: TrainConfig, name: str) -> Any:
    """The value of a setting, by its dotted name."""
    return functools.reduce(getattr, name.split("."), cast(Any, config))


def flatten(config: TrainConfig) -> dict[str, Any]:
    """All settings by dotted name, as `early_stopping.metric`."""
    return {name: read(config, name) for name in declarations()}


def identity(config: TrainConfig) -> dict[str, Any]:
    """The settings that the result of a run depends on, flat, as JSON gives them back."""
    fields = declarations()
    kept = {n: v for n, v in flatten(config).items() if MAY_CHANGE not in fields[n].metadata}
    return dict(json.loads(json.dumps(kept)))


def weighted_losses(config: TrainConfig) -> dict[str, float]:
    """The losses in their order, with their weights."""
    weights = config.loss.weights or (1.0,) * len(config.loss.names)
    return dict(zip(config.loss.names, weights, strict=True))


def has_teacher(config: TrainConfig) -> bool:
    """Whether there are vectors to imitate; an encoder that is extended can imitate its own."""
    return bool(config.teacher.model or config.text.added_words)


def gives_vectors(config: TrainConfig) -> bool:
    """Whether `teacher.model` is a file of a teacher's vectors."""
    return config.teacher.model.endswith(".npy")


def imitates_itself(config: TrainConfig) -> bool:
    """Whether the teacher is the encoder that words are added to, since no other is given."""
    return bool(config.text.added_words and not config.teacher.model)


def trains(config: TrainConfig) -> bool:
    """Whether there are steps at all; a pretrained encoder can be indexed as it is."""
    return bool(config.max_epochs or has_teacher(config))


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
_SMOKE_LIMITS = {"data.spliced": 500, "optimizer.warmup_steps": 2, "text.added_words": 500}


def load_config(spec: str, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """The config that `spec` names, with some settings changed, by dotted name.

    `spec` is the NAME of a preset, PATH.toml, or one of them with `:smoke`, which shrinks it to
    tiny shapes, few rows and 12 steps; NAME_smoke is read as NAME:smoke.

    Raises:
      UserError: there is no such preset, file or setting, or a value is wrong.
    """
    name, colon, variant = spec.partition(":")
    if name not in PRESETS and name.removesuffix("_smoke") in PRESETS:
        name, colon, variant = name.removesuffix("_smoke"), ":", "smoke"
    if colon and variant != "smoke":
        raise UserError(f"expected NAME or NAME:smoke, got {spec!r}", setting="config")
    if name in PRESETS:
        settings = PRESETS[name]
    elif name.endswith(".toml"):
        settings = flat_settings(read_tables(pathlib.Path(name)))
    else:
        presets = ", ".join(sorted(PRESETS))
        raise UserError(
            f"expected one of {presets}, or the path of a TOML file, got {name!r}",
            setting="config",
        )
    config = override(TrainConfig(), {**settings, **(changes or {})})
    if not variant:
        return config
    rows = 300 if config.data.source == "synthetic" else 3000
    limits = {name: min(read(config, name), most) for name, most in _SMOKE_LIMITS.items()}
    return override(config, {**_SMOKE, "data.max_rows": rows, **limits})


def override(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """A copy of `config` with some settings changed, by dotted name, and all of them checked.

    A value may be a text, as in `{"loss.weights": "1,0.5"}`.

    Raises:
      UserError: there is no such setting, its value is wrong, or settings do not fit each other.
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
    if isinstance(known := first.get("ctx", {}).get("error"), UserError):
        raise known
    name = ".".join(part for part in first["loc"] if isinstance(part, str))
    rule = re.sub(r"^\w+ should ", "must ", first["msg"])
    rule = re.sub(r"(, unable| after validation|, got a number).*", "", rule)
    raise UserError(f"{rule}, got {first['input']!r:.80}", setting=name)


def _nearest(name: str) -> str:
    """The remedy for an unknown setting."""
    known = declarations()
    last = name.rpartition(".")[2]
    near = [full for full in known if full.startswith(f"{name}.")]
    near = near or [full for full in known if full.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(name, known, 1)
    near = near or difflib.get_close_matches(last, {f.rpartition(".")[2] for f in known}, 1)
    return f"did you mean `{near[0]}`?" if near else "docs/settings.md lists all settings"
