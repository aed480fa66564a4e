"""Several processes, on one machine or many, that train as one."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from qpr_jax.errors import Interrupted, UserError, format_error
from qpr_jax.training.config import DistributedConfig

log = logging.getLogger(__name__)

_MESSAGE_BYTES = 4096


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


@contextlib.contextmanager
def joined(distributed: DistributedConfig) -> Iterator[None]:
    """Train together with the other processes that the settings name; alone if they name none.

    A process that fails says why and ends at once: an orderly end would wait for the others, which
    wait for it. The others are told by the heartbeat, or by the communication that breaks off.
    After `leave` nobody waits, and errors are raised as ever.
    """
    if not distributed.enabled:
        yield
        return
    _initialize(distributed)
    try:
        yield
    except Interrupted:  # of all processes, who agreed on it
        leave()
        raise
    except (Exception, KeyboardInterrupt) as error:
        if not jax.distributed.is_initialized():
            raise
        line, status = format_error(error) or _lost(error) or ("", 1)
        if line:
            print(f"process {jax.process_index()}: {line}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    leave()


def _lost(error: BaseException) -> tuple[str, int] | None:
    """The line and the exit status, where the error is that another process does not answer."""
    signs = ("heartbeat", "UNAVAILABLE", "DEADLINE_EXCEEDED", "Gloo", "NCCL", "onnection")
    if not isinstance(error, jax.errors.JaxRuntimeError) or not any(s in str(error) for s in signs):
        return None
    reason = str(error).split("\n")[0].split(". ")[0]
    return (
        f"error: lost another process ({reason}); see what it said; the same command in all "
        "processes goes on from the last checkpoint",
        1,
    )


def leave() -> None:
    """Wait until all are here, and part; the devices of this process stay usable."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _initialize(distributed: DistributedConfig) -> None:
    given: dict[str, Any] = {}
    if distributed.coordinator:
        given = {
            "coordinator_address": distributed.coordinator,
            "num_processes": distributed.num_processes,
            "process_id": distributed.process_id,
        }
    # It would catch SIGTERM in place of the loop, and before there is a loop to end.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(**given, heartbeat_timeout_seconds=distributed.heartbeat)
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"could not connect to the other processes ({reason})",
            remedy="set {distributed.coordinator} to HOST:PORT of process 0, "
            "{distributed.num_processes}, and {distributed.process_id} of each, from 0, or start "
            "them under SLURM, MPI or on a TPU pod, which JAX recognizes",
        ) from error
    # JAX ends this process, with the reason, when it hears that another was lost; what Python was
    # doing then would only bury the reason.
    faulthandler.disable()
    if not is_first():
        logging.getLogger("qpr_jax").setLevel(logging.WARNING)
    log.info("process %d of %d", jax.process_index(), jax.process_count())


def broadcast_from_first(make: Callable[[], Any]) -> Any:
    """What `make` gives in the first process, in all; anything that JSON holds."""
    if jax.process_count() == 1:
        return make()
    message = np.zeros(_MESSAGE_BYTES, np.uint8)
    if is_first():
        encoded = json.dumps(make()).encode()
        if len(encoded) > len(message):
            raise ValueError(f"expected at most {len(message)} bytes, got {len(encoded)}")
        message[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    heard = multihost_utils.broadcast_one_to_all(message)
    return json.loads(bytes(np.asarray(heard, np.uint8)).rstrip(b"\0"))


def any_of_all(flag: bool) -> bool:
    """Whether `flag` is true in any process."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
