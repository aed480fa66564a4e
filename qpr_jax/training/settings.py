"""All settings of a run with their defaults, and what they must satisfy."""

from __future__ import annotations

import difflib
import json
import pathlib
import tomllib
from typing import Any

from ml_collections import ConfigDict

from qpr_jax.distant.method import LEAST
from qpr_jax.errors import UserError
from qpr_jax.files import Path
from qpr_jax.losses.distances import DISTANCES
from qpr_jax.losses.ranking import SIMILARITIES
from qpr_jax.losses.sdml import PRIORS
from qpr_jax.losses.triplet import NEGATIVES
from qpr_jax.retrieval.vectors import Recipe, check_recipe
from qpr_jax.training.schedule import SCALINGS

# The losses of pairs, and the settings that each reads of those that are of losses alone.
LOSSES = {
    "sdml": ("scale", "distance", "smoothing", "prior", "temperature", "symmetric"),
    "triplet": ("scale", "distance", "negatives", "margin"),
    "ranking": ("scale", "similarity", "similarity_scale", "smoothing", "symmetric"),
}

# What may change between two commands of one run: none alters its result beyond rounding.
NOT_IDENTITY = (
    *("overwrite", "devices", "distributed", "encode_chunk", "data.path", "data.unlabelled"),
    *("pretrained", "teacher.model", "teacher.vectors", "teacher.cache"),
)


def default_settings() -> ConfigDict:
    """The paper's experiment on the Quora pairs: every setting there is."""
    settings = ConfigDict()
    settings.seed = 0  # of the weights and of the order of the pairs
    settings.overwrite = False  # start anew where the work directory holds a run
    settings.devices = 0  # 0: all that JAX sees

    settings.distributed = ConfigDict()
    settings.distributed.enabled = False  # several processes train together
    # Of process 0; empty, as JAX finds the three by itself under SLURM, MPI, or on a TPU pod.
    settings.distributed.coordinator = ""  # HOST:PORT
    settings.distributed.processes = 0
    settings.distributed.process = -1  # the number of this one, from 0
    settings.distributed.heartbeat = 30  # seconds without a sign of life: a process is lost

    settings.data = ConfigDict()
    # Or "qa_logs", questions and their answers, "questions", a list of them and nothing else, for
    # a student of a teacher, or "synthetic", a generated question log.
    settings.data.source = "quora"
    # Of the pair file; else $QPR_DATA_DIR, the cache, the web. Of logs: a file, a folder of them or
    # one that `qpr clusters` made; else $QPR_DATA_DIR.
    settings.data.path = ""
    settings.data.skip_bad_rows = False  # count and skip malformed rows
    settings.data.max_rows = 0  # read only so many rows; 0: all
    settings.data.split_seed = 0
    settings.data.held_out_pairs = 5000  # at most, in each of validation and test
    settings.data.max_held_out_cluster = 20  # larger clusters always train
    settings.data.synthetic_clusters = 6000  # size of the generated log
    # Share of its rows with an unlabelled paraphrase in their batch; -1: a few, as in real logs.
    settings.data.false_negatives = -1.0
    settings.data.question = "question"  # its column in logs
    settings.data.answer = "answer"  # its column in logs
    settings.data.coherence = "pairwise"  # of clusters of logs, or "paper"
    settings.data.min_coherence = -1.0  # clusters of less are removed; -1: 0.3, of "paper" 0.1
    settings.data.pairs_per_cluster = 100  # at most, of logs
    # More questions, of no pair, for a teacher's vectors alone: a file, or a folder of them.
    settings.data.unlabelled = ""
    # And so many made of the training questions and these: from one into another at words that
    # both have.
    settings.data.crossed = 0

    settings.vocabulary_size = 50_000  # most frequent words of the training questions
    settings.fewest_uses = 1  # of a word in them that has an embedding of its own
    settings.hash_bins = 5_000  # that all other words share
    settings.char_ngrams = 0  # cut them into runs of so many characters first, as words; 0: no
    settings.max_words = 64  # words of a question that are read

    settings.encoder = "cnn"  # or "bert", a transformer that is trained further
    # Of "bert": a folder in the format of sentence-transformers, or "minilm", that of the extra.
    settings.pretrained = ""
    settings.embedding_dim = 300
    settings.windows = (5,)  # words; several give each its own filters
    settings.filters = 600  # of each window; the paper does not say
    settings.output_dim = 300
    settings.bag_of_words = False  # the projection also sees the sum of the word embeddings
    settings.normalize = False  # vectors have length 1
    settings.compute_dtype = "float32"  # of the encoder's products, or "bfloat16"

    # Or "triplet", or "ranking", multiple negatives ranking, in which SDML's softmax is of
    # similarities; plain with `smoothing` 0. Searches go by distance, whose order is that of the
    # similarities where vectors have length 1 (`normalize`).
    settings.loss = "sdml"
    settings.scale = 1.0  # that the loss sees the vectors at; those of length 1 are too near
    settings.distance = "ssd"  # the sum of squared differences, or "euc", its root
    settings.mask_own_cluster = False  # known paraphrases in a batch are no negatives
    settings.smoothing = 0.3  # of SDML, ranking: the mass that the other candidates share
    settings.prior = "uniform"  # of SDML: they share it evenly, or, "distance", by nearness
    settings.temperature = 1.0  # of the distance prior
    settings.symmetric = False  # of SDML, ranking: candidates look for their queries too
    settings.similarity = "cosine"  # of ranking, to which `scale` is nothing, or "dot"
    settings.similarity_scale = 20.0  # what it is multiplied by; 1 is usual for dot products
    settings.negatives = "random"  # of triplets; or "hard" (to the positive), "hard_anchor"
    settings.margin = 0.5  # of triplets

    settings.batch_size = 512  # pairs, over all devices
    settings.sampling = "pairs"  # each pair as often, or "clusters", each cluster as often
    settings.hard_negatives = 0  # candidates of a batch from pairs labelled non-duplicates
    settings.word_dropout = 0.0  # share of the words that a step does not see
    settings.encode_chunk = 0  # questions that a device encodes at a time, to save memory; 0: all
    settings.learning_rate = 1e-3  # of Adam, for 512 pairs
    settings.learning_rate_scaling = "none"  # or "sqrt", "linear": times (batch_size / 512)^0.5, ^1
    settings.weight_decay = 0.0  # of AdamW, for matrices other than the embedding
    settings.warmup_steps = 0  # over which it rises from 0
    settings.learning_rate_decay = "none"  # or "linear", to 0 at the last of the steps allowed
    settings.ema_steps = 0  # score and keep an average of weights over about so many; 0: the last
    settings.max_epochs = 10  # of the pairs; with a teacher, 0 is no pairs at all
    settings.max_steps = 0  # of pairs, or, without, of imitation; 0: as many as the epochs hold

    settings.teacher = ConfigDict()
    # Whose vectors the encoder learns to give: a run, a folder in the format of
    # sentence-transformers, or "minilm"; "": nobody's. Computed once, kept in `cache`.
    settings.teacher.model = ""
    # Or vectors of any model: a .npy file, a row for each question, in their order.
    settings.teacher.vectors = ""
    settings.teacher.cache = ""  # a folder; "": in $XDG_CACHE_HOME, or ~/.cache
    settings.teacher.epochs = 9  # of all training questions, imitation alone, before the pairs
    settings.teacher.min_steps = 0  # at least, however few the questions are
    settings.teacher.batch_size = 512  # questions of a step, in these epochs
    settings.teacher.learning_rate = 1e-3
    settings.teacher.weight = 0.0  # of imitation beside the loss, when the pairs come
    settings.teacher.words = False  # the embedding starts at the teacher's vectors of the words

    settings.early_stopping = ConfigDict()
    # "mrr" of exact search among all questions, or the paper's "roc_auc", which saturates and
    # keeps a worse checkpoint (measured in BUILD.md).
    settings.early_stopping.metric = "mrr"
    settings.early_stopping.min_delta = 0.0  # a smaller gain counts as none
    settings.early_stopping.patience = 3  # evaluations without a gain before the end
    settings.early_stopping.every_steps = 0  # 0: once an epoch

    settings.index = ConfigDict()
    settings.index.factory = "IVF2000,Flat"
    settings.index.probes = 10  # lists that a search reads
    settings.index.assignments = 3  # lists that a question is stored in; 1 is plain FAISS

    settings.log_every = 20  # steps between two writes of the metrics
    settings.checkpoint_every = 200  # steps
    return settings


def validate(settings: ConfigDict) -> None:
    """Raise UserError for the first setting that cannot be."""
    positive = (
        "vocabulary_size fewest_uses hash_bins max_words embedding_dim filters output_dim "
        "batch_size teacher.batch_size log_every checkpoint_every distributed.heartbeat "
        "data.held_out_pairs data.max_held_out_cluster data.synthetic_clusters "
        "data.pairs_per_cluster "
        "early_stopping.patience index.probes index.assignments"
    )
    not_negative = (
        "seed devices max_steps data.split_seed data.max_rows data.crossed hard_negatives "
        "early_stopping.every_steps ema_steps char_ngrams encode_chunk warmup_steps "
        "max_epochs teacher.epochs teacher.min_steps"
    )
    for least, names in ((1, positive), (0, not_negative)):
        for name in names.split():
            _require(settings, name, lambda value, least=least: value >= least, f"at least {least}")
            _require(settings, name, lambda value: value < 2**32, "below 2**32")
    if settings.encoder == "cnn":  # that of a transformer is seen when it is read
        recipe = Recipe(settings.index.factory, probes=settings.index.probes)
        check_recipe(recipe, settings.output_dim)
    _check_teacher(settings)
    _require(
        settings, "data.false_negatives", lambda v: v == -1 or 0 <= v <= 0.9, "0 to 0.9, or -1"
    )
    _require(settings, "data.min_coherence", lambda v: v == -1 or 0 <= v <= 1, "0 to 1, or -1")
    _require(settings, "smoothing", lambda value: 0 <= value <= 1, "from 0 to 1")
    _require(settings, "word_dropout", lambda value: 0 <= value < 1, "at least 0 and below 1")
    finite = "learning_rate teacher.learning_rate temperature margin scale similarity_scale"
    for name in finite.split():
        _require(settings, name, lambda value: 0 < value < float("inf"), "above 0 and finite")
    for name in ("early_stopping.min_delta", "teacher.weight", "weight_decay"):
        _require(settings, name, lambda value: 0 <= value < float("inf"), "at least 0 and finite")
    _require(
        settings,
        "windows",
        lambda value: len(value) > 0 and all(type(w) is int and w > 0 for w in value),
        "one or more positive numbers of words, as (3,5)",
    )
    together = settings.distributed
    who = (together.coordinator, together.processes, together.process)
    port = together.coordinator.rpartition(":")[2]
    if who != ("", 0, -1) and not (port.isdecimal() and 0 <= who[2] < who[1] and together.enabled):
        raise UserError(
            "`distributed`: expected `enabled=True` with `coordinator=HOST:PORT`, the number of "
            "`processes`, and which of them, from 0, this `process` is, or none of the three, "
            f"got {together.enabled}, {who[0]!r}, {who[1]} and {who[2]}"
        )
    if together.enabled and settings.devices:
        raise UserError(
            f"`devices`: expected 0 with several processes, got {settings.devices}; each uses all "
            "that it sees"
        )
    for name, choices in (
        ("data.source", ("quora", "qa_logs", "questions", "synthetic")),
        ("data.coherence", tuple(LEAST)),
        ("early_stopping.metric", ("roc_auc", "mrr", "agreement")),
        ("encoder", ("cnn", "bert")),
        ("compute_dtype", ("float32", "bfloat16")),
        ("loss", tuple(LOSSES)),
        ("distance", DISTANCES),
        ("prior", PRIORS),
        ("similarity", SIMILARITIES),
        ("negatives", NEGATIVES),
        ("sampling", ("pairs", "clusters")),
        ("learning_rate_scaling", tuple(SCALINGS)),
        ("learning_rate_decay", ("none", "linear")),
    ):
        _require(settings, name, lambda value, of=choices: value in of, " or ".join(choices))


def trains(settings: ConfigDict) -> bool:
    """Whether there are steps at all; an encoder from elsewhere can be taken as it is."""
    return bool(settings.max_epochs or settings.teacher.model or settings.teacher.vectors)


def _check_teacher(settings: ConfigDict) -> None:
    teacher = settings.teacher
    if teacher.model and teacher.vectors:
        raise UserError("`teacher`: expected `model` or `vectors`, got both; set one of them to ''")
    if teacher.vectors and teacher.words:
        raise UserError(
            "`teacher.words`: expected a teacher's model, got its vectors alone; set "
            "`--config.teacher.words=False`"
        )
    has_pairs = settings.max_epochs and settings.data.source != "questions"
    if teacher.model or teacher.vectors:
        if not settings.max_epochs and not teacher.epochs:
            raise UserError(
                "`max_epochs`, `teacher.epochs`: expected 1 or more of one, got 0 and 0"
            )
        if settings.data.source == "questions" and settings.max_epochs:
            raise UserError(
                f"`max_epochs`: expected 0, since a list of questions has no pairs, got "
                f"{settings.max_epochs}; set `--config.max_epochs=0`"
            )
    elif not has_pairs and settings.encoder == "cnn":
        raise UserError(
            "expected pairs to train on or a teacher, got neither; set `--config.teacher.model` or "
            "`--config.teacher.vectors`, or, with pairs, `--config.max_epochs` to 1 or more"
        )
    elif settings.early_stopping.metric == "agreement" or teacher.words:
        raise UserError(
            "`early_stopping.metric=agreement`, `teacher.words`: expected a teacher, got none; set "
            "`--config.teacher.model`"
        )
    if settings.data.source == "questions" and settings.early_stopping.metric != "agreement":
        raise UserError(
            "`early_stopping.metric`: expected agreement, all that a list of questions can be "
            f"scored by, got {settings.early_stopping.metric}; set "
            "`--config.early_stopping.metric=agreement`"
        )
    if (settings.encoder == "bert") != bool(settings.pretrained):
        raise UserError(
            "`encoder`, `pretrained`: expected `bert` with a folder to start from, or `cnn` "
            f"without one, got {settings.encoder!r} and {settings.pretrained!r}; set both"
        )


def from_toml(path: Path) -> ConfigDict:
    """The default settings with those of a TOML file; UserError where one is unknown or wrong."""
    settings = default_settings()
    try:
        given = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: expected a TOML file of settings, found none") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected TOML ({error}); mend it") from None
    known = flatten(settings)
    for name, value in _flat(given).items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean `{near[0]}`?" if near else "see training/settings.py"
            raise UserError(f"{path}: there is no setting `{name}`; {hint}")
        value = tuple(value) if isinstance(value, list) else value
        default = known[name]
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise UserError(
                f"{path}: `{name}`: expected {type(default).__name__}, as {default!r}, "
                f"got {value!r}"
            )
        settings.update_from_flattened_dict({name: value})
    return settings


def _flat(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        inner = _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else None
        flat |= {f"{prefix}{name}": value} if inner is None else inner
    return flat


def without_effect(settings: ConfigDict) -> list[str]:
    """Names of the settings that differ from their default but that nothing reads here."""
    of_losses = dict.fromkeys(name for names in LOSSES.values() for name in names)
    unread = [name for name in of_losses if name not in LOSSES[settings.loss]]
    if settings.loss == "sdml" and settings.prior == "uniform":
        unread.append("temperature")
    if settings.loss == "ranking" and settings.similarity == "cosine":
        unread.append("scale")
    of_logs = [
        f"data.{name}"
        for name in ("question", "answer", "coherence", "min_coherence", "pairs_per_cluster")
    ]
    generated = ["data.synthetic_clusters", "data.false_negatives"]
    unread += {
        "quora": of_logs + generated,
        "qa_logs": ["data.max_rows", *generated],
        "questions": [name for name in of_logs if name != "data.question"] + generated,
        "synthetic": ["data.path", "data.max_rows", "data.skip_bad_rows", *of_logs],
    }[settings.data.source]
    if settings.data.unlabelled:  # files like those of the questions
        unread = [name for name in unread if name not in ("data.question", "data.skip_bad_rows")]
    if not (settings.teacher.model or settings.teacher.vectors):
        unread += ["data.unlabelled", "data.crossed"]
        unread += [name for name in flatten(settings) if name.startswith("teacher.")]
    if not settings.max_epochs:
        unread += [*of_losses, "sampling", "mask_own_cluster", "hard_negatives", "learning_rate"]
    if not trains(settings):
        unread += ["max_steps", "warmup_steps", "weight_decay", "word_dropout", "ema_steps"]
    if settings.encoder == "bert":
        unread += ["vocabulary_size", "fewest_uses", "hash_bins", "char_ngrams", "embedding_dim"]
        unread += ["windows", "filters", "output_dim", "bag_of_words", "normalize", "teacher.words"]
    given, default = flatten(settings), flatten(default_settings())
    return [name for name in dict.fromkeys(unread) if given[name] != default[name]]


def _require(settings: ConfigDict, name: str, accept: Any, expected: str) -> None:
    value = flatten(settings)[name]
    if not accept(value):
        raise UserError(f"`{name}`: expected {expected}, got {value!r}; set `--config.{name}`")


def flatten(settings: ConfigDict) -> dict[str, Any]:
    """Settings as one flat dictionary, `early_stopping.metric` and so on."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, ConfigDict):
            flat |= {f"{name}.{inner}": v for inner, v in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def identity(settings: ConfigDict) -> dict[str, Any]:
    """The settings that a run's result depends on, flat, as JSON gives them back."""
    kept = {
        name: v
        for name, v in flatten(settings).items()
        if name not in NOT_IDENTITY and name.partition(".")[0] not in NOT_IDENTITY
    }
    return json.loads(json.dumps(kept))
