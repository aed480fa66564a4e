"""uvicorn's HTTP protocol with limits on slow and oversized clients, and errors in JSON."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_BYTES = 1 << 16
_HEAD_SECONDS = 10.0
_UNREAD_SECONDS = 30.0
_CONNECTIONS = 900  # a process may usually open 1,024 files


class Protocol(HttpToolsProtocol):
    """Closes connections that send an endless head or do not read their answers.

    uvicorn has no limit for either. Requests that are not HTTP are answered in JSON, as all other
    errors are.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # noqa: D102
        super().connection_made(transport)
        self._head_bytes = 0  # received since the last complete head, body part or request
        self._unread_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > _CONNECTIONS:
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
        if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self._send_error(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "expected a head of at most 64 KiB"
            )

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
        self._unread_timer = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:  # noqa: D102
        if self._unread_timer:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _stop_head_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _send_error(self, status: HTTPStatus, line: str) -> None:
        body = json.dumps({"error": line}).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
