"""The end of a service: nobody new comes in, and those who are in may finish, within the time they are given."""

import asyncio


class Draining(RuntimeError):
    """The server is ending and takes no new requests."""


class Drain:
    """Counts who is in. To be used on one event loop."""

    def __init__(self) -> None:
        self.draining = False
        self.num_open = 0
        self._hurried = False
        self._changed = asyncio.Event()  # somebody left, or there is no time any more

    def enter(self) -> None:
        """Raises Draining once draining has begun."""
        if self.draining:
            raise Draining("the server is shutting down and takes no new requests")
        self.num_open += 1

    def leave(self) -> None:
        """For each that has entered, once. Raises RuntimeError when nobody is in."""
        if not self.num_open:
            raise RuntimeError("leave was called more often than enter")
        self.num_open -= 1
        self._changed.set()

    def begin(self) -> None:
        """From now on nobody enters."""
        self.draining = True

    def hurry(self) -> None:
        """Whoever waits for the others to leave waits no more."""
        self._hurried = True
        self._changed.set()

    async def wait(self, grace_s: float) -> bool:
        """Let nobody in any more, and wait until all have left: at most grace_s seconds in all, and not if hurried.

        Returns whether all have left.
        """
        # exercise 14.8: begin; as long as somebody is in and time is left: clear self._changed, and wait for it
        self.begin()
        try:
            async with asyncio.timeout(grace_s):
                while self.num_open and not self._hurried:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.num_open == 0
        # end
