"""A health check on a separate port, which EmoDB's Java client expects.

The client requests ``/healthcheck`` one port above the service, and sends nothing more until the answer is 200. The
port is served by a thread of the parent process, so it answers while workers are being replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading

HEAD_TIMEOUT = 10
MAX_HEAD_BYTES = 8 * 1024
MAX_CONNECTIONS = 64
"""Max open connections; further ones are closed."""
CHECK_TIMEOUT = 5
"""Timeout for the service's own ``/__lbheartbeat__``, in seconds; it is healthy if that answers 200 in time."""


class HealthPort:
    """Answers GET and HEAD of ``/healthcheck`` with 200 or 503, and anything else with 404.

    It listens from its creation on, but answers only after :meth:`start`.

    Raises:
        OSError: The service cannot listen on the address.
    """

    def __init__(self, host: str, port: int, service: tuple[str, int], *, tls: bool = False) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._service = service
        # The process connects to itself, so it need not verify the certificate.
        self._context = ssl._create_unverified_context() if tls else None  # noqa: S323, SLF001 - the documented way
        self._open = 0

    def start(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="queuey-health", daemon=True).start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._handle, sock=self._listener, limit=MAX_HEAD_BYTES)
        async with server:
            await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(HEAD_TIMEOUT + CHECK_TIMEOUT):
                        head = await reader.readuntil(b"\r\n\r\n")
                        writer.write(await self._answer(head))
                        await writer.drain()
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, path, _ = head.split(b"\r\n", 1)[0].split(b" ", 2)
        if method not in {b"GET", b"HEAD"} or path.partition(b"?")[0] != b"/healthcheck":
            status, body = b"404 Not Found", b"{}"
        elif await self._is_service_healthy():
            status, body = b"200 OK", b'{"queuey":{"healthy":true}}'
        else:
            status, body = b"503 Service Unavailable", b'{"queuey":{"healthy":false}}'
        lines = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        return lines % (status, len(body)) + (b"" if method == b"HEAD" else body)

    async def _is_service_healthy(self) -> bool:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                reader, writer = await asyncio.open_connection(*self._service, ssl=self._context)
                with contextlib.closing(writer):
                    writer.write(b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        except (OSError, ValueError):
            return False
