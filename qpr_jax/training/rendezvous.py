"""Processes of a training meet before JAX connects them, so that an error can name who is missing.

JAX itself ends a process whose others do not come with a stack trace of C++. Process 0 listens at
the address that JAX takes afterwards; each other one connects, gives its number, and waits.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time

from qpr_jax.errors import UserError

_PAUSE = 0.2  # seconds between two attempts to connect
_ANSWER = 10  # seconds in which a process must give its number
_LINE = 1 << 12  # bytes, most of a message


def meet(address: str, count: int, process: int, timeout: float) -> None:
    """Wait until all processes have come to `address`, HOST:PORT of process 0.

    Raises:
      UserError: process 0 cannot listen there; two processes have one number; or, after
        `timeout` seconds, some have not come, in all processes that have.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + timeout
    if process:
        _join(host.strip("[]"), int(port), process, until)
    else:
        _gather(int(port), count, until)


def _gather(port: int, count: int, until: float) -> None:
    """Wait in process 0 for the others, then answer all at once."""
    came: dict[int, str] = {}  # number -> IP address
    connections: list[socket.socket] = []
    problem = ""
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(_listen(port))
        except OSError as error:
            raise UserError(
                f"cannot listen on port {port} ({error.strerror})",
                setting="distributed.coordinator",
                remedy="name a free port",
            ) from None
        while len(came) < count - 1 and not problem:
            listener.settimeout(max(0.001, until - time.monotonic()))
            try:
                connection, peer = listener.accept()
            except TimeoutError:
                problem = _missing(came, count)
                break
            stack.enter_context(connection)
            number = _number(connection)
            if number is None or not 0 < number < count:
                continue  # not one of ours
            connections.append(connection)
            if number in came:
                problem = f"two processes have the number {number}, on {came[number]} and {peer[0]}"
            came[number] = peer[0]
        for connection in connections:
            with contextlib.suppress(OSError):  # it ended meanwhile, which JAX notices
                connection.sendall(json.dumps({"problem": problem}).encode() + b"\n")
    if problem:
        raise _not_met(problem)


def _join(host: str, port: int, process: int, until: float) -> None:
    """Connect to process 0, again and again, and wait for its answer."""
    reason = ""
    while (left := until - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as connection:
                connection.sendall(json.dumps({"process": process}).encode() + b"\n")
                # Process 0 may have begun to wait last, and then waits longer.
                connection.settimeout(2 * left + _ANSWER)
                answer = _line(connection)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            problem = answer.get("problem")
            if problem == "":
                return
            if isinstance(problem, str):
                raise _not_met(problem)
            reason = "it closed the connection"
        time.sleep(_PAUSE)
    raise _not_met(f"process 0 did not answer at {host}:{port} ({reason or 'timed out'})")


def _listen(port: int) -> socket.socket:
    """Listen on all interfaces, as JAX does, by IPv6 and IPv4 where there are both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _number(connection: socket.socket) -> int | None:
    """The number that a process gives; None for what is no process of a training."""
    connection.settimeout(_ANSWER)
    try:
        number = _line(connection).get("process")
    except OSError:
        return None
    return number if type(number) is int else None


def _line(connection: socket.socket) -> dict[str, object]:
    """A line of JSON; empty where something else came."""
    with connection.makefile("rb") as file:
        line = file.readline(_LINE)
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _missing(came: dict[int, str], count: int) -> str:
    numbers = ", ".join(str(number) for number in range(1, count) if number not in came)
    addresses = ", ".join(f"{number} ({came[number]})" for number in sorted(came))
    return f"process {numbers} of {count} did not come; those that did: {addresses or 'none'}"


def _not_met(problem: str) -> UserError:
    return UserError(
        f"could not connect to the other processes: {problem}",
        remedy="start the same command on every host, with `distributed.process_id` from 0, and "
        "let them reach `distributed.coordinator`; `distributed.timeout` is how long they wait",
    )
