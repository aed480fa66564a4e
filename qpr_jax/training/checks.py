"""What settings must satisfy, and which of them nothing reads."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from qpr_jax.distant.method import LEAST
from qpr_jax.errors import UserError
from qpr_jax.index.faiss_index import Recipe, check_recipe
from qpr_jax.losses.choices import (
    DISTANCES,
    NEGATIVES,
    PAIR_DISTANCES,
    PRIORS,
    SIMILARITIES,
)
from qpr_jax.training.config import (
    LABELLED_LOSSES,
    LOSSES,
    default_settings,
    flatten,
    trains,
    weighted_losses,
)
from qpr_jax.training.schedule import SCALINGS


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
    _check_losses(settings)
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
        ("distance", DISTANCES),
        ("prior", PRIORS),
        ("similarity", SIMILARITIES),
        ("negatives", NEGATIVES),
        ("pair_distance", PAIR_DISTANCES),
        ("sampling", ("pairs", "clusters")),
        ("learning_rate_scaling", tuple(SCALINGS)),
        ("learning_rate_decay", ("none", "linear")),
    ):
        _require(settings, name, lambda value, of=choices: value in of, " or ".join(choices))


def unused_settings(settings: ConfigDict) -> list[str]:
    """Names of the settings that differ from their default but that nothing reads here."""
    of_losses = dict.fromkeys(name for names in LOSSES.values() for name in names)
    losses = weighted_losses(settings)
    read = {name for loss in losses for name in LOSSES[loss]}
    unread = [name for name in of_losses if name not in read]
    if settings.prior == "uniform":
        unread.append("temperature")
    euclidean = settings.pair_distance == "euclidean"
    scaled = {"ranking": settings.similarity == "dot"} | dict.fromkeys(LABELLED_LOSSES, euclidean)
    if not any(scaled.get(loss, True) for loss in losses):
        unread.append("scale")
    if losses.keys() <= LABELLED_LOSSES.keys():
        unread += ["sampling", "mask_own_cluster", "hard_negatives"]
    if len(losses) == 1:
        unread += ["loss_turns"] + ["loss_weights"] * (not settings.teacher.weight)
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
        unread += ["loss", "loss_turns", "loss_weights"]
    if not trains(settings):
        unread += ["max_steps", "warmup_steps", "weight_decay", "word_dropout", "ema_steps"]
    if settings.encoder == "bert":
        unread += ["vocabulary_size", "fewest_uses", "hash_bins", "char_ngrams", "embedding_dim"]
        unread += ["windows", "filters", "output_dim", "bag_of_words", "normalize", "teacher.words"]
    given, default = flatten(settings), flatten(default_settings())
    return [name for name in dict.fromkeys(unread) if given[name] != default[name]]


def _check_losses(settings: ConfigDict) -> None:
    names, weights = settings.loss.split("+"), settings.loss_weights
    if any(name not in LOSSES for name in names) or len(set(names)) < len(names):
        raise UserError(
            f"`loss`: expected {' or '.join(LOSSES)}, or several as `ranking+online_contrastive`, "
            f"got {settings.loss!r}; set `--config.loss`"
        )
    _require(
        settings,
        "loss_weights",
        lambda value: (
            len(value) in (0, len(names))
            and all(isinstance(w, int | float) and 0 < w < float("inf") for w in weights)
        ),
        f"a number above 0 for each of {settings.loss!r}, or none, as ()",
    )


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


def _require(settings: ConfigDict, name: str, accept: Any, expected: str) -> None:
    value = flatten(settings)[name]
    if not accept(value):
        raise UserError(f"`{name}`: expected {expected}, got {value!r}; set `--config.{name}`")
