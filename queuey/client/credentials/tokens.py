"""Tokens and their sources: a callable, a file, a command; and when another token is requested.

A client has one credential. A key and a token given as a text stay as they are. A token from a source is requested

====================================  ======================================================================
before the first request              always
before a later one                    from 30 seconds before its known end on, or when its source has changed
after a 401                           once; the call is sent again only if the source gave another token
====================================  ======================================================================

Threads and tasks that need a token at the same moment wait for one answer, and share it if it is an error as well.

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

MOST_BYTES = 64 << 10
"""Max bytes of the output of a source: the token, and JSON around it."""
AHEAD = 30.0
"""Max seconds before its end at which a token is replaced."""

COMMAND_SECONDS = 30.0
"""Timeout in seconds of a command."""

# RFC 9110, section 11.2: token68.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_JWT_PARTS = 3


class Token(msgspec.Struct, frozen=True):
    """A token and its end, which a function may return in place of a text.

    Attributes:
        token: The token, as the issuer wrote it.
        expires: Seconds since 1970, or an aware datetime. None: that of a JWT itself; of others it is unknown.

    Raises:
        InvalidArgument: No header can carry the token, or ``expires`` has no time zone.

    Example:
        >>> from queuey.client import Token
        >>> Token("eyJhbGciOi", expires=1_900_000_000)
        Token(token=..., expires=1900000000)
    """

    token: str
    expires: float | datetime | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be sent."""
        if len(self.token) > MOST_BYTES or _TOKEN.fullmatch(self.token) is None:
            raise InvalidArgument("the token is empty, too long, or has characters that no token has, such as spaces")
        if isinstance(self.expires, datetime) and self.expires.tzinfo is None:
            raise InvalidArgument(f"expires {self.expires} has no time zone: give it one, such as datetime.UTC")

    def __repr__(self) -> str:
        """Leaves the token out."""
        return f"Token(token=..., expires={self.expires!r})"

    @property
    def end(self) -> float | None:
        """Seconds since 1970 at which it ends, as far as that is known."""
        if self.expires is None:
            return _end_in(self.token)
        return self.expires.timestamp() if isinstance(self.expires, datetime) else self.expires


class TokenSource(ABC):
    """Gives tokens, one after another.

    Attributes:
        name: Names it in errors: ``token_file /run/token``.
    """

    name: str

    def changed(self) -> bool:
        """Returns whether it would give another token than last time, if that is known without waiting."""
        return False

    @abstractmethod
    def ask(self) -> Token:
        """Returns a token. It may block.

        Raises:
            TokenError: It gave none.
        """

    async def ask_async(self) -> Token:
        """Returns a token as :meth:`ask` does, without blocking the event loop."""
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
    """Reads what a file or a command gave: a token on a line, or JSON with ``token`` and perhaps ``expires``.

    Args:
        content: At most :data:`MOST_BYTES`, and one more if there was more.
        name: Of the source, for the error.

    Raises:
        TokenError: It is neither. The error does not show it.

    Example:
        >>> read_token(b'{"token": "abc", "expires": "2030-01-01T00:00:00Z"}', "token_file t").token
        'abc'
    """
    if len(content) > MOST_BYTES:
        raise TokenError(f"{name} has more than {MOST_BYTES:,} bytes, which no token has")
    text = content.strip()
    if not text:
        raise TokenError(f"{name} is empty: it must give a token")
    try:
        if text.startswith(b"{"):
            written = _decode_written(text)
            return Token(written.token, written.expires)
        return Token(text.decode("ascii"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidArgument):
        # The text of the error may quote what was given, so it is neither repeated nor kept.
        raise TokenError(
            f'{name} gave no token: expected it on one line, or JSON such as {{"token": "...", "expires": 1900000000}}'
        ) from None


def _end_in(token: str) -> float | None:
    """Returns the end of a JWT. It is not verified: the server does so, and here it only decides when to ask again."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return None
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return _decode_claims(claims).exp
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


AskToken = Callable[[], str | Token | Awaitable[str | Token]]


class Asked(TokenSource):
    """Calls a function that returns a token, or for an async client an awaitable of one."""

    def __init__(self, ask: AskToken) -> None:
        self._ask = ask
        self._is_async = inspect.iscoroutinefunction(ask) or inspect.iscoroutinefunction(type(ask).__call__)
        self.name = f"the token source {getattr(ask, '__qualname__', type(ask).__qualname__)}"

    def ask(self) -> Token:
        with self._named():
            given = self._ask()
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise TokenError(f"{self.name} is async: it goes with AsyncClient, not with Client")
        return self._token(given)

    async def ask_async(self) -> Token:
        from anyio.to_thread import run_sync  # noqa: PLC0415 - only async code pays for it

        with self._named():
            given = self._ask() if self._is_async else await run_sync(self._ask, abandon_on_cancel=True)
            if inspect.isawaitable(given):
                given = await given
        return self._token(given)

    def _token(self, given: object) -> Token:
        if isinstance(given, Token):
            return given
        if not isinstance(given, str):
            raise TokenError(f"{self.name} returned {type(given).__name__}: expected a text, or a queuey.client.Token")
        with self._named():
            return Token(given.strip())

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Names an error by its class alone: its text may have a secret in it."""
        try:
            yield
        except Exception as error:
            detail = f": {error}" if isinstance(error, InvalidArgument) else ""
            raise TokenError(f"{self.name} raised {type(error).__name__}{detail}") from error


class File(TokenSource):
    """Reads a file, again whenever it was replaced or written to."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen: tuple[int, ...] | None = None
        self.name = f"token_file {path}"

    def changed(self) -> bool:
        try:
            return _marks(self._path.stat()) != self._seen
        except OSError:
            return False  # it is being replaced, perhaps; the token that was read serves as long as it can

    def ask(self) -> Token:
        try:
            # A pipe without a writer must not hold the caller up.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise TokenError(f"{self.name} is not a regular file")
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise TokenError(f"{self.name} cannot be read: {error.strerror}") from error
        self._seen = _marks(found)
        return read_token(content, self.name)


class Command(TokenSource):
    """Runs a command and reads its standard output. Its standard error is this process's, its input is empty.

    Args:
        command: Program and arguments; a text is split like a shell does, and no shell runs it.
        seconds: Timeout, after which the command and its children are killed.

    Raises:
        InvalidArgument: It names no program.
    """

    def __init__(self, command: str | Sequence[str], seconds: float = COMMAND_SECONDS) -> None:
        try:
            self._words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        except ValueError as error:
            raise InvalidArgument(f"token_command cannot be split into words: {error}") from None
        if not self._words:
            raise InvalidArgument("token_command is empty: it must name a program")
        self._seconds = seconds
        # Its arguments may be secrets.
        self.name = f"token_command {self._words[0]}"

    def ask(self) -> Token:
        import subprocess  # noqa: PLC0415 - only needed for commands

        try:
            process = subprocess.Popen(  # noqa: S603 - what the caller names is what runs
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise TokenError(f"{self.name} cannot be run: {error.strerror}") from error
        with process:
            try:
                content = self._output(process)
            except BaseException:
                # With what it started; its exit code was not read yet, so no other group has this number.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode:
            raise TokenError(f"{self.name} failed with exit code {process.returncode}; see what it wrote")
        return read_token(content, self.name)

    def _output(self, process: subprocess.Popen[bytes]) -> bytes:
        """Returns the output when the program has ended. Raises TokenError after too much output or time."""
        import subprocess  # noqa: PLC0415 - it is loaded

        end = time.monotonic() + self._seconds
        descriptor = process.stdout.fileno() if process.stdout is not None else -1
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        content = bytearray()
        while True:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise self._late()
            part = os.read(descriptor, MOST_BYTES)
            if not part:
                break
            content += part
            if len(content) > MOST_BYTES:
                raise TokenError(f"{self.name} wrote more than {MOST_BYTES:,} bytes, which no token has")
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._late() from None
        return bytes(content)

    def _late(self) -> TokenError:
        return TokenError(f"{self.name} gave no token within {self._seconds:g} seconds")


def _marks(found: os.stat_result) -> tuple[int, ...]:
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


class KeptToken:
    """The token in use, and the last answer of its source.

    Args:
        scheme: Of the Authorization header.
        clock: Seconds since 1970.
    """

    def __init__(self, scheme: str, clock: Callable[[], float] = time.time) -> None:
        self._scheme = scheme
        self._clock = clock
        self._ahead = self._end = 0.0
        self._failure: TokenError | None = None
        self.header: str | None = None
        self.answers = 0

    def due(self) -> bool:
        """Returns whether to request another token before the next request."""
        return self.header is None or self._clock() >= self._ahead

    def keep(self, token: Token) -> None:
        """Keeps a token. One that has ended by this machine's clock is used until the server refuses it."""
        now, end = self._clock(), token.end
        self.header = f"{self._scheme} {token.token}"
        self._end = end if end is not None and end > now else float("inf")
        # Half of its life is left to a token that lives shortly.
        self._ahead = max(self._end - AHEAD, (now + self._end) / 2)
        self._failure = None
        self.answers += 1

    def failed(self, error: TokenError, *, refused: bool = False) -> None:
        """Records a failure of the source. The token in use serves until its end, unless the server refused it."""
        self.answers += 1
        if refused or self.header is None or self._clock() >= self._end:
            self._failure = error
            self.header = None
        else:
            self._ahead = self._end

    def result(self) -> str:
        """Returns the header.

        Raises:
            TokenError: The source failed, and there is no other token to use.
        """
        header = self.header
        if header is None:
            raise TokenError(str(self._failure)) from self._failure
        return header


# The locks of both clients, by the names under which the script that makes the sync client finds them.

Lock = threading.Lock


class AsyncLock:
    """A lock of anyio, which is loaded when the lock is first used."""

    def __init__(self) -> None:
        self._lock: Any = None

    async def __aenter__(self) -> None:
        if self._lock is None:
            import anyio  # noqa: PLC0415 - only needed with a source of tokens

            self._lock = anyio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
