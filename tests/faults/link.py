"""The link between data centres: forwards connections from address to address, and can be cut and healed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

CHUNK = 1 << 16
PATIENCE = 60.0

Address = tuple[str, int]


class Link:
    """Forwards TCP connections in a thread of its own. Use it in a ``with`` statement.

    Cutting it resets all connections; while it is cut, new ones are closed at once.

    Args:
        ways: Where to listen, and where each leads.
    """

    def __init__(self, ways: Mapping[Address, Address]) -> None:
        self._ways = ways
        self._severed = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self.carried = 0
        """Bytes, both ways together."""

    def cut(self) -> None:
        """Lets nothing through any more."""
        self._do(self._cut_all())

    def heal(self) -> None:
        """Lets new connections through again."""
        self._severed.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        for near, far in self._ways.items():
            self._servers.append(await asyncio.start_server(self._forwarding(far), *near))

    def _forwarding(self, far: Address) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        return lambda reader, writer: self._connected(reader, writer, far)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._cut_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=1.0)

    async def _cut_all(self) -> None:
        self._severed.set()
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, far: Address) -> None:
        opened = [writer]
        try:
            if self._severed.is_set():
                return
            self._writers.add(writer)
            onward, back = await asyncio.open_connection(*far)
            opened.append(back)
            if self._severed.is_set():
                return
            self._writers.add(back)
            await asyncio.gather(self._carry(reader, back), self._carry(onward, writer))
        except OSError:
            pass
        finally:
            for one in opened:
                self._writers.discard(one)
                one.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            self.carried += len(data)
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
