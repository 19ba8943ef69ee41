"""A network between members and a server of ZooKeeper that tests can cut or silence.

It runs in a thread of its own, so that it goes on while a test's loop waits for another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from typing import Any

PIECE = 65_536
READY_SECONDS = 30


class Proxy:
    """Passes connections on to a server.

    Args:
        connect_string: ``address:port`` of the server; of several the first is taken.

    Attributes:
        address: Where it listens, as ``address:port``.
    """

    def __init__(self, connect_string: str) -> None:
        host, _, port = connect_string.partition(",")[0].rpartition(":")
        self._target = host, int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._answering = asyncio.Event()
        self._answering.set()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())

    def cut(self) -> None:
        """Breaks all connections and refuses further ones."""
        self._run(self._cut())

    def drop(self) -> None:
        """Breaks all connections; new ones are let through."""
        self._run(self._drop())

    def heal(self) -> None:
        """Lets connections through again."""
        self._run(self._listen())

    def silence(self) -> None:
        """Keeps connections and accepts new ones, but passes nothing on."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        self.mute()

    def mute(self) -> None:
        """Passes on what members send, but not what the server answers."""
        self._loop.call_soon_threadsafe(self._answering.clear)

    def resume(self) -> None:
        """Passes on what has come meanwhile, and what comes."""
        self._loop.call_soon_threadsafe(self._flowing.set)
        self._loop.call_soon_threadsafe(self._answering.set)

    @property
    def connections(self) -> int:
        """How many there are to the server."""
        return len(self._writers) // 2

    def close(self) -> None:
        """Ends it."""
        self._run(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(READY_SECONDS)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._drop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            self._writers.add(writer)
            theirs, ours = await asyncio.open_connection(*self._target)
            self._writers.add(ours)
            await asyncio.wait(
                {
                    asyncio.create_task(self._pass(reader, ours, self._flowing)),
                    asyncio.create_task(self._pass(theirs, writer, self._answering)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
            ours.transport.abort()
            self._writers.discard(ours)
        writer.transport.abort()
        self._writers.discard(writer)

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                await allowed.wait()
                writer.write(data)
                await writer.drain()
        await allowed.wait()  # silence hides an end as well
