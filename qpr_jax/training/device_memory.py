"""What a training needs of a device's memory, told and refused before anything is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import jax

from qpr_jax.errors import UserError
from qpr_jax.losses.autodiff_tiles import tile_of
from qpr_jax.losses.sdml import tiled_by_hand
from qpr_jax.machine import available_memory
from qpr_jax.models.bert_shape import BertShape
from qpr_jax.models.conv_max_pool import MAX_SCORES
from qpr_jax.training.batch_layout import BatchShape
from qpr_jax.training.config import TrainConfig, weighted_losses
from qpr_jax.training.losses_config import LOSSES

GIB = 2**30
# Questions at a time of which the kept activations are small beside everything else.
SMALL_CHUNK = 4096
# A batch of fewer is no remedy.
FEWEST_PAIRS = 32


class Memory(NamedTuple):
    """Estimated bytes on a device: of parameters and Adam, of the encoder's and the loss's work."""

    state: int
    encoder: int
    loss: int


def estimated(
    config: TrainConfig,
    shape: BatchShape,
    *,
    devices: int,
    vocabulary_size: int,
    bert: BertShape | None = None,
) -> Memory:
    """What a step holds at a time, from the arrays of which that is most.

    shape: of a batch's share, the tightest; `devices`: which share the batch. bert: where the
    encoder is one.
    """
    pairs = config.batch_size // devices
    everyone = config.batch_size + config.batch.hard_negatives
    copies = 4 if config.optimizer.ema_steps else 3  # the values, two moments, and the average
    if bert:
        output = bert.hidden_size
        state, encoder = (
            copies * _bert_size(bert),
            _bert_work(bert, shape, config.batch.encode_chunk),
        )
    else:
        output = config.encoder.output_dim
        state = copies * sum(_parts(config, vocabulary_size).values())
        encoder = _cnn_work(config, shape)
    losses = weighted_losses(config)
    loss = (6 * everyone + 3 * pairs) * output
    loss += sum(_distances(config, name, pairs, everyone) for name in losses)
    return Memory(*(4 * numbers for numbers in (state, encoder, loss)))


def _distances(config: TrainConfig, loss: str, pairs: int, everyone: int) -> int:
    """Numbers that a loss holds of the distances of a share's queries to all candidates."""
    if LOSSES[loss].data == "labeled":
        return 0
    if loss == "triplet":
        return 4 * pairs * everyone
    by_hand = loss == "ranking" or tiled_by_hand(config.loss.distance, config.loss.prior)
    rows = tile_of("auto", pairs, everyone, by_hand=by_hand) or pairs
    return int((3 if by_hand else 6 * (1 + config.loss.symmetric)) * rows * everyone)


def _cnn_work(config: TrainConfig, shape: BatchShape) -> int:
    """Numbers that the convolutional encoder holds for a gradient."""
    questions = sum(rows for rows, _ in shape.blocks)
    embedding, filters = config.encoder.embedding_dim, config.encoder.filters
    products = shape.distinct * sum(config.encoder.kernel_sizes) * filters
    at_once = config.batch.encode_chunk or questions
    largest = max(min(rows, at_once) * width for rows, width in shape.blocks) * filters
    # The table of products and its gradient; a word's row, its moments, and the gradient of them;
    # a few arrays of the sums of a chunk; of each question the maxima and where they are.
    encoder = 2 * products + 6 * shape.words * embedding + 3 * min(MAX_SCORES, largest)
    if not config.batch.encode_chunk:
        encoder += 2 * questions * len(config.encoder.kernel_sizes) * filters
    return int(encoder)


def _bert_size(bert: BertShape) -> int:
    size, inner = bert.hidden_size, bert.intermediate_size
    rows = bert.vocab_size + bert.max_position_embeddings + bert.type_vocab_size
    return rows * size + bert.num_hidden_layers * (4 * size * size + 2 * size * inner)


def _bert_work(bert: BertShape, shape: BatchShape, chunk: int) -> int:
    """Numbers that a transformer holds for a gradient: what each layer made of each word."""

    def kept(rows: int, width: int) -> int:
        word = 14 * bert.hidden_size + 4 * bert.intermediate_size
        return rows * width * (word + 3 * bert.num_attention_heads * width)

    blocks = [kept(min(rows, chunk or rows), width) for rows, width in shape.blocks]
    return bert.num_hidden_layers * (max(blocks) if chunk else sum(blocks))


def available(device: jax.Device) -> int:
    """Bytes that a training may take: on CPU for all devices together, else of this one."""
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("bytes_limit", 1 << 62))
    return available_memory()


def refuse_too_large(
    config: TrainConfig,
    shape_of: Callable[[int], BatchShape],
    *,
    devices: int,
    sharing: int,
    vocabulary_size: int,
    limit: int,
    bert: BertShape | None = None,
) -> Memory:
    """The estimate; UserError, with the setting that would make it fit, where it does not.

    Args:
      settings: of the training.
      shape_of: batch size -> the tightest shape of a device's share.
      devices: how many share the batch.
      sharing: how many of them share `limit` bytes.
      vocabulary_size: rows of the embedding.
      limit: bytes.
      bert: where the encoder is one.
    """

    def memory_of(size: int, chunk: int) -> Memory:
        changed = copy.deepcopy(config)
        changed.batch_size, changed.batch.encode_chunk = size, chunk
        return estimated(
            changed, shape_of(size), devices=devices, vocabulary_size=vocabulary_size, bert=bert
        )

    size, chunk = config.batch_size, config.batch.encode_chunk
    found = memory_of(size, chunk)
    if sharing * sum(found) <= limit:
        return found
    # On CPU they would share what there is.
    more = jax.default_backend() != "cpu" and found.state < limit
    raise UserError(
        f"a step needs about {sharing * sum(found) / GIB:.1f} GiB of memory, and "
        f"{limit / GIB:.1f} GiB are there; "
        + _remedy(config, lambda *sizes: sharing * sum(memory_of(*sizes)) <= limit, devices)
        + (", or train on more devices" if more else "")
    )


def _remedy(config: TrainConfig, fits: Callable[[int, int], bool], devices: int) -> str:
    """What would make a step fit; fits: (batch size, chunk) -> whether they do."""
    size, chunk = config.batch_size, config.batch.encode_chunk
    small = min(chunk or SMALL_CHUNK, SMALL_CHUNK)
    while size >= max(devices, FEWEST_PAIRS) and not fits(size, small):
        size = size // 2 - size // 2 % devices
    if size < max(devices, FEWEST_PAIRS):
        if config.encoder.kind == "bert":
            return "give more memory, or a smaller `--config.encoder.pretrained`"
        rows = config.text.vocabulary_size + config.text.hash_bins
        largest = max(_parts(config, rows).items(), key=lambda part: part[1])[0]
        return f"lower {largest}"
    settled = [f"`--config.batch_size={size}`"] if size < config.batch_size else []
    if not fits(size, chunk):
        settled.append(f"`--config.batch.encode_chunk={small}`")
    return f"set {' and '.join(settled)}"


def _parts(config: TrainConfig, vocabulary_size: int) -> dict[str, int]:
    """How many numbers the model's parts have, by the settings that say so."""
    embedding, filters = config.encoder.embedding_dim, config.encoder.filters
    return {
        "`--config.text.vocabulary_size`, `--config.text.hash_bins` or `--config.encoder.embedding_dim`": embedding
        * vocabulary_size,
        "`--config.encoder.filters`, `--config.encoder.kernel_sizes` or `--config.encoder.embedding_dim`": embedding
        * filters
        * sum(config.encoder.kernel_sizes),
        "`--config.encoder.output_dim` or `--config.encoder.filters`": filters
        * len(config.encoder.kernel_sizes)
        * config.encoder.output_dim,
    }
