"""The mesh, and messages between two processes."""

import os
import socket
import subprocess
import sys

import jax
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.distributed import make_mesh, own_devices, require_shares
from tests.xla import QUICK_XLA

PROCESS = """
import sys

import jax
from qpr_jax.training import distributed

port, process = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(f"localhost:{port}", 2, process)
for value in (["x" * 64] * 200, {}):  # the first is of 13,000 bytes
    found = distributed.broadcast_from_first(lambda: value if process == 0 else "another")
    assert found == value
assert [distributed.any_process(process == i) for i in range(3)] == [True, True, False]
distributed.disconnect()
"""


def test_a_message_of_any_size_reaches_all_processes():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, port, str(i)],
            env=os.environ | {"XLA_FLAGS": QUICK_XLA},  # of one device each
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


def test_a_mesh_takes_the_first_devices():
    mesh = make_mesh(4)
    assert mesh.devices.tolist() == jax.devices()[:4]
    assert own_devices(mesh) == slice(0, 4)
    assert make_mesh().devices.size == 8
    with pytest.raises(UserError, match="`devices`: expected at most 8, got 9"):
        make_mesh(9)


def test_a_batch_that_the_devices_cannot_share_is_refused():
    require_shares("batch_size", 16, 8)
    for size, proposed in ((12, 8), (3, 8), (100, 96)):
        with pytest.raises(
            UserError, match=rf"`batch_size`: .* 8, .*; try `batch_size={proposed}`"
        ):
            require_shares("batch_size", size, 8)
