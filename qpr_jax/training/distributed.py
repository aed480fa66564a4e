"""Training on all devices of one or several processes: mesh, start-up, messages."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qpr_jax.errors import Interrupted, UserError, format_error

log = logging.getLogger(__name__)

AXIS = "data"
T = TypeVar("T")
HEARTBEAT = 30  # seconds of silence after which a process counts as lost


def make_mesh(devices: int = 0) -> Mesh:
    """Make a mesh of the first `devices` of all processes, 0: all; UserError if there are fewer."""
    available = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if devices > len(available):
        raise UserError(f"expected at most {len(available)}, got {devices}", setting="devices")
    return Mesh(np.array(available[: devices or len(available)]), (AXIS,))


def require_shares(setting: str, size: int, parts: int) -> None:
    """Raise UserError if `size` is no multiple of the `parts` that the devices share."""
    if size % parts:
        what = f"expected a multiple of {parts}, which the devices can share evenly, got {size}"
        remedy = f"try `{setting}={size // parts * parts or parts}`"
        raise UserError(what, setting=setting, remedy=remedy)


def split_over(tree: Any, mesh: Mesh) -> Any:
    """Place a tree of NumPy arrays, the parts of this process's devices, split over the mesh."""
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    return jax.make_array_from_process_local_data(jax.tree.map(lambda _: sharding, tree), tree)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Place a tree of arrays whole on every device; of several processes, those of process 0."""
    arrays = from_first(tree)
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.make_array_from_process_local_data(jax.tree.map(lambda _: whole, arrays), arrays)


def local_devices(mesh: Mesh) -> slice:
    """The positions in the mesh of this process's devices, which `make_mesh` puts side by side."""
    places = [i for i, d in enumerate(mesh.devices) if d.process_index == jax.process_index()]
    return slice(places[0], places[-1] + 1)


def is_first() -> bool:
    """Return whether this is process 0, which writes all files."""
    return jax.process_index() == 0


def from_first(tree: Any) -> Any:
    """The arrays of process 0, in all processes: processors of two types may round differently."""
    return multihost_utils.broadcast_one_to_all(tree)


def broadcast_from_first(make: Callable[[], Any]) -> Any:
    """Call `make` in process 0 and return its value, of JSON and any size, in all processes."""
    if not jax.distributed.is_initialized():
        return make()
    message = np.array(bytearray(json.dumps(make()).encode() if is_first() else b""), np.uint8)
    # All processes must give arrays of one shape, so the length goes first.
    length = int(from_first(np.int32(len(message))))
    sent = from_first(np.resize(message, length))
    return json.loads(bytes(sent.astype(np.uint8)))


def in_turn(make: Callable[[], T]) -> T:
    """Call `make` in process 0, then in the others, which find the files that it wrote."""
    value = make() if is_first() else None
    broadcast_from_first(lambda: None)
    return make() if value is None else value


def any_process(flag: bool) -> bool:
    """Return whether `flag` is true in any process. All processes must call this together."""
    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


@contextlib.contextmanager
def connect_processes(several: bool) -> Iterator[None]:
    """Connect this process to the others that train with it, if there are several.

    A process that fails prints the error and exits at once, because an orderly shutdown would wait
    for the others, which wait for it. The others notice a missed heartbeat or a broken connection.
    After `disconnect`, errors are raised as usual.
    """
    if not several:
        yield
        return
    _initialize()
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # Interrupted is raised in all processes, by agreement.
        if not jax.distributed.is_initialized() or isinstance(error, Interrupted):
            disconnect()
            raise
        line, status = format_error(error) or (_format_lost_process(error), 1)
        if line:
            print(f"process {jax.process_index()}: {line}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    disconnect()


def disconnect() -> None:
    """Wait for all processes, then disconnect; this process can still use its own devices."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _format_lost_process(error: BaseException) -> str:
    """Return the line to print if another process does not answer, else ""."""
    signs, text = "heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED|Gloo|NCCL|onnection", str(error)
    if not isinstance(error, jax.errors.JaxRuntimeError) or not re.search(signs, text):
        return ""
    reason = text.split("\n")[0].split(". ")[0]
    what = f"lost another process ({reason}); see what it printed"
    return f"error: {what}; the same command in all processes resumes from the last checkpoint"


def _initialize() -> None:
    # Under SLURM, MPI and on a TPU pod JAX finds the others without the variables.
    # The service would catch SIGTERM, which the training loop handles.
    jax.config.update("jax_enable_preemption_service", False)
    count, number = (os.environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    try:
        jax.distributed.initialize(
            num_processes=int(count) if count else None,
            process_id=int(number) if number else None,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        what = f"could not connect to the other processes ({reason})"
        remedy = "set JAX_COORDINATOR_ADDRESS to HOST:PORT of process 0, JAX_NUM_PROCESSES, and "
        remedy += "JAX_PROCESS_ID of each, from 0; or start them under SLURM, MPI or on a TPU pod"
        raise UserError(what, setting="distributed", remedy=remedy) from error
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        disconnect()
        numbers = ", ".join(str(counts[process]) for process in sorted(counts))
        what = f"expected as many devices in each process, got {numbers}"
        remedy = "start each process on a machine of the same devices, or set CUDA_VISIBLE_DEVICES"
        raise UserError(what, setting="distributed", remedy=remedy)
    # When JAX hears that a process was lost, it prints the reason and ends this one. Python's
    # stack, printed after it, would hide the reason.
    faulthandler.disable()
    if not is_first():
        logging.getLogger("qpr_jax").setLevel(logging.WARNING)
    log.info("process %d of %d", jax.process_index(), jax.process_count())
