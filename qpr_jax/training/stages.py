"""What a training begins with: devices, batches, the compiled functions, the first state."""

from __future__ import annotations

import copy
import itertools
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from qpr_jax.models.bert import init_bert
from qpr_jax.models.cnn import EMBEDDING_SCALE, ConvEncoder
from qpr_jax.text.vocabulary import Vocabulary
from qpr_jax.training import device_memory
from qpr_jax.training.batch_layout import BatchShape
from qpr_jax.training.config import TrainConfig, objectives
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.distributed import make_mesh, own_devices, replicate
from qpr_jax.training.loader import (
    BatchLoader,
    epoch_steps,
    imitation_loader,
    imitation_steps,
    pairs_loader,
    turn_of_kind,
)
from qpr_jax.training.losses_config import imitation_terms, loss_terms
from qpr_jax.training.sampler import BatchIndices
from qpr_jax.training.schedule import make_schedule
from qpr_jax.training.teacher import word_vectors
from qpr_jax.training.train_step import (
    LossTerms,
    Params,
    TrainState,
    TrainStep,
    init_state,
    make_loss,
    make_train_step,
)

log = logging.getLogger(__name__)


class Objective(NamedTuple):
    """Batches, and the step that is made of each."""

    feed: BatchLoader
    train: TrainStep


class Stage(NamedTuple):
    """Steps from `begins` to before `ends`, counted from 0, in turns.

    rate: the setting of their learning rate. epoch: steps.
    """

    turns: tuple[Objective, ...]
    begins: int
    ends: int
    rate: str

    @property
    def epoch(self) -> int:
        """Steps in which the first of the turns goes through its data."""
        return len(self.turns) * self.turns[0].feed.epoch


class Plan(NamedTuple):
    """phases: one or two, one after the other; the last step of all is the last's."""

    mesh: Mesh
    stages: tuple[Stage, ...]
    state: TrainState

    def stage_of(self, step: int) -> Stage:
        """The phase of a step, counted from 0."""
        return next(stage for stage in self.stages if step < stage.ends)

    def turn_of(self, step: int) -> tuple[Objective, int]:
        """Whose turn a step is, counted from 0, and which of its own batches it reads."""
        stage = self.stage_of(step)
        at, turn = divmod(step - stage.begins, len(stage.turns))
        return stage.turns[turn], at

    def evaluates(self, step: int, every: int) -> bool:
        """Whether the encoder is scored after a step, counted from 1.

        every: steps between two times, from the beginning of a phase; 0: its epoch. It is at the
        end of a phase too.
        """
        stage = self.stage_of(step - 1)
        return step == stage.ends or (step - stage.begins) % (every or stage.epoch) == 0

    def draw_at(self, step: int) -> BatchIndices:
        """The questions of a step, counted from 0."""
        turn, at = self.turn_of(step)
        return turn.feed.draw_at(at)


def build_plan(config: TrainConfig, dataset: TrainDataset) -> Plan:
    """The training that the settings describe, before its first step; nothing is compiled yet.

    Imitation of a teacher comes first, if there is one, then the pairs, if there are any. What it
    takes is logged. UserError where a batch does not fit the devices or their memory.
    """
    size = config.batch_size if config.max_epochs else config.teacher.batch_size // 2
    mesh = make_mesh(size, config.devices)
    own = own_devices(mesh)
    # (setting of the rate, feeds with what is learned from each in turns, steps)
    parts: list[tuple[str, list[tuple[BatchLoader, LossTerms]], int]] = []
    alone = 0
    if dataset.teacher and config.teacher.epochs:
        feed = imitation_loader(config, dataset, devices=mesh.size, own=own)
        log.info("imitation: %d questions a batch, %d steps an epoch", 2 * feed.size, feed.epoch)
        alone = imitation_steps(config, dataset)
        if config.max_steps and not config.max_epochs:
            alone = config.max_steps
        parts.append(("teacher.learning_rate", [(feed, imitation_terms(config))], alone))
    if config.max_epochs:
        turns, all_turns = [], objectives(config)
        for i, own_settings in enumerate(all_turns):
            turn, sharing = turn_of_kind(all_turns, i)
            feed = pairs_loader(
                own_settings, dataset, devices=mesh.size, own=own, turn=turn, turns=sharing
            )
            log_batch_size(own_settings, dataset, feed, mesh)
            turns.append((feed, loss_terms(own_settings)))
        steps = config.max_steps or config.max_epochs * epoch_steps(config, dataset)
        parts.append(("optimizer.learning_rate", turns, steps))
    ends = list(itertools.accumulate(steps for *_, steps in parts))
    schedule = make_schedule(config, ends[-1], imitation=alone)
    graph, params = first_encoder(config, dataset)
    decay = config.optimizer.weight_decay

    def compiled(feed: BatchLoader, objective: LossTerms) -> Objective:
        loss = make_loss(graph, mesh, objective, encode_chunk=config.batch.encode_chunk)
        step = make_train_step(
            loss, schedule, seed=config.seed, weight_decay=decay, named=config.loss.alternate
        )
        return Objective(feed, step)

    stages = [
        Stage(tuple(itertools.starmap(compiled, turns)), end - steps, end, rate)
        for (rate, turns, steps), end in zip(parts, ends, strict=True)
    ]
    state = init_state(params, average=config.optimizer.ema_steps > 0, weight_decay=decay)
    return Plan(mesh, tuple(stages), replicate(state, mesh))


def first_encoder(config: TrainConfig, dataset: TrainDataset) -> tuple[nnx.GraphDef, Params]:
    """The encoder as it is before the first step: drawn, or what training starts from."""
    if dataset.pretrained:
        model = dataset.pretrained.model
        # Copies: a step donates its state, and the model's weights stay.
        weights = jax.tree.map(jnp.array, model.weights)
        return init_bert(model.shape, weights, config.encoder.compute_dtype)
    graph, params = make_encoder(config, dataset.vocabulary.size)
    if dataset.teacher and config.teacher.init_embeddings:
        assert isinstance(dataset.vocabulary, Vocabulary)
        words = word_vectors(
            dataset.teacher,
            config.teacher.cache,
            dataset.vocabulary.words,
            config.encoder.embedding_dim,
        )
        words *= EMBEDDING_SCALE / words.std()
        table = params["embedding"]
        table[...] = table[...].at[1 : 1 + len(words)].set(words)
    return graph, params


def make_encoder(config: TrainConfig, vocabulary_size: int) -> tuple[nnx.GraphDef, Params]:
    """The convolutional encoder of `settings`: its structure and freshly drawn parameters."""
    return nnx.split(
        ConvEncoder(
            vocabulary_size=vocabulary_size,
            embedding_dim=config.encoder.embedding_dim,
            kernel_sizes=config.encoder.kernel_sizes,
            filters=config.encoder.filters,
            output_dim=config.encoder.output_dim,
            bag_of_words=config.encoder.bag_of_words,
            normalize=config.encoder.normalize,
            compute_dtype=config.encoder.compute_dtype,
            rngs=nnx.Rngs(config.seed),
        )
    )


def log_batch_size(
    config: TrainConfig, dataset: TrainDataset, feed: BatchLoader, mesh: Mesh
) -> None:
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
        if size == config.batch_size:
            return shape
        smaller = copy.deepcopy(config)
        smaller.batch_size = size
        return pairs_loader(smaller, dataset, devices=mesh.size).shapes[0]

    found = device_memory.refuse_too_large(
        config,
        shape_of,
        devices=mesh.size,
        sharing=here if device.platform == "cpu" else 1,
        vocabulary_size=dataset.vocabulary.size,
        bert=dataset.pretrained.model.shape if dataset.pretrained else None,
        limit=limit,
    )
    log.info(
        "memory a device, estimated: %.2f GiB of parameters and Adam, %.2f of the encoder, %.2f of "
        "the loss; %.1f GiB available",
        *(part / device_memory.GIB for part in (*found, limit)),
    )
