"""Processes that meet before a training, and what they say of those that do not come."""

import concurrent.futures
import socket
import time

import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.rendezvous import meet


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def met(address, count, processes, timeout=30.0):
    """What each process raises, None where it met all others."""
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        waiting = [pool.submit(meet, address, count, process, timeout) for process in processes]
        errors = [future.exception() for future in waiting]
    assert all(error is None or isinstance(error, UserError) for error in errors), errors
    return errors


def test_all_come_in_any_order_and_again_at_the_same_address(address):
    for processes in ((0, 1, 2), (2, 1, 0)):
        assert met(address, 3, processes) == [None] * 3
    assert met(address, 1, [0]) == [None]


def test_all_that_came_name_the_process_that_did_not(address):
    errors = met(address, 4, [0, 2], timeout=0.5)
    for error in errors:
        assert "process 1, 3 of 4 did not come; those that did: 2 (" in str(error)
        assert "127.0.0.1)" in str(error)


def test_a_missing_first_process_is_named_with_its_address(address):
    (error,) = met(address, 2, [1], timeout=0.5)
    assert f"process 0 did not answer at {address} (" in str(error)


def test_two_processes_of_one_number_are_refused(address):
    errors = met(address, 3, [0, 1, 1])
    assert all("two processes have the number 1" in str(error) for error in errors)


def test_others_that_connect_are_no_processes(address):
    host, port = address.split(":")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, address, 2, 0, 30.0)
        for message in (
            b"GET / HTTP/1.1\r\n\r\n",
            b'{"process": 7}\n',
            b'{"process": "1"}\n',
            b"[]\n",
        ):
            until = time.monotonic() + 10
            while True:
                try:
                    stranger = socket.create_connection((host, int(port)))
                    break
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.02)
            stranger.sendall(message)
            stranger.close()
        meet(address, 2, 1, 30.0)
        assert first.result() is None


def test_a_port_that_another_program_has_is_named(address):
    port = int(address.split(":")[1])
    with socket.create_server(("", port)), pytest.raises(UserError, match=f"listen on port {port}"):
        meet(address, 2, 0, 5.0)
