"""What the service checks before it looks at a request: host, rate, load, size and time."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Collection
from typing import Any

from qpr_jax.errors import spell
from qpr_jax.serving.limits import Limits
from qpr_jax.serving.models import shorten

UNLIMITED = ("/health", "/ready", "/metrics")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(?::[0-9]*)?")
_ADDRESSES = 10_000  # whose rates are kept; further ones are not limited while as many are busy

Message = dict[str, Any]


class _TooLargeError(Exception):
    pass


class Rates:
    """How many requests a second each client's address may send, up to a second's worth at once.

    The generic cell rate algorithm (ITU-T I.371): a number for each address.
    """

    def __init__(self, rate: float) -> None:
        """rate: requests a second; 0: any number."""
        self._rate = rate
        # When the requests of an address so far would end, were they sent at the rate.
        self._ends: dict[str, float] = {}

    def wait(self, address: str, now: float) -> float:
        """Count a request; or the seconds for which the client should wait, if it is too many."""
        if not self._rate:
            return 0.0
        end = max(self._ends.get(address, now), now) + 1 / self._rate
        if (early := end - now - max(1.0, 1 / self._rate)) > 1e-9:
            return early
        if len(self._ends) >= _ADDRESSES:
            self._ends = {name: value for name, value in self._ends.items() if value > now}
        if len(self._ends) < _ADDRESSES or address in self._ends:
            self._ends[address] = end
        return 0.0


class Guard:
    """An ASGI application that checks requests and passes them whole to another one.

    It reads the body of a request before it calls the other application, which therefore never
    waits for a client.
    """

    def __init__(self, app: Any, *, hosts: Collection[str], limits: Limits) -> None:
        """Wrap `app`.

        Args:
          hosts: names allowed in the `Host` header, without port; "*" allows all. Other names are
            refused, since a web page whose domain name was pointed at this address (DNS rebinding)
            could otherwise read the answers.
          limits: of bodies, and of requests at a time and a second. Those that `UNLIMITED` names
            count nowhere: they cost little, and must be answered under load, too.
        """
        self._app, self._limits = app, limits
        self._hosts = None if "*" in hosts else {host.lower().encode() for host in hosts}
        self._rates = Rates(limits.rate)
        self._in_flight = 0

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif (wrong := self._wrong_host(scope)) is not None:
            line = f"expected a `Host` that this server allows, got {shorten(wrong)}; "
            await _send_error(send, 400, line + spell("start it with {allowed_host=NAME}"))
        elif scope["path"] not in UNLIMITED and (seconds := self._too_fast(scope)):
            line = f"expected at most {self._limits.rate:g} requests a second, got more"
            await _send_error(send, 429, line, retry=math.ceil(seconds))
        elif scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
        else:
            await self._read_and_forward(scope, receive, send)

    def _too_fast(self, scope: Message) -> float:
        address = (scope.get("client") or [""])[0]
        return self._rates.wait(address, time.monotonic())

    def _wrong_host(self, scope: Message) -> str | None:
        """What the `Host` header says, or "none"; None where it is allowed."""
        if self._hosts is None:
            return None
        given = [value for name, value in scope["headers"] if name == b"host"]
        match = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if match and match[1] in self._hosts:
            return None
        return b", ".join(given).decode("latin-1") or "none"

    async def _read_and_forward(self, scope: Message, receive: Any, send: Any) -> None:
        """Pass a request on with its whole body, if there are not too many at a time."""
        if self._in_flight >= self._limits.concurrent:
            line = f"{self._limits.concurrent} requests are being answered; wait"
            await _send_error(send, 429, line)
            return
        self._in_flight += 1
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            line = f"expected the body within {self._limits.body_seconds:g} s"
            await _send_error(send, 408, line)
        except _TooLargeError:
            line = f"expected a body of at most {self._limits.body:,} bytes, got more"
            await _send_error(send, 413, line)
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)
        finally:
            self._in_flight -= 1

    async def _read(self, scope: Message, receive: Any) -> bytes | None:
        """The whole body; None where the client disconnected before it was complete."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._limits.body:
            raise _TooLargeError
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limits.body:
                raise _TooLargeError
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Any) -> Any:
    """An ASGI `receive` that gives `body`, then what `receive` gives."""
    left = [body]

    async def receive_body() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return receive_body


async def _send_error(send: Any, status: int, line: str, *, retry: int = 1) -> None:
    body = json.dumps({"error": line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    more = {408: [(b"connection", b"close")], 429: [(b"retry-after", b"%d" % retry)]}
    headers += more.get(status, [])
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
