"""Tokens and their sources (a function, a file or a command), and when a new token is fetched.

A client has one credential. A key, or a token given as text, is fixed. A token is fetched from a source

====================================  ======================================================================
before the first request              always
before a later one                    from 30 seconds before its known expiry on, or when its source has changed
after a 401                           once; the call is sent again only if the source gave another token
====================================  ======================================================================

Threads and tasks that need a token at the same moment wait for one answer of the source and share it, even an error.

No message, attribute or repr here contains a token.
"""

from __future__ import annotations

import base64
import inspect
import os
import re
import select
import shlex
import signal
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from queuey.client.errors import InvalidArgument, TokenError

if TYPE_CHECKING:
    import subprocess


TokenScheme = Literal["Bearer", "BrowserID"]

MAX_TOKEN_BYTES = 64 << 10
"""Max bytes of a source's output: the token, or JSON with the token."""
RENEW_AHEAD_SECONDS = 30.0
"""Max seconds before its expiry at which a token is replaced."""

COMMAND_TIMEOUT = 30.0

# RFC 9110, section 11.2: token68.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_JWT_PARTS = 3


class Token(msgspec.Struct, frozen=True):
    """A token with its expiry. A token function may return this instead of a text.

    Attributes:
        token: The token from the issuer.
        expires: When the token expires, in seconds since 1970 or as an aware datetime. By default the ``exp`` claim of
            a JWT is used; for other tokens the expiry is unknown.

    Raises:
        InvalidArgument: The token is not valid in a header, or ``expires`` has no time zone.

    Example:
        >>> from queuey.client import Token
        >>> Token("eyJhbGciOi", expires=1_900_000_000)
        Token(token=..., expires=1900000000)
    """

    token: str
    expires: float | datetime | None = None

    def __post_init__(self) -> None:
        if len(self.token) > MAX_TOKEN_BYTES or _TOKEN.fullmatch(self.token) is None:
            raise InvalidArgument("the token is empty, too long, or has invalid characters such as spaces")
        if isinstance(self.expires, datetime) and self.expires.tzinfo is None:
            raise InvalidArgument(f"expires {self.expires} has no time zone: add one, such as datetime.UTC")

    def __repr__(self) -> str:
        return f"Token(token=..., expires={self.expires!r})"

    @property
    def end(self) -> float | None:
        """When the token expires, in seconds since 1970, or None if that is unknown."""
        if self.expires is None:
            return _read_jwt_expiry(self.token)
        return self.expires.timestamp() if isinstance(self.expires, datetime) else self.expires


class TokenSource(ABC):
    """A source of tokens. By default ``ask_async`` calls ``ask`` in a worker thread.

    Attributes:
        name: Name of the source in errors, such as ``token_file /run/token``.
    """

    name: str

    def has_changed(self) -> bool:
        """Returns whether the source has a new token, if it can tell without blocking; else False."""
        return False

    @abstractmethod
    def ask(self) -> Token:
        """Returns a token. May block.

        Raises:
            TokenError: The source gave no token.
        """

    async def ask_async(self) -> Token:
        from anyio.to_thread import run_sync  # noqa: PLC0415 - only needed with a source

        return await run_sync(self.ask, abandon_on_cancel=True)


class _Written(msgspec.Struct, frozen=True):
    token: str
    expires: float | Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _Claims(msgspec.Struct, frozen=True):
    exp: float | None = None


_decode_written = msgspec.json.Decoder(_Written).decode
_decode_claims = msgspec.json.Decoder(_Claims).decode


def read_token(content: bytes, name: str) -> Token:
    """Parses the output of a file or a command: a token on one line, or JSON with ``token`` and optional ``expires``.

    Args:
        content: The output, cut after :data:`MAX_TOKEN_BYTES` + 1 bytes.
        name: Name of the source, for the error.

    Raises:
        TokenError: The output is not a token. The error does not contain the output.

    Example:
        >>> read_token(b'{"token": "abc", "expires": "2030-01-01T00:00:00Z"}', "token_file t").token
        'abc'
    """
    if len(content) > MAX_TOKEN_BYTES:
        raise TokenError(f"{name} has more than {MAX_TOKEN_BYTES:,} bytes, which no token has")
    text = content.strip()
    if not text:
        raise TokenError(f"{name} is empty: it must give a token")
    try:
        if text.startswith(b"{"):
            written = _decode_written(text)
            return Token(written.token, written.expires)
        return Token(text.decode("ascii"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidArgument):
        # The error's text may quote the token, so it is neither shown nor chained.
        raise TokenError(
            f'{name} gave no token: expected it on one line, or JSON such as {{"token": "...", "expires": 1900000000}}'
        ) from None


def _read_jwt_expiry(token: str) -> float | None:
    """Returns the expiry of a JWT, or None. Does not verify the JWT: the expiry only says when to fetch a new one."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return None
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return _decode_claims(claims).exp
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


AskToken = Callable[[], str | Token | Awaitable[str | Token]]


class TokenFunction(TokenSource):
    """Calls a function that returns a token, or, for an async client, an awaitable token.

    An async client calls a function that is not a coroutine function in a worker thread. A sync client refuses an
    awaitable token. An error of the function becomes a TokenError, which shows only its class.
    """

    def __init__(self, ask: AskToken) -> None:
        self._ask = ask
        self._is_async = inspect.iscoroutinefunction(ask) or inspect.iscoroutinefunction(type(ask).__call__)
        self.name = f"the token source {getattr(ask, '__qualname__', type(ask).__qualname__)}"

    def ask(self) -> Token:
        with self._hide_error_text():
            token = self._ask()
        if inspect.isawaitable(token):
            if inspect.iscoroutine(token):
                token.close()
            raise TokenError(f"{self.name} is async: use it with AsyncClient, not with Client")
        return self._make_token(token)

    async def ask_async(self) -> Token:
        from anyio.to_thread import run_sync  # noqa: PLC0415 - only needed by async code

        with self._hide_error_text():
            token = self._ask() if self._is_async else await run_sync(self._ask, abandon_on_cancel=True)
            if inspect.isawaitable(token):
                token = await token
        return self._make_token(token)

    def _make_token(self, answer: object) -> Token:
        if isinstance(answer, Token):
            return answer
        if not isinstance(answer, str):
            raise TokenError(f"{self.name} returned {type(answer).__name__}: expected a text, or a queuey.client.Token")
        with self._hide_error_text():
            return Token(answer.strip())

    @contextmanager
    def _hide_error_text(self) -> Iterator[None]:
        try:
            yield
        except TokenError:
            raise
        except Exception as error:
            invalid = isinstance(error, InvalidArgument)
            text = f"{self.name} raised {type(error).__name__}{f': {error}' if invalid else ''}"
            raise TokenError(text, temporary=not invalid) from error


class TokenFile(TokenSource):
    """Reads a token from a regular file, and reads it again after the file has changed.

    A file that cannot be examined counts as unchanged. A failure is temporary if the file has given a token before: it
    may be in the middle of a replacement.
    """

    _has_given = False

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen: tuple[int, ...] | None = None
        self.name = f"token_file {path}"

    def has_changed(self) -> bool:
        try:
            return _file_version(self._path.stat()) != self._seen
        except OSError:
            return False  # The file may be in the middle of a replacement; keep using the last token.

    def ask(self) -> Token:
        try:
            token = self._read()
        except TokenError as error:
            error.temporary = self._has_given
            raise
        self._has_given = True
        return token

    def _read(self) -> Token:
        try:
            # Non-blocking, so that a pipe without a writer does not block the caller.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise TokenError(f"{self.name} is not a regular file")
                content = file.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            raise TokenError(f"{self.name} cannot be read: {error.strerror}") from error
        self._seen = _file_version(status)
        return read_token(content, self.name)


class TokenCommand(TokenSource):
    """Runs a command and reads a token from its output. It inherits standard error, and its input is empty.

    It must end with exit code 0.

    Args:
        command: Program and arguments. A text is split by shell rules, but no shell runs.
        seconds: Timeout, after which the command and its children are killed.

    Raises:
        InvalidArgument: The command is empty, or the text cannot be split.
    """

    def __init__(self, command: str | Sequence[str], seconds: float = COMMAND_TIMEOUT) -> None:
        try:
            self._words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        except ValueError as error:
            raise InvalidArgument(f"token_command cannot be split into words: {error}") from None
        if not self._words:
            raise InvalidArgument("token_command is empty: it must name a program")
        self._seconds = seconds
        # Without the arguments, which may be secrets.
        self.name = f"token_command {self._words[0]}"

    def ask(self) -> Token:
        import subprocess  # noqa: PLC0415 - only needed for commands

        try:
            process = subprocess.Popen(  # noqa: S603 - runs the caller's own command
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise TokenError(f"{self.name} cannot be run: {error.strerror}") from error
        with process:
            try:
                content = self._read_output(process)
            except BaseException:
                # Kills the whole process group. The exit code was not read yet, so the group id is not reused.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode:
            text = f"{self.name} failed with exit code {process.returncode}: see its error output"
            raise TokenError(text, temporary=True)
        return read_token(content, self.name)

    def _read_output(self, process: subprocess.Popen[bytes]) -> bytes:
        import subprocess  # noqa: PLC0415 - already loaded

        end = time.monotonic() + self._seconds
        descriptor = process.stdout.fileno() if process.stdout is not None else -1
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        content = bytearray()
        while True:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise self._timeout_error()
            chunk = os.read(descriptor, MAX_TOKEN_BYTES)
            if not chunk:
                break
            content += chunk
            if len(content) > MAX_TOKEN_BYTES:
                raise TokenError(f"{self.name} wrote more than {MAX_TOKEN_BYTES:,} bytes, which no token has")
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._timeout_error() from None
        return bytes(content)

    def _timeout_error(self) -> TokenError:
        return TokenError(f"{self.name} gave no token within {self._seconds:g} seconds", temporary=True)


def _file_version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


class KeptToken:
    """The current token, and the last answer of its source.

    Args:
        scheme: Scheme of the Authorization header.
        clock: Seconds since 1970.

    Attributes:
        header: The Authorization header, or None without a usable token.
        answer_count: Number of answers of the source, failures included.
    """

    def __init__(self, scheme: str, clock: Callable[[], float] = time.time) -> None:
        self._scheme = scheme
        self._clock = clock
        self._renew_at = self._end = 0.0
        self._failure: TokenError | None = None
        self.header: str | None = None
        self.answer_count = 0

    def is_due(self) -> bool:
        return self.header is None or self._clock() >= self._renew_at

    def keep(self, token: Token) -> None:
        """Stores a new token, due 30 s before its expiry, or after half of its time if that is later.

        A token that has expired by this machine's clock is used until the server refuses it.
        """
        now, end = self._clock(), token.end
        self.header = f"{self._scheme} {token.token}"
        self._end = end if end is not None and end > now else float("inf")
        # A short-lived token is replaced after half of its time.
        self._renew_at = max(self._end - RENEW_AHEAD_SECONDS, (now + self._end) / 2)
        self._failure = None
        self.answer_count += 1

    def record_failure(self, error: TokenError, *, refused: bool = False) -> None:
        """Records a failure of the source.

        The current token stays until it expires or is refused. The source is asked again when half of the rest is over.
        """
        self.answer_count += 1
        now = self._clock()
        if refused or self.header is None or now >= self._end:
            self._failure = error
            self.header = None
        else:
            self._renew_at = (now + self._end) / 2

    def result(self) -> str:
        """Returns the header.

        Raises:
            TokenError: The source failed, and no usable token is left.
        """
        header = self.header
        if header is None:
            temporary = self._failure is not None and self._failure.temporary
            raise TokenError(str(self._failure), temporary=temporary) from self._failure
        return header


# The locks of both clients. The generator of the sync client replaces AsyncLock with Lock.

Lock = threading.Lock


class AsyncLock:
    """An anyio lock. Loads anyio on first use."""

    def __init__(self) -> None:
        self._lock: Any = None

    async def __aenter__(self) -> None:
        if self._lock is None:
            import anyio  # noqa: PLC0415 - only needed with a token source

            self._lock = anyio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
