"""Documents of issuers: loaded from a file or over HTTP, and refreshed.

An issuer is another party's server: it may hang, send without end, or be gone. So each document is loaded in its own
thread, one load at a time, within bounds of time and size. The first request that needs a document while it is loaded
waits for a moment; others are refused at once and may be repeated. So whatever an issuer does, it costs at most
`WAIT_TIMEOUT` seconds per `RETRY_INTERVAL` of one of the threads that handle requests.

====================  =========================================================================================
not loaded            a request starts a load, if the last one began `RETRY_INTERVAL` ago; it waits or gets 503
loaded                the document is used; after `LOAD_INTERVAL` a request starts a load and does not wait
key is missing        a request starts a load, if the last one began `RETRY_INTERVAL` ago; it waits or gets 503
loading failed        the previous document is used until it is `MAX_AGE` old, then as if it was not loaded
====================  =========================================================================================
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from queuey.model.errors import IssuerUnavailable, SettingsError

logger = logging.getLogger(__name__)

LOAD_INTERVAL = 300.0
"""Interval between loads, in seconds: a revoked key stays valid this long."""
MAX_AGE = 3600.0
"""Max age of a document whose reload fails, in seconds."""
RETRY_INTERVAL = 10.0
"""Min interval between two loads, in seconds."""
WAIT_TIMEOUT = 2.0
"""Timeout of a request that waits for a load, in seconds."""
FETCH_TIMEOUT = 5.0
"""Timeout of a whole response, in seconds. A name resolver that hangs may take longer."""
MAX_DOCUMENT_BYTES = 256 * 1024

T = TypeVar("T")


class IssuerDocument(Generic[T]):
    """A document of an issuer. Thread-safe.

    Args:
        issuer: The issuer, for messages.
        place: A URL, or the path of a file.
        parse: Parses the document's bytes; raises ValueError if it cannot.
        wait: Max seconds that a request waits for a load.
        fetch: Timeout of a whole response, in seconds.
    """

    def __init__(
        self,
        issuer: str,
        place: str,
        parse: Callable[[bytes], T],
        *,
        what: str = "keys",
        clock: Callable[[], float] = time.monotonic,
        wait: float = WAIT_TIMEOUT,
        fetch: float = FETCH_TIMEOUT,
    ) -> None:
        self._issuer = issuer
        self._place = place
        self._parse = parse
        self._what = what
        self._clock = clock
        self.wait_seconds = wait
        self.fetch_seconds = fetch
        self._value: T | None = None
        self._loaded = self._began = -float("inf")
        self._loading = False
        self._failure = ""
        self._change = threading.Condition()
        self._waited = False

    def start(self, *, prefetch: bool = True) -> None:
        """Loads a file, or starts to load a URL.

        Args:
            prefetch: Load a URL; otherwise the first request does.

        Raises:
            SettingsError: The file cannot be used.
        """
        if _is_url(self._place):
            if prefetch:
                with self._change:
                    self._start_load()
            return
        self._load()
        if self._value is None:
            raise SettingsError(
                f"The {self._what} of {self._issuer} cannot be read from {self._place}: {self._failure}."
            )

    def get(self) -> T:
        """Returns the document; starts a load if it is old, and waits for that only if it is too old to be used.

        Raises:
            IssuerUnavailable: The document is not loaded, or too old.
        """
        with self._change:
            age = self._clock() - self._loaded
            if age > LOAD_INTERVAL:
                self._start_load()
            if age > MAX_AGE:
                self._wait_for_load()
            if self._value is None or self._clock() - self._loaded > MAX_AGE:
                raise self._make_unavailable_error()
            return self._value

    def get_newer_than(self, value: T) -> T:
        """Returns the document after a key was missing in ``value``: a newer one, unless a load began a moment ago.

        Raises:
            IssuerUnavailable: The last load failed, or the load under way takes too long.
        """
        with self._change:
            if self._value is value:
                self._start_load()
                self._wait_for_load()
            if self._failure or self._value is None:
                raise self._make_unavailable_error()
            return self._value

    def _start_load(self) -> None:
        """Starts a load, unless one is under way or began less than `RETRY_INTERVAL` ago.

        Without a thread for it, the load has failed.
        """
        now = self._clock()
        if self._loading or now - self._began < RETRY_INTERVAL:
            return
        self._loading, self._began, self._waited = True, now, False
        try:
            threading.Thread(target=self._load, name="queuey-issuer", daemon=True).start()
        except RuntimeError as error:  # The system cannot start a thread.
            self._record_load(None, short_reason(error))

    def _wait_for_load(self) -> None:
        """Waits until the load under way has ended; returns at once without one.

        The first request waits, and raises IssuerUnavailable after a timeout. Any other request raises at once.
        """
        if self._loading and not self._waited:
            self._waited = True
            self._change.wait_for(lambda: not self._loading, self.wait_seconds)
        if self._loading:
            raise self._make_unavailable_error()

    def _make_unavailable_error(self) -> IssuerUnavailable:
        """Returns the error for a request that needs the document.

        Its ``retry_after`` is the time until the next load may start, or 1 s while a load is under way.
        """
        pause = 1 if self._loading else self._began + RETRY_INTERVAL - self._clock()
        text = f"The issuer of this credential cannot be asked for its {self._what} now."
        return IssuerUnavailable(text, retry_after=max(1, round(pause)))

    def _load(self) -> None:
        value, failure = None, ""
        try:
            value = self._parse(_read_url_or_file(self._place, self.fetch_seconds))
        except Exception as error:  # noqa: BLE001 - whatever a server sends, this thread must report its end
            failure = short_reason(error)
        self._record_load(value, failure)

    def _record_load(self, value: T | None, failure: str) -> None:
        with self._change:
            if value is not None:
                self._value, self._loaded = value, self._clock()
            changed = bool(failure) != bool(self._failure)
            self._loading, self._failure = False, failure
            self._change.notify_all()
        if failure and changed:
            logger.warning("The %s of %s cannot be loaded from %s: %s.", self._what, self._issuer, self._place, failure)
        elif changed:
            logger.warning("The %s of %s can be loaded again.", self._what, self._issuer)


def _is_url(place: str) -> bool:
    return place.lower().startswith(("https://", "http://"))


def _read_url_or_file(place: str, seconds: float) -> bytes:
    if _is_url(place):
        status, body = fetch(place, seconds)
        if status != 200:  # noqa: PLR2004 - OK
            raise ValueError(f"the answer is {status}")
        return body
    with Path(place).open("rb") as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"it has more than {MAX_DOCUMENT_BYTES:,} bytes")
    return content


def fetch(
    url: str, seconds: float, form: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Requests exactly this URL, without redirects; blocks.

    Args:
        seconds: Timeout for the whole response.
        form: Body of a POST, or None for a GET.

    Returns:
        The status and the body.

    Raises:
        ValueError: The response was not complete in time, or is compressed or too long.
        Exception: Any error of the HTTP client.
    """
    all_headers = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
    if form is not None:
        all_headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        return asyncio.run(_fetch(url, seconds, form, all_headers))
    except TimeoutError:
        raise ValueError(f"there was no whole answer within {seconds:g} s") from None


async def _fetch(url: str, seconds: float, form: str | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
    import httpx2  # noqa: PLC0415 - only where an issuer has a URL

    method = "GET" if form is None else "POST"
    content = bytearray()
    async with (
        asyncio.timeout(seconds),
        httpx2.AsyncClient(verify=_make_context(url), follow_redirects=False, trust_env=False, timeout=None) as client,
        client.stream(method, url, content=form, headers=headers) as answer,
    ):
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("the answer is compressed")
        async for part in answer.aiter_raw():
            content += part
            if len(content) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"the answer has more than {MAX_DOCUMENT_BYTES:,} bytes")
    return answer.status_code, bytes(content)


def _make_context(url: str) -> ssl.SSLContext:
    """Returns the TLS context of a URL. One without TLS gets a context that trusts no server."""
    return _make_trusting_context() if url.lower().startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _make_trusting_context() -> ssl.SSLContext:
    import httpx2  # noqa: PLC0415 - only where an issuer has a URL

    return httpx2.create_ssl_context(trust_env=False)


def short_reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__)[:200].rstrip(".")
