"""Connections to callers who take their time: each wait for a caller has an end, or a few callers could hold them all.

What a caller owes us is a request's head, then its body (see middleware.read_body), and then to read the answer. A
request's own time, in the queue and in the engine, has its deadline.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from shared.serving.errors import ApiError

HEAD_S = 15.0  # for a request's head, from the connection's or the head's first byte on
STALL_S = 60.0  # for the caller's end to make room for more of the answer
# Between two requests. Clients keep theirs for 5 s, load balancers for 60: if we closed first, a request could be on
# its way already, and would be lost.
IDLE_S = 75


class Connection(H11Protocol):
    """uvicorn's connection, with an end to each of those waits."""

    head_s, stall_s = HEAD_S, STALL_S

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.timeout_keep_alive = IDLE_S
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """From now on a whole head is due."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """A head that has begun is to be whole in head_s seconds; while a request is answered nothing is due."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._timer is None:  # something came, and it isn't a whole head
            self._timer = self.loop.call_later(self.head_s, self.transport.abort)

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for a WebSocket is answered as anybody; uvicorn logs two lines each time, on how to have one."""

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. uvicorn's own way ends in a traceback where the request before it was answered."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(ApiError(400, msg, code="invalid_http").body).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
            response = h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request")
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True  # whatever its route still says
        self.transport.close()

    def pause_writing(self) -> None:
        """The caller doesn't read: its buffers are full, and so is ours."""
        super().pause_writing()
        self._stall = self.loop.call_later(self.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The caller reads again."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def timeout_keep_alive_handler(self) -> None:
        """Closing waits for what is still to be sent: not for ever."""
        super().timeout_keep_alive_handler()
        self._cancel()
        self._timer = self.loop.call_later(self.stall_s, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        super().connection_lost(exc)
        self._cancel()
        if self._stall is not None:
            self._stall.cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
