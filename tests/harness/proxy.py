"""A TCP proxy between programs and servers that a test can cut, silence and heal.

It runs in a thread of its own, so it keeps working while the test's event loop waits for another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Self, cast

from tests.servers.served import free_port

CHUNK = 1 << 16
READY_SECONDS = 60.0

Address = tuple[str, int]


class Proxy:
    """Forwards connections from local addresses to remote ones.

    Args:
        routes: The remote address for each local address to listen on.

    Attributes:
        address: The first local address, as ``address:port``.
    """

    def __init__(self, routes: Mapping[Address, Address]) -> None:
        self.address = "{}:{}".format(*next(iter(routes)))
        self._routes = routes
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending, self._answering = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.resume()
        self.heal()

    @classmethod
    def to(cls, connect_string: str) -> Self:
        """Returns a proxy on a free port for ``address:port``; of a comma-separated list, for the first one."""
        host, _, port = connect_string.partition(",")[0].rpartition(":")
        return cls({("127.0.0.1", free_port()): (host, int(port))})

    def cut(self) -> None:
        """Resets all connections and refuses new ones."""
        self._run(self._cut())

    def drop(self) -> None:
        """Resets all connections and keeps accepting new ones."""
        self._run(self._drop())

    def heal(self) -> None:
        """Listens again after a cut; does nothing while it listens."""
        self._run(self._listen())

    def silence(self) -> None:
        """Keeps connections open and accepts new ones, but forwards nothing until :meth:`resume`."""
        self._loop.call_soon_threadsafe(self._sending.clear)
        self.mute()

    def mute(self) -> None:
        """Forwards what clients send, but not the server's answers, until :meth:`resume`."""
        self._loop.call_soon_threadsafe(self._answering.clear)

    def resume(self) -> None:
        """Forwards everything again, also the bytes received in between."""
        self._loop.call_soon_threadsafe(self._sending.set)
        self._loop.call_soon_threadsafe(self._answering.set)

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(READY_SECONDS)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(READY_SECONDS)

    async def _listen(self) -> None:
        for near, far in self._routes.items() if not self._servers else ():
            self._servers.append(await asyncio.start_server(partial(self._serve, far), *near))

    async def _cut(self) -> None:
        while self._servers:
            self._servers.pop().close()
        await self._drop()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            # Tasks of asyncio that accept a connection end by themselves: cancelled, they would leave its socket open.
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(others)

    async def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, far: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards both directions of a connection until either ends, then aborts both sides."""
        if not self._servers:  # The connection was accepted just before a cut.
            writer.transport.abort()
            return
        opened = [writer]
        self._writers.add(writer)
        self._track(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            answers, onward = await asyncio.open_connection(*far)
            opened.append(onward)
            self._writers.add(onward)
            directions = (reader, onward, self._sending), (answers, writer, self._answering)
            passing = [self._track(asyncio.create_task(self._forward(*direction))) for direction in directions]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for stream in opened:
                stream.transport.abort()
                self._writers.discard(stream)

    def _track(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Lets a cut cancel a task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: asyncio.Event) -> None:
        """Forwards bytes while allowed. A connection that ends while silenced stays open until it is allowed again."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await allowed.wait()
                writer.write(data)
                await writer.drain()
        await allowed.wait()  # a silenced proxy hides the end of a connection as well
