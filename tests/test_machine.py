import numba

from qpr_jax import machine
from tests.runs import run_python

FORK = """
import os, signal, sys, threading
import numpy as np
from qpr_jax.encoders.cnn_kernels import FoldedCnn
from qpr_jax.machine import renew_after_fork

class Owner:
    def __init__(self):
        self.renewed = 0
        renew_after_fork(self, Owner.renew)
    def renew(self):
        self.renewed += 1

owner, gone = Owner(), Owner()
del gone
rng = np.random.default_rng(0)
embedding = rng.standard_normal((64, 64), np.float32)
kernels, eye = [rng.standard_normal((2, 64, 8), np.float32)], np.eye(8, dtype=np.float32)
tables = FoldedCnn(embedding, kernels, [eye[0]], eye, normalize=False)
entered, ended = threading.Event(), threading.Event()

def hold():  # as a thread that computes rows while another one forks
    with tables._lock:
        entered.set()
        ended.wait()

thread = threading.Thread(target=hold)
thread.start()
entered.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    tables.compute(np.arange(9))
    os._exit(0 if owner.renewed == 1 else 1)
status = os.waitpid(child, 0)[1]
ended.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(status) or owner.renewed)
"""


def test_a_child_that_is_forked_while_a_thread_encodes_can_encode():
    """That it can search is in the tests of indexes."""
    run_python("-c", FORK)


def test_loops_without_a_folder_for_compiled_code_work_and_say_once_which_to_give(
    monkeypatch, caplog
):
    njit = numba.njit
    njit(lambda x: x)(1)  # so that numba has imported the loops of its own

    def without_folders(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", without_folders)
    machine._say_uncached.cache_clear()
    for _ in range(2):
        assert machine.compile_loop()(lambda x: x + 1)(1) == 2
    assert len(caplog.messages) == 1
    assert "NUMBA_CACHE_DIR" in caplog.text
