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

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import TracebackType
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

    def sending(self, queue: str, messages: Iterable[Outgoing]) -> _SendingMessages:
        return _SendingMessages(self, queue, [SentMessage.of(message) for message in messages])

    def putting(self, queue: str, locations: Sequence[MessageLocation], message: Outgoing) -> _Putting:
        return _Putting(self, queue, locations, SentMessage.of(message))

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

    def close(self) -> None:
        """Closes the file. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


class _SendingMessages:
    """Messages in flight: receipts are written for those with an answer, and for those that get none."""

    def __init__(self, journal: Journal, queue: str, sent: Sequence[SentMessage]) -> None:
        self._journal = journal
        self._queue = queue
        self._sent = sent
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._answered:
            return
        fates, at = outcomes(error, len(self._sent)), self._journal.now()
        lines = [
            self._journal.line(self._queue, sent, at, outcome="unknown")
            for sent, fate in zip(self._sent, fates, strict=True)
            if fate == "unknown"
        ]
        _write_despite(self._journal, lines, error)

    def stored(self, receipts: list[Receipt]) -> list[Receipt]:
        """Writes the server's receipts to the file and returns them.

        Raises:
            ReceiptsError: They could not be written; the error has them.
        """
        self._answered = True
        at = self._journal.now()
        lines = [
            self._journal.line(self._queue, sent, at, (receipt.partition, receipt.id))
            for sent, receipt in zip(self._sent, receipts, strict=True)
        ]
        try:
            self._journal.write(lines)
        except ReceiptsError as error:
            error.receipts = tuple(receipts)
            raise
        return receipts


class _Putting:
    """A message on its way to ids that are known before."""

    def __init__(self, journal: Journal, queue: str, locations: Sequence[MessageLocation], sent: SentMessage) -> None:
        self._journal = journal
        self._queue = queue
        self._sent = sent
        texts = (location_text(location).split(":") for location in locations)
        self._locations = [(int(number), text) for number, text in texts]

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A put is sent again after failures of any kind: the last of them says nothing about the first.
        if error is not None and outcomes(error, 1, repeated=True) == ["none"]:
            return
        at = self._journal.now()
        lines = [
            self._journal.line(
                self._queue, self._sent, at, location, outcome="stored" if error is None else "unknown", put=True
            )
            for location in self._locations
        ]
        if error is None:
            self._journal.write(lines)
        else:
            _write_despite(self._journal, lines, error)


class _Nothing:
    """Messages in flight without receipts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def stored(self, receipts: list[Receipt]) -> list[Receipt]:
        return receipts


class NoJournal:
    """Keeps no receipts; has the methods of :class:`Journal` that the clients call."""

    _nothing = _Nothing()

    def sending(self, _queue: str, _messages: Iterable[Outgoing]) -> _Nothing:
        return self._nothing

    def putting(self, _queue: str, _locations: Sequence[MessageLocation], _message: Outgoing) -> _Nothing:
        return self._nothing

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


def _write_despite(journal: Journal, lines: Iterable[ReceiptLine], error: BaseException) -> None:
    """Writes lines after a failure, which stays the failure that the caller sees."""
    try:
        journal.write(lines)
    except ReceiptsError as failed:
        error.add_note(f"Besides, no receipt says so: {failed}")


@contextlib.contextmanager
def _locked(file: int, *, alone: bool) -> Iterator[None]:
    """Locks out writers while a program reads how the file ends: it could see half of a line.

    Where the system or the file has no locks, an empty line may come to stand between two others.
    """
    if not LOCKS:
        yield
        return
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _ends_with_a_line(file: int) -> bool:
    """Returns whether the last line is complete: a killed program or a full disk may have left a part of one."""
    size = os.fstat(file).st_size
    if not size:
        return True
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1) == b"\n"
