"""All settings of a run with their defaults."""

from __future__ import annotations

import difflib
import json
import pathlib
import tomllib
from typing import Any

from ml_collections import ConfigDict

from qpr_jax.errors import UserError
from qpr_jax.files import Path

# The losses, and the settings that each reads of those that are of losses alone: those of pairs
# that mean the same, in which all else of a batch is a negative, and of pairs labelled either way.
LABELLED_LOSSES = {
    "contrastive": ("scale", "pair_distance", "margin"),
    "online_contrastive": ("scale", "pair_distance", "margin"),
}
LOSSES = {
    "sdml": ("scale", "distance", "smoothing", "prior", "temperature", "symmetric"),
    "triplet": ("scale", "distance", "negatives", "margin"),
    "ranking": ("scale", "similarity", "similarity_scale", "smoothing", "symmetric"),
} | LABELLED_LOSSES

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
    # similarities where vectors have length 1 (`normalize`). Or, of pairs labelled 1 and 0,
    # "contrastive" or "online_contrastive". Or several, as "ranking+online_contrastive".
    settings.loss = "sdml"
    settings.loss_weights = ()  # of several, as (1.0,0.5); none: 1 each
    # Of several: a step of each in turn, or, else, steps on their sum. Those of pairs and those of
    # labelled pairs have batches of their own; an epoch is that of the first.
    settings.loss_turns = False
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
    settings.margin = 0.5  # of triplets, and of contrastive losses
    settings.pair_distance = "cosine"  # of contrastive losses, or "euclidean"

    settings.batch_size = 512  # pairs, over all devices; on a sum, so many of either kind
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


def weighted_losses(settings: ConfigDict) -> dict[str, float]:
    """The losses that the settings name, in their order, with their weights."""
    names = settings.loss.split("+")
    return dict(zip(names, settings.loss_weights or [1.0] * len(names), strict=True))


def tasks_of(settings: ConfigDict) -> list[ConfigDict]:
    """The settings of each turn: with all losses, which are summed, or with one of them each."""
    if not settings.loss_turns:
        return [settings]
    turns = []
    for name, weight in weighted_losses(settings).items():
        turn = settings.copy_and_resolve_references()
        turn.loss, turn.loss_weights = name, (weight,)
        turns.append(turn)
    return turns


def trains(settings: ConfigDict) -> bool:
    """Whether there are steps at all; an encoder from elsewhere can be taken as it is."""
    return bool(settings.max_epochs or settings.teacher.model or settings.teacher.vectors)


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
            hint = f"did you mean `{near[0]}`?" if near else "see training/config.py"
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
