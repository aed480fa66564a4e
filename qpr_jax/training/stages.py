"""What a training begins with: devices, batches, the compiled functions, the first state."""

from __future__ import annotations

import itertools
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from qpr_jax.models.bert import bert_of
from qpr_jax.models.cnn import EMBEDDING_SCALE, ConvEncoder
from qpr_jax.text.vocabulary import Vocabulary
from qpr_jax.training import device_memory
from qpr_jax.training.batch_layout import BatchShape
from qpr_jax.training.config import turns_of
from qpr_jax.training.dataset import Prepared
from qpr_jax.training.loader import (
    Feed,
    epoch_steps,
    imitation_steps,
    make_feed,
    make_imitation_feed,
    turn_of_kind,
)
from qpr_jax.training.losses_config import imitation, make_objective
from qpr_jax.training.mesh import make_mesh, own_devices, replicate
from qpr_jax.training.sampler import Draw
from qpr_jax.training.schedule import make_schedule
from qpr_jax.training.teacher import word_vectors
from qpr_jax.training.train_step import (
    Objective,
    Params,
    TrainState,
    TrainStep,
    init_state,
    make_loss,
    make_train_step,
)

log = logging.getLogger(__name__)


class Turn(NamedTuple):
    """Batches, and the step that is made of each."""

    feed: Feed
    train: TrainStep


class Phase(NamedTuple):
    """Steps from `begins` to before `ends`, counted from 0, in turns.

    rate: the setting of their learning rate. epoch: steps.
    """

    turns: tuple[Turn, ...]
    begins: int
    ends: int
    rate: str

    @property
    def epoch(self) -> int:
        """Steps in which the first of the turns goes through its data."""
        return len(self.turns) * self.turns[0].feed.epoch


class Training(NamedTuple):
    """phases: one or two, one after the other; the last step of all is the last's."""

    mesh: Mesh
    phases: tuple[Phase, ...]
    state: TrainState

    def phase_of(self, step: int) -> Phase:
        """The phase of a step, counted from 0."""
        return next(phase for phase in self.phases if step < phase.ends)

    def turn_of(self, step: int) -> tuple[Turn, int]:
        """Whose turn a step is, counted from 0, and which of its own batches it reads."""
        phase = self.phase_of(step)
        at, turn = divmod(step - phase.begins, len(phase.turns))
        return phase.turns[turn], at

    def evaluates(self, step: int, every: int) -> bool:
        """Whether the encoder is scored after a step, counted from 1.

        every: steps between two times, from the beginning of a phase; 0: its epoch. It is at the
        end of a phase too.
        """
        phase = self.phase_of(step - 1)
        return step == phase.ends or (step - phase.begins) % (every or phase.epoch) == 0

    def draw_at(self, step: int) -> Draw:
        """The questions of a step, counted from 0."""
        turn, at = self.turn_of(step)
        return turn.feed.draw_at(at)


def set_up(settings: ConfigDict, prepared: Prepared) -> Training:
    """The training that the settings describe, before its first step; nothing is compiled yet.

    Imitation of a teacher comes first, if there is one, then the pairs, if there are any. What it
    takes is logged. UserError where a batch does not fit the devices or their memory.
    """
    size = settings.batch_size if settings.max_epochs else settings.teacher.batch_size // 2
    mesh = make_mesh(size, settings.devices)
    own = own_devices(mesh)
    # (setting of the rate, feeds with what is learned from each in turns, steps)
    parts: list[tuple[str, list[tuple[Feed, Objective]], int]] = []
    alone = 0
    if prepared.teacher and settings.teacher.epochs:
        feed = make_imitation_feed(settings, prepared, devices=mesh.size, own=own)
        log.info("imitation: %d questions a batch, %d steps an epoch", 2 * feed.size, feed.epoch)
        alone = imitation_steps(settings, prepared)
        if settings.max_steps and not settings.max_epochs:
            alone = settings.max_steps
        parts.append(("teacher.learning_rate", [(feed, imitation)], alone))
    if settings.max_epochs:
        turns, all_turns = [], turns_of(settings)
        for i, own_settings in enumerate(all_turns):
            turn, sharing = turn_of_kind(all_turns, i)
            feed = make_feed(
                own_settings, prepared, devices=mesh.size, own=own, turn=turn, turns=sharing
            )
            _tell_size(own_settings, prepared, feed, mesh)
            turns.append((feed, make_objective(own_settings)))
        steps = settings.max_steps or settings.max_epochs * epoch_steps(settings, prepared)
        parts.append(("learning_rate", turns, steps))
    ends = list(itertools.accumulate(steps for *_, steps in parts))
    schedule = make_schedule(settings, ends[-1], imitation=alone)
    graph, params = first_encoder(settings, prepared)
    decay = settings.weight_decay

    def compiled(feed: Feed, objective: Objective) -> Turn:
        loss = make_loss(graph, mesh, objective, encode_chunk=settings.encode_chunk)
        step = make_train_step(
            loss, schedule, seed=settings.seed, weight_decay=decay, named=settings.loss_turns
        )
        return Turn(feed, step)

    phases = [
        Phase(tuple(itertools.starmap(compiled, turns)), end - steps, end, rate)
        for (rate, turns, steps), end in zip(parts, ends, strict=True)
    ]
    state = init_state(params, average=settings.ema_steps > 0, weight_decay=decay)
    return Training(mesh, tuple(phases), replicate(state, mesh))


def first_encoder(settings: ConfigDict, prepared: Prepared) -> tuple[nnx.GraphDef, Params]:
    """The encoder as it is before the first step: drawn, or what training starts from."""
    if prepared.pretrained:
        model = prepared.pretrained.model
        # Copies: a step donates its state, and the model's weights stay.
        weights = jax.tree.map(jnp.array, model.weights)
        return bert_of(model.shape, weights, settings.compute_dtype)
    graph, params = make_encoder(settings, prepared.vocabulary.size)
    if prepared.teacher and settings.teacher.words:
        assert isinstance(prepared.vocabulary, Vocabulary)
        words = word_vectors(
            prepared.teacher,
            settings.teacher.cache,
            prepared.vocabulary.words,
            settings.embedding_dim,
        )
        words *= EMBEDDING_SCALE / words.std()
        table = params["embedding"]
        table[...] = table[...].at[1 : 1 + len(words)].set(words)
    return graph, params


def make_encoder(settings: ConfigDict, vocabulary_size: int) -> tuple[nnx.GraphDef, Params]:
    """The convolutional encoder of `settings`: its structure and freshly drawn parameters."""
    return nnx.split(
        ConvEncoder(
            vocabulary_size=vocabulary_size,
            embedding_dim=settings.embedding_dim,
            windows=settings.windows,
            filters=settings.filters,
            output_dim=settings.output_dim,
            bag_of_words=settings.bag_of_words,
            normalize=settings.normalize,
            compute_dtype=settings.compute_dtype,
            rngs=nnx.Rngs(settings.seed),
        )
    )


def _tell_size(settings: ConfigDict, prepared: Prepared, feed: Feed, mesh: Mesh) -> None:
    """Log what a step takes; UserError where memory is too small for it."""
    size, shape, device = feed.size, feed.shapes[0], mesh.devices[0]
    here = len(mesh.local_devices)
    log.info(
        "batch: %s pairs, %s in each of %d process(es), %s on each of %d %s device(s); %d steps an "
        "epoch; %s positions and %s distinct words a device",
        *(f"{size:,}", f"{size * here // mesh.size:,}", jax.process_count()),
        *(f"{size // mesh.size:,}", mesh.size, device.platform, feed.epoch),
        *(f"{shape.tokens:,}", f"{shape.distinct:,}"),
    )
    limit = device_memory.available(mesh.local_devices[0])

    def shape_of(size: int) -> BatchShape:
        if size == settings.batch_size:
            return shape
        smaller = settings.copy_and_resolve_references()
        smaller.batch_size = size
        return make_feed(smaller, prepared, devices=mesh.size).shapes[0]

    found = device_memory.refuse_too_large(
        settings,
        shape_of,
        devices=mesh.size,
        sharing=here if device.platform == "cpu" else 1,
        vocabulary_size=prepared.vocabulary.size,
        bert=prepared.pretrained.model.shape if prepared.pretrained else None,
        limit=limit,
    )
    log.info(
        "memory a device, estimated: %.2f GiB of parameters and Adam, %.2f of the encoder, %.2f of "
        "the loss; %.1f GiB available",
        *(part / device_memory.GIB for part in (*found, limit)),
    )
