"""Sources of tokens: a callable, a file, a command."""

from __future__ import annotations

import inspect
import os
import select
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from queuey.client.credentials.tokens import MOST_BYTES, Token, TokenSource, read_token
from queuey.client.errors import InvalidArgument, TokenError

AskToken = Callable[[], str | Token | Awaitable[str | Token]]

COMMAND_SECONDS = 30.0
"""Timeout in seconds of a command."""


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
