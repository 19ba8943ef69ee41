"""Receipts on file: a line of JSON for every message that the service stored, for audits.

==============  ==========================================================================================
``queue``       the message's queue
``app``         the queue's application
``partition``   the message's partition; left out when unknown
``id``          32 lower-case hex digits; left out when unknown
``sha256``      of the body's bytes as stored: the first 32 hex digits
``size``        bytes of the body as stored
``at``          when the answer had come, seconds since 1970 by this machine's clock
``ttl``         seconds, if the message had its own TTL
``put``         true: written at an id that the producer chose
``outcome``     left out: it was accepted. ``unknown``: no answer says whether it was stored
==============  ==========================================================================================

A line is written after the server's answer and before the caller gets it, with one call to the operating system, so
that several threads and processes may append to one file. A program that is killed between the two leaves a message
without a receipt, never a receipt without a message. Lines survive the end of the process, not a loss of power.
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
DIGITS = 32
"""Number of hex digits of the hash. 128 bits: no two bodies agree by chance."""

_REFUSED = range(400, 500)


class ReceiptLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of the file, with the fields that the module describes."""

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
    """The digest, size and TTL of a message that is being sent."""

    sha256: str
    size: int
    ttl: int | None

    @classmethod
    def of(cls, message: Outgoing) -> Self:
        body = stored_body(message)
        ttl = None if message.ttl is None else int(seconds(message.ttl))
        return cls(sha256(body).hexdigest()[:DIGITS], len(body), ttl)


def stored_body(message: Outgoing) -> bytes:
    """Returns the bytes that a store keeps of a message: of a JSON string its text, of other JSON values their JSON."""
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
    """Appends receipts to a file. Safe to use from several threads, and beside other processes.

    Args:
        path: The file; created if it is not there, readable by its owner alone.
        application: The application that owns the queues.
        clock: Seconds since 1970.

    Raises:
        ReceiptsError: It cannot be opened for writing.
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
            with _locked(self._file, alone=True):
                self._torn = not _ends_with_a_line(self._file)
        except OSError as error:
            os.close(self._file)
            raise ReceiptsError(f"{self._path} is no file that receipts can be kept in: {error.strerror}") from error

    @contextmanager
    def sending(self, queue: str, messages: Iterable[Outgoing]) -> Iterator[Stored]:
        """Surrounds the sending of messages: those that get no answer are written as unknown.

        Yields:
            A function that writes the server's receipts and returns them. If they cannot be written, it raises a
            ReceiptsError that has them.
        """
        sent, answered = [SentMessage.of(message) for message in messages], False

        def stored(receipts: list[Receipt]) -> list[Receipt]:
            nonlocal answered
            answered, at = True, self.now()
            lines = [
                self.line(queue, one, at, (receipt.partition, receipt.id))
                for one, receipt in zip(sent, receipts, strict=True)
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
                at, fates = self.now(), zip(sent, outcomes(error, len(sent)), strict=True)
                unknown = [self.line(queue, one, at, outcome="unknown") for one, fate in fates if fate == "unknown"]
                self._write_despite(unknown, error)
            raise

    @contextmanager
    def putting(self, queue: str, locations: Sequence[MessageLocation], message: Outgoing) -> Iterator[None]:
        """Surrounds the sending of a message to ids that are known before."""
        sent = SentMessage.of(message)
        texts = [location_text(location).split(":") for location in locations]
        places = [(int(number), text) for number, text in texts]

        def lines(outcome: Literal["stored", "unknown"]) -> list[ReceiptLine]:
            at = self.now()
            return [self.line(queue, sent, at, place, outcome=outcome, put=True) for place in places]

        try:
            yield
        except BaseException as error:
            # A put is sent again after failures of any kind: the last of them says nothing about the first.
            if outcomes(error, 1, repeated=True) != ["none"]:
                self._write_despite(lines("unknown"), error)
            raise
        self.write(lines("stored"))

    def now(self) -> float:
        return round(self._clock(), 6)

    def line(
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
        """Appends lines, with one write unless the disk is full.

        Raises:
            ReceiptsError: Not all of them are written.
        """
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        with self._lock:
            if self._file < 0:
                raise ReceiptsError(f"{self._path} is closed")
            if self._torn:
                data = b"\n" + data
            try:
                with _locked(self._file, alone=False):
                    while data:
                        self._torn = True
                        data = data[os.write(self._file, data) :]
            except OSError as error:
                raise ReceiptsError(f"{self._path} cannot be written: {error.strerror}") from error
            self._torn = False

    def _write_despite(self, lines: Iterable[ReceiptLine], error: BaseException) -> None:
        """Writes lines after a failure, which stays the failure that the caller sees."""
        try:
            self.write(lines)
        except ReceiptsError as failed:
            error.add_note(f"Besides, no receipt says so: {failed}")

    def close(self) -> None:
        """Closes the file. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


class NoJournal:
    """Keeps no receipts; has the methods of :class:`Journal` that the clients call."""

    def sending(self, _queue: str, _messages: Iterable[Outgoing]) -> AbstractContextManager[Stored]:
        return nullcontext(list)

    def putting(
        self, _queue: str, _locations: Sequence[MessageLocation], _message: Outgoing
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """Does nothing."""


def open_journal(path: str | Path | None, application: str) -> Journal | NoJournal:
    return NoJournal() if path is None else Journal(path, application)


def outcomes(error: BaseException, count: int, *, repeated: bool = False) -> list[str]:
    """Returns ``none`` or ``unknown`` for each of ``count`` messages whose sending failed.

    Args:
        error: The failure; one that interrupts the wait for an answer leaves the outcome open.
        count: Number of messages.
        repeated: The call may have been sent several times, and this is the last failure alone.
    """
    match error:
        case InvalidArgument():
            fate = "none"
        case ClientError(in_doubt=True):
            fate = "unknown"
        case TransportError():
            fate = "unknown" if repeated else error.outcome
        case ServiceUnavailable() if len(error.outcomes) == count and not repeated:
            return [outcome if outcome == "none" else "unknown" for outcome in error.outcomes]
        case ServiceUnavailable():
            fate = "none" if error.not_processed and not repeated else "unknown"
        case ApiError():
            fate = "none" if error.status in _REFUSED else "unknown"
        case _:
            fate = "unknown"
    return [fate] * count


@contextmanager
def _locked(file: int, *, alone: bool) -> Iterator[None]:
    """Locks out writers while a program reads how the file ends: it could see half of a line.

    Where the system or the file has no locks, an empty line may come to stand between two others.
    """
    if not LOCKS:
        yield
        return
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _ends_with_a_line(file: int) -> bool:
    """Returns whether the last line is complete: a killed program or a full disk may have left a part of one."""
    size = os.fstat(file).st_size
    if not size:
        return True
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1) == b"\n"
