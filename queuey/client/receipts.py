"""The receipts file: one line of JSON for every message that the service stored, for audits.

==============  ==========================================================================================
``queue``       the message's queue
``app``         the queue's application
``partition``   the message's partition; left out if unknown
``id``          32 lower-case hex digits; left out if unknown
``sha256``      SHA-256 of the body as stored, its first 32 hex digits
``size``        bytes of the body as stored
``at``          when the answer came, in seconds since 1970 by this machine's clock
``ttl``         seconds, if the message had its own TTL
``put``         true if the message was written at an id that the producer chose
``outcome``     left out if the message was stored; ``unknown`` if no answer says whether it was stored
==============  ==========================================================================================

A line is written after the server's answer and before the call returns, with one system call, so that several threads
and processes may append to one file. If the program is killed after the answer and before the write, a message has no
receipt, but there is never a receipt without a message. Lines survive the end of the process, but not a power failure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Literal, Self

import msgspec
from msgspec import UNSET

from queuey.client.calls.call import MessageLocation, encode, location_text, seconds
from queuey.client.calls.send_calls import Outgoing
from queuey.client.errors import (
    ApiError,
    ClientError,
    InvalidArgument,
    ReceiptsError,
    ServiceUnavailable,
    TransportError,
)
from queuey.client.results import Receipt

try:
    import fcntl
except ImportError:  # on Windows
    LOCKS = False
else:
    LOCKS = True

Stored = Callable[[list[Receipt]], list[Receipt]]
"""Writes the receipts of messages that were stored, and returns them."""
HASH_DIGITS = 32
"""Number of hex digits of the hash. With 128 bits, no two bodies have the same hash by chance."""

_REFUSED_STATUSES = range(400, 500)


class ReceiptLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of the file. For its fields see the module."""

    queue: str
    app: str
    partition: int | None = None
    id: str | None = None
    sha256: str
    size: int
    at: float
    ttl: int | None = None
    put: bool = False
    outcome: Literal["stored", "unknown"] = "stored"


class SentMessage(msgspec.Struct, frozen=True):
    """Hash, size and TTL of a message that is being sent."""

    sha256: str
    size: int
    ttl: int | None

    @classmethod
    def of(cls, message: Outgoing) -> Self:
        body = encode_stored_body(message)
        ttl = None if message.ttl is None else int(seconds(message.ttl))
        return cls(sha256(body).hexdigest()[:HASH_DIGITS], len(body), ttl)


def encode_stored_body(message: Outgoing) -> bytes:
    if message.body is not UNSET:
        return message.body if isinstance(message.body, bytes) else str(message.body).encode()
    value = message.json
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, msgspec.Raw):
        return encode(value)
    raw = bytes(value).strip(b" \t\r\n")
    return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw


class Journal:
    """Appends receipts to a file. Several threads and processes may append to the same file.

    Args:
        path: The file. If missing, it is created with access for its owner only.
        application: The application of the queues.
        clock: Seconds since 1970.

    Raises:
        ReceiptsError: The file cannot be opened for writing.
    """

    def __init__(self, path: str | Path, application: str, clock: Callable[[], float] = time.time) -> None:
        self._path = Path(path)
        self._application = application
        self._clock = clock
        self._lock = Lock()
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise ReceiptsError(f"{self._path} cannot be written: {error.strerror}") from error
        try:
            with _lock_file(self._file, exclusive=True):
                self._torn = not _has_complete_last_line(self._file)
        except OSError as error:
            os.close(self._file)
            raise ReceiptsError(f"{self._path} is not a usable receipts file: {error.strerror}") from error

    @contextmanager
    def sending(self, queue: str, messages: Iterable[Outgoing]) -> Iterator[Stored]:
        """Surrounds the send of messages. Writes messages without an answer with the outcome ``unknown``.

        Yields:
            A function that writes the server's receipts and returns them. If the write fails, it raises a
            ReceiptsError with these receipts.
        """
        sent, answered = [SentMessage.of(message) for message in messages], False

        def stored(receipts: list[Receipt]) -> list[Receipt]:
            nonlocal answered
            answered, at = True, self.now()
            lines = [
                self.make_line(queue, message, at, (receipt.partition, receipt.id))
                for message, receipt in zip(sent, receipts, strict=True)
            ]
            try:
                self.write(lines)
            except ReceiptsError as error:
                error.receipts = tuple(receipts)
                raise
            return receipts

        try:
            yield stored
        except BaseException as error:
            if not answered:
                at, pairs = self.now(), zip(sent, list_outcomes(error, len(sent)), strict=True)
                unknown = [
                    self.make_line(queue, m, at, outcome="unknown") for m, outcome in pairs if outcome == "unknown"
                ]
                self._write_despite(unknown, error)
            raise

    @contextmanager
    def putting(self, queue: str, locations: Sequence[MessageLocation], message: Outgoing) -> Iterator[None]:
        """Surrounds a put. Writes ``stored`` lines, or ``unknown`` ones if it failed and may have been carried out.

        Raises ReceiptsError if ``stored`` lines cannot be written.
        """
        sent = SentMessage.of(message)
        texts = [location_text(location).split(":") for location in locations]
        pairs = [(int(number), text) for number, text in texts]

        def lines(outcome: Literal["stored", "unknown"]) -> list[ReceiptLine]:
            at = self.now()
            return [self.make_line(queue, sent, at, pair, outcome=outcome, put=True) for pair in pairs]

        try:
            yield
        except BaseException as error:
            # A put is repeated after any failure, so the last failure says nothing about earlier attempts.
            if list_outcomes(error, 1, repeated=True) != ["none"]:
                self._write_despite(lines("unknown"), error)
            raise
        self.write(lines("stored"))

    def now(self) -> float:
        return round(self._clock(), 6)

    def make_line(
        self,
        queue: str,
        sent: SentMessage,
        at: float,
        location: tuple[int | None, str | None] = (None, None),
        *,
        outcome: Literal["stored", "unknown"] = "stored",
        put: bool = False,
    ) -> ReceiptLine:
        return ReceiptLine(
            queue=queue,
            app=self._application,
            partition=location[0],
            id=location[1],
            sha256=sent.sha256,
            size=sent.size,
            at=at,
            ttl=sent.ttl,
            put=put,
            outcome=outcome,
        )

    def write(self, lines: Iterable[ReceiptLine]) -> None:
        """Appends lines, with one system call unless the disk is full. Ends an incomplete last line first.

        Raises:
            ReceiptsError: Not all lines were written, or the journal is closed.
        """
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        with self._lock:
            if self._file < 0:
                raise ReceiptsError(f"{self._path} is closed")
            if self._torn:
                data = b"\n" + data
            try:
                with _lock_file(self._file, exclusive=False):
                    while data:
                        self._torn = True
                        data = data[os.write(self._file, data) :]
            except OSError as error:
                raise ReceiptsError(f"{self._path} cannot be written: {error.strerror}") from error
            self._torn = False

    def _write_despite(self, lines: Iterable[ReceiptLine], error: BaseException) -> None:
        """Writes lines after an error that the caller is about to raise. Adds a note to it if the write fails."""
        try:
            self.write(lines)
        except ReceiptsError as write_error:
            error.add_note(f"This could not be written to the receipts file: {write_error}")

    def close(self) -> None:
        """Closes the file. Idempotent. Later writes raise ReceiptsError."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


class NoJournal:
    """A journal that writes nothing, with the methods of :class:`Journal` that the clients call."""

    def sending(self, _queue: str, _messages: Iterable[Outgoing]) -> AbstractContextManager[Stored]:
        return nullcontext(list)

    def putting(
        self, _queue: str, _locations: Sequence[MessageLocation], _message: Outgoing
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


def open_journal(path: str | Path | None, application: str) -> Journal | NoJournal:
    return NoJournal() if path is None else Journal(path, application)


def list_outcomes(error: BaseException, count: int, *, repeated: bool = False) -> list[str]:
    """Returns ``none`` or ``unknown`` for each of ``count`` messages whose send failed.

    Args:
        error: The failure. Any exception that interrupts the wait for an answer means ``unknown``.
        count: Number of messages.
        repeated: The call may have been sent several times, and ``error`` is only the last failure.
    """
    match error:
        case InvalidArgument():
            outcome = "none"
        case ClientError(in_doubt=True):
            outcome = "unknown"
        case TransportError():
            outcome = "unknown" if repeated else error.outcome
        case ServiceUnavailable() if len(error.outcomes) == count and not repeated:
            return [o if o == "none" else "unknown" for o in error.outcomes]
        case ServiceUnavailable():
            outcome = "none" if error.not_processed and not repeated else "unknown"
        case ApiError():
            outcome = "none" if error.status in _REFUSED_STATUSES else "unknown"
        case _:
            outcome = "unknown"
    return [outcome] * count


@contextmanager
def _lock_file(file: int, *, exclusive: bool) -> Iterator[None]:
    """Locks the file: shared to write, exclusive (``exclusive``) to read its end, which could otherwise be half a line.

    Without file locks, an empty line may be written between two lines.
    """
    if not LOCKS:
        yield
        return
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _has_complete_last_line(file: int) -> bool:
    size = os.fstat(file).st_size
    if not size:
        return True
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1) == b"\n"
