"""A fixed amount of a resource, shared by concurrent requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Budget:
    """`total` units, granted to tasks in the order in which they ask."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._asking: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taking(self, units: int) -> AsyncIterator[None]:
        """Wait until `units`, at most the total, are free; hold them inside the block."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.append((units, granted))
        self._grant()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._left += units
            self._grant()

    def _grant(self) -> None:
        while self._asking:
            units, granted = self._asking[0]
            if granted.cancelled():
                self._asking.popleft()
            elif units <= self._left:
                self._left -= units
                self._asking.popleft()
                granted.set_result(None)
            else:
                return
