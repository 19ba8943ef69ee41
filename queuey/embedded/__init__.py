"""The whole service inside a program: no server, no socket, no key.

:func:`open` gives a :class:`~queuey.client.Client` and :func:`open_async` an :class:`~queuey.client.AsyncClient` whose
requests are answered in this process, by the code that ``queuey serve`` runs. Closing the client ends the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from queuey.client import AsyncClient, Client
from queuey.client.http.servers import DEFAULT_APPLICATION
from queuey.embedded.pools import AsyncInProcessPool, InProcessPool
from queuey.embedded.service import EmbeddedService

__all__ = ["open", "open_async"]

URL = "http://embedded.localhost"
"""The address in the errors of such a client; nothing is connected to it."""
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def open(  # noqa: A001 - as in gzip and shelve
    store: str | Path, *, application: str = DEFAULT_APPLICATION, settings: Mapping[str, str] = _NO_SETTINGS
) -> Client:
    """Opens a store in this process; returns its client. Close it, or use it as a context manager.

    Example:
        >>> from queuey import embedded
        >>> with embedded.open("jobs.db") as client:
        ...     client.create_queue("mails").new
        ...     client.send("mails", "hello").partition
        True
        1

    Args:
        store: The SQLite file, which is made if it is missing; a directory with a store of ``queuey serve``; or the URL
            of a store, as the setting ``store`` has it.
        application: The client's application. A SQLite store gets it if it has none of this name.
        settings: Settings of the service by their names, such as ``{"sync": "normal"}``. Others come from the
            environment and the settings file, as for ``queuey serve``; those of listening, users, the console and the
            facades mean nothing here.

    Raises:
        InvalidArgument: A setting cannot be used; everybody may write to the directory; the standard library's
            ``sqlite3`` has the file open in this process; or a parent process had it open when it forked this one.
        ServiceUnavailable: The file or the directory cannot be used, the disk is full, or the file is of a later
            version.
    """
    service = EmbeddedService.open(store, application, settings)
    return Client(URL, key="", application=application, transport=InProcessPool(service, application))  # type: ignore[arg-type] # it has what the client needs of a pool


def open_async(
    store: str | Path, *, application: str = DEFAULT_APPLICATION, settings: Mapping[str, str] = _NO_SETTINGS
) -> AsyncClient:
    """Async variant of :func:`open`, for asyncio. The call itself blocks for as long as opening a file.

    Example:
        >>> import asyncio
        >>> from queuey import embedded
        >>> async def main():
        ...     async with embedded.open_async("jobs.db") as client:
        ...         return (await client.hello()).store
        >>> asyncio.run(main())
        'sqlite'
    """
    service = EmbeddedService.open(store, application, settings)
    return AsyncClient(URL, key="", application=application, transport=AsyncInProcessPool(service, application))  # type: ignore[arg-type] # as above
