"""What a training needs of a device's memory, told and refused before anything is compiled."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from qpr_jax.encoders.maxima import SCORES
from qpr_jax.errors import UserError
from qpr_jax.losses.streaming import tile_of
from qpr_jax.training.batches import BatchShape

GIB = 2**30
# Questions at a time of which the kept activations are small beside everything else.
SMALL_CHUNK = 4096


class Memory(NamedTuple):
    """Estimated bytes on a device: of parameters and Adam, of the encoder's and the loss's work."""

    state: int
    encoder: int
    loss: int


def estimated(
    settings: ConfigDict, shape: BatchShape, *, devices: int, vocabulary_size: int
) -> Memory:
    """What a step holds at a time, from the arrays of which that is most.

    shape: of a batch's share, the tightest; `devices`: which share the batch.
    """
    pairs = settings.batch_size // devices
    everyone = settings.batch_size + settings.hard_negatives
    questions = sum(rows for rows, _ in shape.blocks)
    embedding, filters, output = settings.embedding_dim, settings.filters, settings.output_dim
    features = len(settings.windows) * filters

    table = vocabulary_size * embedding
    dense = sum(settings.windows) * embedding * filters + features * output
    copies = 4 if settings.ema_steps else 3  # the values, two moments, and the average
    products = shape.distinct * sum(settings.windows) * filters
    at_once = settings.encode_chunk or questions
    largest = max(min(rows, at_once) * width for rows, width in shape.blocks) * filters
    # The table of products and its gradient; a word's row, its moments, and the gradient of them;
    # a few arrays of the sums of a chunk; of each question the maxima and where they are.
    encoder = 2 * products + 6 * shape.words * embedding + 3 * min(SCORES, largest)
    if not settings.encode_chunk:
        encoder += 2 * questions * features
    by_hand = settings.loss == "sdml" and settings.distance == "ssd" and settings.prior == "uniform"
    rows = tile_of("auto", pairs, everyone, by_hand=by_hand) or pairs
    if settings.loss == "triplet":
        rows = pairs
    loss = (6 * everyone + 3 * pairs) * output + 3 * rows * everyone
    return Memory(*(4 * numbers for numbers in (copies * (table + dense), encoder, loss)))


def available(device: jax.Device) -> int:
    """Bytes that a training may take: on CPU for all devices together, else of this one."""
    if device.platform != "cpu":
        return int((device.memory_stats() or {}).get("bytes_limit", 1 << 62))
    limits = [1 << 62]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limits += [int(line) for line in _lines(path) if line.strip().isdigit()]
    return min(limits)


def _lines(path: str) -> list[str]:
    try:
        return pathlib.Path(path).read_text().splitlines()
    except OSError:  # not on this system
        return []


def refuse_too_large(
    settings: ConfigDict,
    shape: BatchShape,
    *,
    devices: int,
    sharing: int,
    vocabulary_size: int,
    limit: int,
) -> Memory:
    """The estimate; UserError, with the setting that would make it fit, where it does not.

    devices: which share the batch. sharing: which of them share `limit` bytes.
    """

    def need(**changes: int) -> int:
        changed = settings.copy_and_resolve_references()
        changed.update(changes)
        found = estimated(changed, shape, devices=devices, vocabulary_size=vocabulary_size)
        return sharing * sum(found)

    if need() <= limit:
        return estimated(settings, shape, devices=devices, vocabulary_size=vocabulary_size)
    remedy = "lower `--config.filters` or `--config.vocabulary_size`"
    if not settings.encode_chunk and need(encode_chunk=SMALL_CHUNK) <= limit:
        remedy = f"set `--config.encode_chunk={SMALL_CHUNK}`, which changes no result"
    else:
        size = settings.batch_size // 2
        while size >= devices and need(batch_size=size, encode_chunk=SMALL_CHUNK) > limit:
            size //= 2
        if size >= devices:
            size -= size % devices
            remedy = f"set `--config.batch_size={size}` and `--config.encode_chunk={SMALL_CHUNK}`"
    raise UserError(
        f"a step needs about {need() / GIB:.1f} GiB of memory, and {limit / GIB:.1f} GiB are "
        f"there; {remedy}, or train on more devices"
    )
