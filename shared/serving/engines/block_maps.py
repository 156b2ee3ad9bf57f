"""Asking an engine process for its map of blocks, and waiting for what it sends, unless it is gone first."""

import asyncio
from itertools import count

from shared.serving.engines.open_requests import Send

ANSWER_S = 5.0  # an engine in a long step answers behind it


class BlockMaps:
    """The questions that are open. send: a frame to the engine process that runs now, if there is one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = count()

    async def ask(self) -> bytes:
        """As Engine.block_map has it; empty when no answer comes."""
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send("map", number)
        try:
            return await asyncio.wait_for(future, ANSWER_S)
        except TimeoutError:
            return b""
        finally:
            self._asked.pop(number, None)

    def on_map(self, number: int, blocks: bytes) -> None:
        """A map has come; the one who asked may have given up."""
        if (future := self._asked.get(number)) is not None and not future.done():
            future.set_result(blocks)

    def on_death(self) -> None:
        """The engine process is gone, and what it was asked with it."""
        for number in self._asked:
            self.on_map(number, b"")
