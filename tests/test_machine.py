import numba

from qpr_jax import machine
from tests.runs import run_python

FORK = """
import os, signal, sys
from qpr_jax import read_encoder

encoder = read_encoder("open_student")
encoder.encode(["rice"])
encoder._folded._lock.acquire()  # as a thread that computes rows while another one forks
child = os.fork()
if child == 0:
    signal.alarm(30)
    encoder.encode(["what is the best way to learn python"])
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
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
