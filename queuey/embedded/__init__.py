"""The service inside your program, without a server, a socket or a key.

:func:`open` returns a :class:`~queuey.client.Client` and :func:`open_async` an :class:`~queuey.client.AsyncClient`.
This process answers their requests, with the code that ``queuey serve`` runs. Closing the client stops the service.
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
"""The server address in errors of an embedded client. No connection is made to it."""
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def open(  # noqa: A001 - named like gzip.open and shelve.open
    store: str | Path, *, application: str = DEFAULT_APPLICATION, settings: Mapping[str, str] = _NO_SETTINGS
) -> Client:
    """Opens a store in this process and returns a client. Close it, or use it as a context manager.

    Example:
        >>> from queuey import embedded
        >>> with embedded.open("jobs.db") as client:
        ...     client.create_queue("mails").new
        ...     client.send("mails", "hello").partition
        True
        1

    Args:
        store: The SQLite file, which is created if it does not exist; a directory with a store of ``queuey serve``; or
            the URL of a store, as in the setting ``store``.
        application: The client's application. In a SQLite store it is created if it does not exist.
        settings: Settings of the service by name, such as ``{"sync": "normal"}``. All others come from the environment
            and the settings file, as for ``queuey serve``. Settings for listening, users, the console and the facades
            have no effect.

    Raises:
        InvalidArgument: A setting is not valid; all users may write to the directory; the standard library's
            ``sqlite3`` has the file open in this process; or a parent process had it open when it forked this one.
        ServiceUnavailable: The file or the directory cannot be used, the disk is full, or the file was written by a
            newer version, belongs to another user, or is a copy without its log.
    """
    service = EmbeddedService.open(store, application, settings)
    return Client(URL, key="", application=application, transport=InProcessPool(service, application))  # type: ignore[arg-type] # has all methods that the client calls


def open_async(
    store: str | Path, *, application: str = DEFAULT_APPLICATION, settings: Mapping[str, str] = _NO_SETTINGS
) -> AsyncClient:
    """Async variant of :func:`open`, for asyncio. The call itself blocks while it opens the file.

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
