"""All settings of a training, in sections: types, defaults, ranges, help. Loads no JAX."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import typing
from dataclasses import dataclass, field
from typing import Any

from qpr_jax.precision import PRECISIONS
from qpr_jax.training.data_config import DataConfig
from qpr_jax.training.declaration import Setting, setting
from qpr_jax.training.machine_config import DistributedConfig, TuningConfig
from qpr_jax.training.second_stage_config import CrossEncoderConfig, RerankConfig


@dataclass(slots=True, kw_only=True)
class TextConfig:
    """From a question to token ids."""

    vocabulary_size: int = setting(50_000, "most frequent words of the training questions", min=1)
    min_count: int = setting(
        1, "minimum count of a word in the training questions to enter the vocabulary", min=1
    )
    hash_bins: int = setting(5_000, "embeddings that all other words share, by hash", min=1)
    char_ngrams: int = setting(0, "split unknown words into n-grams of this length; 0: no", min=0)
    subwords: bool = setting(
        False, "an unknown word is the sum of its 3- to 5-grams, which share `hash_bins`"
    )
    max_tokens: int = setting(64, "tokens of a question that are read", min=1)
    added_words: int = setting(
        0,
        "most frequent words of `data.parallel` that get a row in `encoder.pretrained`, of which "
        "all else stays as it is; 0: train all",
        min=0,
    )


@dataclass(slots=True, kw_only=True)
class EncoderConfig:
    """The model."""

    kind: str = setting("cnn", "kind of model, as of `training/model_families.py`")
    pretrained: str = setting(
        "", "what training starts from: a run, a folder, or minilm", result=False
    )
    embedding_dim: int = setting(300, "dimension of a token's embedding", min=1)
    kernel_sizes: tuple[int, ...] = setting(
        (5,), "widths of the convolution kernels, in tokens; each has `filters` filters", min=1
    )
    filters: int = setting(600, "filters of each kernel size; the paper does not say", min=1)
    output_dim: int = setting(300, "dimension of a question's vector", min=1)
    bag_of_words: bool = setting(False, "the projection also reads the sum of the embeddings")
    normalize: bool = setting(False, "vectors have length 1")
    compute_dtype: str = setting(
        "float32",
        "data type of the encoder's matrix products and of their gradients'; sums, parameters and "
        "the optimizer stay float32",
        choices=("float32", "bfloat16"),
    )
    stored_dtype: str = setting(
        "float32",
        "data type that the trained weights of a CNN are rounded to and stored in",
        choices=("float32", "float16"),
    )
    precision: str = setting(
        "highest",
        "rounding of the encoder's float32 products, in training and, of a transformer, after it "
        "(a CNN encodes in NumPy, in full float32); `highest` where the platform lacks it",
        choices=PRECISIONS,
    )


@dataclass(slots=True, kw_only=True)
class LossConfig:
    """What is minimized. Which loss reads which setting: `training/losses_config.py`."""

    names: tuple[str, ...] = setting(("sdml",), "one loss or several")
    weights: tuple[float, ...] = setting((), "weights of several losses; none: 1 each", above=0)
    alternate: bool = setting(
        False,
        "with several losses: alternate between them step by step (otherwise minimize their "
        "weighted sum)",
    )
    scale: float = setting(1.0, "multiply vectors by this before the loss", above=0)
    distance: str = setting(
        "ssd", "sum of squared differences, or its root", choices=("ssd", "euc")
    )
    smoothing: float = setting(
        0.3, "label smoothing: probability spread over all candidates", min=0, max=1
    )
    prior: str = setting(
        "uniform",
        "how SDML spreads the probability of `smoothing`",
        choices=("uniform", "distance"),
    )
    temperature: float = setting(1.0, "temperature of the distance prior", above=0)
    symmetric: bool = setting(False, "candidates are also scored against all queries")
    mask_own_cluster: bool = setting(
        False, "known paraphrases of a query in its batch are not its negatives"
    )
    implementation: str = setting(
        "auto",
        "SDML and ranking by XLA or by fused kernels, not yet run on a GPU; auto: xla",
        choices=("auto", "xla", "pallas"),
        result=False,
    )
    similarity: str = setting(
        "cosine", "similarity measure of the ranking loss", choices=("cosine", "dot")
    )
    similarity_scale: float = setting(
        20.0, "factor of the similarities; 1 is usual for dot products", above=0
    )
    negatives: str = setting(
        "random",
        "negatives of triplets: random, closest to the positive, or closest to the anchor",
        choices=("random", "hard", "hard_anchor"),
    )
    margin: float = setting(0.5, "margin of the triplet and contrastive losses", above=0)
    precision: str = setting(
        "highest",
        "rounding of the products that distances and similarities are computed from; `highest` "
        "where the platform lacks it",
        choices=PRECISIONS,
    )
    pair_distance: str = setting(
        "cosine", "distance of the contrastive losses", choices=("cosine", "euclidean")
    )


@dataclass(slots=True, kw_only=True)
class BatchConfig:
    """Which pairs a batch holds, and how it is encoded."""

    sampling: str = setting(
        "pairs", "each pair, or each cluster, equally often", choices=("pairs", "clusters")
    )
    translations: float = setting(
        0.0, "share of the pairs that are sentences with translations", min=0, below=1
    )
    hard_negatives: int = setting(
        0, "candidates more: questions of `data.negatives`, or labeled as non-duplicates", min=0
    )
    token_dropout: float = setting(0.0, "share of the tokens that a step omits", min=0, below=1)
    subword_dropout: float = setting(
        0.0, "share of the known words that a step reads as their n-grams", min=0, below=1
    )
    encode_chunk: int = setting(
        0, "questions encoded at a time by a device, to save memory; 0: all", min=0, result=False
    )


@dataclass(slots=True, kw_only=True)
class OptimizerConfig:
    """Adam and its learning rate."""

    learning_rate: float = setting(1e-3, "learning rate of Adam, for 512 pairs", above=0)
    learning_rate_scaling: str = setting(
        "none",
        "multiply by (batch_size / 512) to the power 0, 0.5 or 1",
        choices=("none", "sqrt", "linear"),
    )
    learning_rate_decay: str = setting(
        "none",
        "constant, or linear to 0 at the last step allowed, from the first or for the last third",
        choices=("none", "linear", "late"),
    )
    warmup_steps: int = setting(0, "steps over which the rate rises from 0", min=0)
    weight_decay: float = setting(
        0.0, "weight decay of AdamW, for matrices other than the embedding", min=0
    )
    ema_steps: int = setting(
        0, "score and keep the weights averaged over about this many steps; 0: the last", min=0
    )


@dataclass(slots=True, kw_only=True)
class TeacherConfig:
    """An encoder whose vectors are imitated."""

    model: str = setting(
        "", "a run, a folder of sentence-transformers, or minilm; empty: none", result=False
    )
    vectors: str = setting(
        "",
        "instead of a model: a .npy file of its vectors, one row a question, in their order",
        result=False,
    )
    cache: str = setting(
        "", "folder of its vectors; empty: in $XDG_CACHE_HOME or ~/.cache", result=False
    )
    epochs: int = setting(9, "epochs of imitation alone, over all training questions", min=0)
    min_steps: int = setting(0, "steps of imitation alone, at least", min=0)
    batch_size: int = setting(512, "questions of a batch in the imitation stage", min=1)
    learning_rate: float = setting(1e-3, "learning rate of the imitation stage", above=0)
    weight: float = setting(0.0, "weight of imitation beside the loss on pairs", min=0)
    similarities: float = setting(
        0.0, "weight of imitating its similarities in a batch, for each 1 of its vectors", min=0
    )
    similarity_temperature: float = setting(
        0.05, "temperature of these; a small one weighs the nearest neighbors", above=0
    )
    init_embeddings: bool = setting(False, "embeddings start at the teacher's vectors of the words")
    words: bool = setting(
        False,
        "the words of the teacher's own vocabulary are texts to learn, and stand in spliced "
        "questions; they get the embeddings that `text.vocabulary_size` leaves",
    )


@dataclass(slots=True, kw_only=True)
class EarlyStoppingConfig:
    """When training ends, and which checkpoint is kept."""

    metric: str = setting(
        "mrr",
        "MRR of exact search, the paper's ROC AUC, agreement with the teacher, or accuracy of "
        "translations",
        choices=("roc_auc", "mrr", "agreement", "translation"),
    )
    min_delta: float = setting(0.0, "a smaller gain counts as none", min=0)
    patience: int = setting(3, "evaluations without a gain before the end", min=1)
    every_steps: int = setting(0, "steps between evaluations; 0: an epoch", min=0)


@dataclass(slots=True, kw_only=True)
class IndexConfig:
    """The index of a finished run."""

    factory: str = setting(
        "auto", "FAISS index, as `IVF2000,Flat`; auto: Flat below 20,000 questions, else codes"
    )
    probes: int = setting(64, "lists that a search reads", min=1)
    vectors: str = setting("float32", "precision on disk", choices=("float32", "float16"))


@dataclass(slots=True, kw_only=True)
class TrainConfig:
    """Every setting of a training; the defaults are the paper's experiment on the Quora pairs."""

    job: str = setting("encoder", "what is trained", choices=("encoder", "cross_encoder"))
    seed: int = setting(0, "seed of the weights and of the order of the pairs", min=0)
    batch_size: int = setting(512, "pairs of a batch, over all devices", min=1)
    max_epochs: int = setting(10, "epochs over the pairs; 0: imitate the teacher alone", min=0)
    max_steps: int = setting(
        0,
        "most training steps on pairs (on imitation, if there are no pairs); 0: no limit",
        min=0,
    )
    devices: int = setting(0, "number of devices; 0: all that JAX finds", min=0, result=False)
    overwrite: bool = setting(False, "replace the run of the work directory", result=False)
    log_every: int = setting(20, "steps between two writes of the metrics", min=1)
    checkpoint_every: int = setting(200, "steps between two checkpoints", min=1)
    data: DataConfig = field(default_factory=DataConfig)
    text: TextConfig = field(default_factory=TextConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    rerank: RerankConfig = field(default_factory=RerankConfig)
    cross_encoder: CrossEncoderConfig = field(default_factory=CrossEncoderConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


@functools.cache
def declarations() -> dict[str, tuple[Setting, Any]]:
    """All settings by dotted name: the declaration and the type."""
    return _declarations_of(TrainConfig, "")


def _declarations_of(section: type, prefix: str) -> dict[str, tuple[Setting, Any]]:
    found: dict[str, tuple[Setting, Any]] = {}
    types = typing.get_type_hints(section)
    for f in dataclasses.fields(section):
        if "setting" in f.metadata:
            found[prefix + f.name] = f.metadata["setting"], types[f.name]
        else:
            found |= _declarations_of(types[f.name], f"{f.name}.")
    return found


def flatten(config: TrainConfig) -> dict[str, Any]:
    """All settings by dotted name, as `early_stopping.metric`."""
    return {name: read(config, name) for name in declarations()}


def read(config: TrainConfig, name: str) -> Any:
    """The value of a setting, by its dotted name."""
    return functools.reduce(getattr, name.split("."), config)


def write(config: TrainConfig, name: str, value: Any) -> None:
    """Set a setting in place, by its dotted name; neither name nor value is checked."""
    section, _, last = name.rpartition(".")
    setattr(read(config, section) if section else config, last, value)


def identity(config: TrainConfig) -> dict[str, Any]:
    """The settings that the result of a run depends on, flat, as JSON gives them back."""
    kept = {name: v for name, v in flatten(config).items() if declarations()[name][0].result}
    return dict(json.loads(json.dumps(kept)))


def weighted_losses(config: TrainConfig) -> dict[str, float]:
    """The losses in their order, with their weights."""
    weights = config.loss.weights or (1.0,) * len(config.loss.names)
    return dict(zip(config.loss.names, weights, strict=True))


def objectives(config: TrainConfig) -> list[TrainConfig]:
    """One config for each objective: with all losses, which are summed, or one loss of them."""
    if not config.loss.alternate:
        return [config]
    alone = []
    for name, weight in weighted_losses(config).items():
        alone.append(copy.deepcopy(config))
        alone[-1].loss.names, alone[-1].loss.weights = (name,), (weight,)
    return alone


def has_teacher(config: TrainConfig) -> bool:
    """Whether there are vectors to imitate; an encoder that is extended can imitate its own."""
    return bool(config.teacher.model or config.teacher.vectors or config.text.added_words)


def imitates_itself(config: TrainConfig) -> bool:
    """Whether the teacher is the encoder that words are added to, since no other is given."""
    given = config.teacher.model or config.teacher.vectors
    return bool(config.text.added_words and not given)


def trains(config: TrainConfig) -> bool:
    """Whether there are steps at all; a pretrained encoder can be indexed as it is."""
    return bool(config.max_epochs or has_teacher(config))
