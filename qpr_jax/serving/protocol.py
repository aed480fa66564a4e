"""HTTP as uvicorn speaks it, with limits on what comes before and around a request's body."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_BYTES = 1 << 16
_HEAD_SECONDS = 10.0
_UNREAD_SECONDS = 30.0
_CONNECTIONS = 900  # of the 1,024 files that a process may usually open
_SAID = b'{"error": "expected a head of at most 64 KiB"}'
_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
) % (len(_SAID), _SAID)


class Protocol(HttpToolsProtocol):
    """One that ends connections which send a head without end, or do not read their answers.

    uvicorn itself keeps what they send, and waits, for as long as they like.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # noqa: D102
        super().connection_made(transport)
        self._unused = 0  # bytes since the last that were of use
        self._unread: asyncio.TimerHandle | None = None
        self._head: asyncio.TimerHandle | None = None
        if len(self.connections) > _CONNECTIONS:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._head_came()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._unused += len(data)
        super().data_received(data)
        if self._unused > _HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LONG)
            self.transport.close()

    def on_message_begin(self) -> None:  # noqa: D102
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:  # noqa: D102
        self._head_came()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:  # noqa: D102
        self._unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:  # noqa: D102
        self._unused = 0
        super().on_message_complete()

    def pause_writing(self) -> None:  # noqa: D102
        self._unread = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:  # noqa: D102
        if self._unread:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _head_came(self) -> None:
        self._unused = 0
        if self._head:
            self._head.cancel()
            self._head = None
