"""All settings of a training, in sections: types, defaults, ranges, help. Loads no JAX."""

from __future__ import annotations

import functools
import json
from typing import Annotated, Any, Literal, cast

from pydantic import Field
from pydantic.fields import FieldInfo

from qpr_jax.training.data_config import DataConfig, TextConfig
from qpr_jax.training.sections import MAY_CHANGE, MayChange, Section, Several


class EncoderConfig(Section):
    """The model."""

    kind: str = Field(default="cnn", description="Kind of model: a name in MODEL_FAMILIES.")
    pretrained: MayChange[str] = Field(
        default="", description="Start from this run, folder or published encoder."
    )
    embedding_dim: int = Field(default=300, ge=1, description="Dimension of a token embedding.")
    kernel_sizes: Several[Annotated[int, Field(ge=1)]] = Field(
        default=(5,), min_length=1, description="Widths of the convolution kernels, in tokens."
    )
    filters: int = Field(default=600, ge=1, description="Filters of each kernel size.")
    output_dim: int = Field(default=300, ge=1, description="Dimension of a question vector.")
    bag_of_words: bool = Field(default=False, description="Also project the sum of the embeddings.")
    normalize: bool = Field(default=False, description="Scale vectors to length 1.")
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="Data type of the encoder's matrix products; parameters, sums and the "
        "optimizer stay float32.",
    )
    stored_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="Data type of the exported weights of a CNN."
    )


class LossConfig(Section):
    """What is minimized. The table of losses below shows which loss reads which setting."""

    names: Several[str] = Field(
        default=("sdml",), min_length=1, description="One loss, or several."
    )
    weights: Several[Annotated[float, Field(gt=0)]] = Field(
        default=(), description="Weights of several losses; empty: 1 each."
    )
    scale: float = Field(default=1.0, gt=0, description="Factor of the vectors before the loss.")
    distance: Literal["ssd", "euc"] = Field(
        default="ssd", description="Squared (ssd) or plain (euc) Euclidean distance."
    )
    smoothing: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="Label smoothing: probability spread over all candidates.",
    )
    prior: Literal["uniform", "distance"] = Field(
        default="uniform", description="How SDML spreads the probability of `smoothing`."
    )
    symmetric: bool = Field(default=False, description="Also score candidates against all queries.")
    mask_own_cluster: bool = Field(
        default=False, description="Known paraphrases of a query in its batch are not negatives."
    )
    similarity_scale: float = Field(
        default=20.0, gt=0, description="Factor of the similarities of the ranking loss."
    )
    negatives: Literal["random", "hard", "hard_anchor"] = Field(
        default="random",
        description="Negatives of triplets: random, closest to the positive (hard), or closest to "
        "the anchor (hard_anchor).",
    )
    margin: float = Field(
        default=0.5, gt=0, description="Margin of the triplet and contrastive losses."
    )


class BatchConfig(Section):
    """Which pairs a batch holds, and how it is encoded."""

    sampling: Literal["pairs", "clusters"] = Field(
        default="pairs", description="Draw each pair, or each cluster, equally often."
    )
    translations: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the pairs that are sentences with translations.",
    )
    hard_negatives: int = Field(
        default=0,
        ge=0,
        description="Additional candidates: questions of `data.negatives`, or labeled as "
        "non-duplicates.",
    )
    token_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of tokens that a step drops."
    )
    subword_dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of known words that a step reads as their n-grams.",
    )
    encode_chunk: MayChange[int] = Field(
        default=0,
        ge=0,
        description="Questions that a device encodes at a time, to save memory; 0: all.",
    )


class OptimizerConfig(Section):
    """AdamW and its learning rate."""

    learning_rate: float = Field(default=1e-3, gt=0, description="Learning rate, for 512 pairs.")
    learning_rate_scaling: Literal["none", "sqrt", "linear"] = Field(
        default="none", description="Multiply by (batch_size / 512) to the power 0, 0.5 or 1."
    )
    learning_rate_decay: Literal["none", "linear", "late"] = Field(
        default="none",
        description="Constant, or linear to 0 at the last step: from the first step (linear) or "
        "over the last third (late).",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="Steps over which the rate rises from 0."
    )
    weight_decay: float = Field(
        default=0.0, ge=0, description="Weight decay of all matrices but the embedding."
    )


class TeacherConfig(Section):
    """An encoder whose vectors the training imitates."""

    model: MayChange[str] = Field(
        default="",
        description="A run, a folder of sentence-transformers, minilm, or a .npy file of the "
        "vectors of all questions; empty: no teacher.",
    )
    epochs: int = Field(
        default=9, ge=0, description="Epochs of imitation alone, over all questions."
    )
    batch_size: int = Field(
        default=512, ge=1, description="Questions of a batch of imitation alone."
    )
    learning_rate: float = Field(
        default=1e-3, gt=0, description="Learning rate of imitation alone."
    )
    weight: float = Field(
        default=0.0, ge=0, description="Weight of imitation beside the loss on pairs."
    )
    similarities: float = Field(
        default=0.0,
        ge=0,
        description="Weight of imitating similarities, relative to that of vectors.",
    )
    words: bool = Field(
        default=False, description="Also learn the words of the teacher's vocabulary, as texts."
    )


class EarlyStoppingConfig(Section):
    """When training ends, and which checkpoint is kept."""

    metric: Literal["roc_auc", "mrr", "agreement", "translation"] = Field(
        default="mrr",
        description="MRR of exact search, ROC AUC as in the paper, agreement with the teacher, or "
        "accuracy of translations.",
    )
    patience: int = Field(
        default=3, ge=1, description="Stop after this many evaluations without a gain."
    )
    every_steps: int = Field(default=0, ge=0, description="Steps between evaluations; 0: an epoch.")


class IndexConfig(Section):
    """The index of a finished run."""

    factory: str = Field(
        default="auto",
        description="FAISS index, such as `IVF2000,Flat`; auto: Flat below 20,000 questions, else "
        "product quantization.",
    )
    probes: int = Field(default=64, ge=1, description="Lists that a search reads.")


class RerankConfig(Section):
    """The re-ranker of a run, trained after the index."""

    candidates: int = Field(
        default=0, ge=0, le=1000, description="Hits that the re-ranker reorders; 0: no re-ranker."
    )
    cross_encoder: MayChange[str] = Field(
        default="", description="Folder of a cross-encoder whose score a second re-ranker reads."
    )


class CrossEncoderConfig(Section):
    """The pairs and the scores of `job=cross_encoder`."""

    first_stage: MayChange[str] = Field(
        default="minilm", description="Encoder that finds the hits: a run, a folder or a name."
    )


class TrainConfig(Section):
    """Every setting of a training; the defaults are the paper's experiment on the Quora pairs."""

    job: Literal["encoder", "cross_encoder"] = Field(
        default="encoder", description="What to train."
    )
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="Seed of the weights and of the order of the pairs."
    )
    batch_size: int = Field(default=512, ge=1, description="Pairs of a batch, over all devices.")
    max_epochs: int = Field(
        default=10, ge=0, description="Epochs over the pairs; 0: imitate the teacher alone."
    )
    max_steps: int = Field(
        default=0,
        ge=0,
        description="Most steps on pairs (without pairs: of imitation); 0: no limit.",
    )
    precision: Literal["highest", "high", "default"] = Field(
        default="highest",
        description="JAX's precision of float32 matrix products, in encoder and loss; a CPU always "
        "computes in float32.",
    )
    devices: MayChange[int] = Field(default=0, ge=0, description="Devices to use; 0: all.")
    distributed: MayChange[bool] = Field(
        default=False, description="Train together with other processes."
    )
    checkpoint_every: int = Field(default=200, ge=1, description="Steps between two checkpoints.")
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


def flatten(config: TrainConfig) -> dict[str, Any]:
    """All settings by dotted name, as `early_stopping.metric`."""
    return {name: read(config, name) for name in declarations()}


def read(config: TrainConfig, name: str) -> Any:
    """The value of a setting, by its dotted name."""
    return functools.reduce(getattr, name.split("."), cast(Any, config))


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


def imitates_itself(config: TrainConfig) -> bool:
    """Whether the teacher is the encoder that words are added to, since no other is given."""
    return bool(config.text.added_words and not config.teacher.model)


def trains(config: TrainConfig) -> bool:
    """Whether there are steps at all; a pretrained encoder can be indexed as it is."""
    return bool(config.max_epochs or has_teacher(config))
