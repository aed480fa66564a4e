"""The settings of a training: what they are, and how names and files give them. Loads no JAX."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from qpr_jax.errors import UserError
from qpr_jax.training.presets import PRESETS, check_spec, flat_settings, read_tables

T = TypeVar("T")


def _split(value: Any) -> Any:
    """Several values from a text with commas; a single value becomes a tuple of one."""
    if isinstance(value, str):
        parts = (part.strip(" '\"") for part in value.strip("()[] ").split(","))
        return tuple(part for part in parts if part)
    return value if isinstance(value, list | tuple) else (value,)


Several = Annotated[tuple[T, ...], BeforeValidator(_split)]
# The result of a run does not depend on such a setting beyond rounding.
MAY_CHANGE = "may change on resume"
MayChange = Annotated[T, MAY_CHANGE]
# A file or a folder, wherever it lies; `~` and `$VARIABLE` are expanded.
Place = Annotated[
    str, AfterValidator(os.path.expandvars), AfterValidator(os.path.expanduser), MAY_CHANGE
]
# Types with a range.
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A section of settings. Unknown names and wrong values are refused, also on assignment."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)


def refuse_if(broken: object, name: str, what: str, remedy: str = "") -> None:
    """Raise UserError about the setting `name` if a rule is broken."""
    if broken:
        raise UserError(what, setting=name, remedy=remedy)


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the setting in a UserError that names none, or an argument such as `encoder`."""
    try:
        yield
    except UserError as error:
        if "." in error.setting:
            raise
        raise UserError(error.what, setting=name, remedy=error.remedy) from error


def setting(default: Any, description: str) -> Any:
    """A field with a default and a line of help."""
    return Field(default=default, description=description)


class DataConfig(Section):
    """The questions, their pairs, and how they are split."""

    source: str = setting("quora", "Kind of data.")
    path: Place = setting("", "File or folder; empty: found in $QPR_DATA_DIR or the web.")
    skip_bad_rows: bool = setting(False, "Count and skip malformed rows.")
    max_rows: Count = setting(0, "Rows to read of each file, or clusters to generate; 0: all.")
    held_out_pairs: Count = setting(
        0, "Most pairs of validation, and of test; 0: a tenth of all pairs, at most 5,000."
    )
    coherence: Literal["pairwise", "paper"] = setting("pairwise", "Filters clusters of logs.")
    unlabeled: Place = setting("", "Further questions for the teacher: file or folder.")
    recombined: Count = setting(0, "Further questions for the teacher, joined from training ones.")
    parallel: MayChange[Several[str]] = setting((), "Translations to learn, as `en-de:PATH`.")
    parallel_tests: MayChange[Several[str]] = setting((), "Translations to score, not to learn.")
    labels: Place = setting("", "Labeled pairs added to training, as of `qpr review`.")


class TextConfig(Section):
    """From a question to token ids."""

    vocabulary_size: Positive = setting(50_000, "Most frequent words of the training questions.")
    hash_bins: Positive = setting(5_000, "Embeddings that all other words share, by hash.")
    subwords: bool = setting(
        False,
        "Words that are unknown or occur once are sums of n-grams, and of what they misspell.",
    )
    max_tokens: Positive = setting(64, "Tokens of a question that are read.")


class EncoderConfig(Section):
    """The model."""

    pretrained: Place = setting(
        "", "Start from this run, folder or published encoder; empty: a CNN with random weights."
    )
    embedding_dim: Positive = setting(300, "Dimension of a token embedding.")
    kernel_sizes: Annotated[Several[Positive], Field(min_length=1)] = setting(
        (5,), "Widths of the convolution kernels, in tokens."
    )
    filters: Positive = setting(600, "Filters of each kernel size.")
    output_dim: Positive = setting(300, "Dimension of a question vector.")
    bag_of_words: bool = setting(False, "Also project the sum of the embeddings.")
    normalize: bool = setting(False, "Scale vectors to length 1, as losses of cosines need.")
    compute_dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "Data type of the encoder's matrix products; all else is float32."
    )
    stored_dtype: Literal["float32", "float16", "int8"] = setting(
        "float32",
        "Data type of the exported weights of a CNN. int8: of its embeddings; others are float16.",
    )


class LossConfig(Section):
    """What is minimized. The table of losses below shows which loss reads which setting."""

    names: Annotated[Several[str], Field(min_length=1)] = setting(
        ("sdml",), "One loss or more, whose sum is minimized."
    )
    scale: Above0 = setting(1.0, "Factor of the vectors before the loss.")
    distance: Literal["ssd", "euc"] = setting("ssd", "Squared or plain Euclidean distance.")
    smoothing: Annotated[float, Field(ge=0, le=1)] = setting(
        0.3, "Label smoothing: probability spread over all candidates."
    )
    symmetric: bool = setting(False, "Also score candidates against all queries.")
    mask_own_cluster: bool = setting(False, "Known paraphrases of a query are not negatives.")
    negatives: Literal["random", "hard", "hard_anchor"] = setting(
        "random",
        "Negatives of triplets: random, nearest to the positive (hard), or nearest to the anchor.",
    )
    margin: Above0 = setting(0.5, "Margin of the triplet and contrastive losses.")


class BatchConfig(Section):
    """Which pairs a batch holds, and how it is encoded."""

    sampling: Literal["pairs", "clusters"] = setting("pairs", "What is drawn equally often.")
    token_dropout: Share = setting(0.0, "Share of tokens that a step drops.")
    subword_dropout: Share = setting(0.0, "Share of known words that a step reads as n-grams.")
    encode_chunk: MayChange[Count] = setting(0, "Questions a device encodes at a time; 0: all.")


class OptimizerConfig(Section):
    """AdamW and its learning rate."""

    learning_rate: Above0 = setting(1e-3, "Rate, whatever the size of a batch.")
    learning_rate_decay: Literal["none", "linear", "late"] = setting(
        "none", "Constant, or linear to 0: from the first step, or over the last third (late)."
    )
    warmup_steps: Count = setting(0, "Steps over which the rate rises from 0.")
    weight_decay: Weight = setting(0.0, "Weight decay of all matrices but the embedding.")
    beta2: Share = setting(0.999, "Decay of the mean of squared gradients.")


class TeacherConfig(Section):
    """An encoder whose vectors the training learns."""

    model: Place = setting("", "A run, folder, minilm, or .npy file of all vectors.")
    epochs: Count = setting(9, "Epochs of distillation alone, over all questions.")
    weight: Weight = setting(0.0, "Weight of distillation beside the loss on pairs.")
    lists: Weight = setting(0.0, "Weight of the order that a pair model gives the teacher's hits.")
    words: bool = setting(False, "Also learn the words of the teacher's vocabulary, as texts.")


class EarlyStoppingConfig(Section):
    """When training ends, and which checkpoint is kept."""

    metric: Literal["roc_auc", "mrr", "agreement", "translation"] = setting(
        "mrr",
        "MRR of exact search, ROC AUC, agreement with the teacher, or accuracy of translations.",
    )
    patience: Positive = setting(3, "Stop after this many evaluations without a gain.")
    every_steps: Count = setting(
        0, "Steps between evaluations; 0: an epoch or, from `encoder.pretrained`, a tenth of all."
    )


class IndexSettings(Section):
    """The index of a finished run."""

    factory: str = setting(
        "auto", "FAISS factory string; auto: Flat to 20,000 questions, else product quantization."
    )


class RerankConfig(Section):
    """The pair model of a run, trained after the index."""

    candidates: Annotated[int, Field(ge=0, le=1000)] = setting(
        0, "Hits that are reordered; 0: none."
    )


class CrossEncoderConfig(Section):
    """A cross-encoder is trained instead of an encoder, if `first_stage` is set."""

    first_stage: Place = setting("", "Encoder that finds the hits.")


class TrainConfig(Section):
    """Every setting of a training; the defaults are the paper's experiment on the Quora pairs."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = setting(0, "Seed of the weights and the order.")
    batch_size: Count = setting(
        512,
        "Pairs of a batch, over all devices, of distillation alone at most 512 questions; 0: a "
        "power of two up to 256 and the number of training clusters.",
    )
    max_epochs: Count = setting(10, "Epochs over the pairs; 0: distillation alone.")
    max_steps: Count = setting(0, "Most steps on pairs (without: of distillation); 0: no limit.")
    precision: Literal["highest", "high", "default"] = setting(
        "highest", "JAX's precision of float32 matrix products; a CPU always computes in float32."
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
    index: IndexSettings = IndexSettings()
    rerank: RerankConfig = RerankConfig()
    cross_encoder: CrossEncoderConfig = CrossEncoderConfig()


@functools.cache
def declarations() -> dict[str, FieldInfo]:
    """Return the fields of all settings by dotted name, as `early_stopping.metric`."""
    found: dict[str, FieldInfo] = {}
    for name, field in TrainConfig.model_fields.items():
        if isinstance(field.default, Section):
            fields = type(field.default).model_fields
            found |= {f"{name}.{last}": inner for last, inner in fields.items()}
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
    check_spec(spec)
    name = spec.removesuffix(":smoke")
    is_preset = name in PRESETS
    settings = PRESETS[name] if is_preset else flat_settings(read_tables(pathlib.Path(name)))
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
