"""uvicorn's HTTP protocol with limits on slow and oversized clients, and errors in JSON."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qpr_jax.serving.limits import LIMITS, Limits
from qpr_jax.serving.observer import VERSION_HEADER, make_request_id


class Protocol(HttpToolsProtocol):
    """Closes connections that send an endless head or do not read their answers.

    uvicorn has no limit for either. Requests that are not HTTP are answered in JSON, as all other
    errors are.
    """

    limits: Limits = LIMITS

    @classmethod
    def limited(cls, limits: Limits) -> type[Protocol]:
        """The protocol with these limits."""
        return type(cls.__name__, (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # noqa: D102
        super().connection_made(transport)
        self._head_bytes = 0  # received since the last complete head, body part or request
        self._unread_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.connections:
            transport.abort()
        else:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._stop_head_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > self.limits.head and not self.transport.is_closing():
            line = f"expected a head of at most {self.limits.head:,} bytes"
            self._send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, line)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that uvicorn cannot parse; uvicorn's own answer is plain text."""
        self._send_error(HTTPStatus.BAD_REQUEST, "expected an HTTP/1.1 request, got other bytes")

    def on_message_begin(self) -> None:  # noqa: D102
        super().on_message_begin()
        self._start_head_timer()

    def on_headers_complete(self) -> None:  # noqa: D102
        self._stop_head_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:  # noqa: D102
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:  # noqa: D102
        self._head_bytes = 0
        super().on_message_complete()

    def pause_writing(self) -> None:  # noqa: D102
        self._unread_timer = self.loop.call_later(self.limits.unread_seconds, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:  # noqa: D102
        if self._unread_timer:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self.transport.close)

    def _stop_head_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _send_error(self, status: HTTPStatus, line: str) -> None:
        body = json.dumps({"error": line}).encode()
        name, version = VERSION_HEADER
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
            f"x-request-id: {make_request_id()}\r\n{name.decode()}: {version.decode()}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
