"""The audit log: records each act at the console before it is carried out, and then its result.

The log of an application is a queue of the internal application :data:`~queuey.model.messages.AUDITS`. No key grants
access to that application, so users cannot change the log. The store's ledger has an entry for each submitted form, so
the act of a form is carried out once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec

from queuey.access.queue_access import QueueAccess, find_queue
from queuey.messages.posts import Draft, MessageUseCases
from queuey.messages.range_reads import Reader
from queuey.messages.ranges import RangeRequest, parse_bound
from queuey.model import ids
from queuey.model.errors import ApplicationExists, ApplicationNotFound, QueueNotFound
from queuey.model.ids import Position
from queuey.model.messages import AUDITS, Location, Meta, QueueSpec
from queuey.storage import Store

ENTRY_TTL = 366 * 86_400
"""Seconds for which an entry is kept."""
PAGE_SIZE = 100
MAX_SCANNED = 2000
"""Max entries that are read for a page, even if the reader may see none of them."""
_JSON_META = Meta("application/json", (), json=True)

Outcome = Literal["unknown", "done", "partly", "failed"]
"""``unknown`` means that the act is running, or that its process ended before the result was recorded."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An act of an operator.

    Attributes:
        act: Name of the act.
        who: The actor, in words.
        queue: Name of the queue; blank if the act is about the application.
        details: Parameters by name.
        began: Seconds since 1970.
        outcome: The result.
        text: The result as a sentence.
    """

    act: str
    who: str
    queue: str
    details: dict[str, str]
    began: float
    outcome: Outcome = "unknown"
    text: str = ""


class SubmittedForm(msgspec.Struct, frozen=True, array_like=True):
    """A submitted form.

    Attributes:
        content: A hash of the form.
        partition, position: Location of the form's entry.
    """

    content: bytes
    partition: int
    position: Position

    @property
    def entry(self) -> Location:
        return self.partition, self.position


class AuditPage(msgspec.Struct, frozen=True):
    """A part of a log, the newest entry first.

    Attributes:
        entries: Locations and entries.
        cursor: Start of the next page; blank on the last one.
    """

    entries: list[tuple[Location, AuditEntry]]
    cursor: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditEntry).decode
_encode_sent = msgspec.msgpack.Encoder().encode
_decode_sent = msgspec.msgpack.Decoder(SubmittedForm).decode


class AuditLog:
    """Writes and reads the logs of applications.

    Pages that are read do not count as deliveries; a single entry counts only in the process's total.
    """

    def __init__(
        self, store: Store, messages: MessageUseCases, reader: Reader, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._messages = messages
        self._reader = reader
        self._clock = clock

    async def find_form(self, application: str, form: str) -> SubmittedForm | None:
        entry = await self._store.ledger.entry(_work_name(application, form), 0)
        return None if entry is None else _decode_sent(entry)

    async def begin(
        self, application: str, form: str, *, content: bytes, act: str, who: str, queue: str, details: dict[str, str]
    ) -> tuple[AuditEntry, SubmittedForm, bool]:
        """Records an act before it is carried out, once for each form. ``content`` is a hash of the form.

        Returns the entry, the record of the form, and whether the record refers to this entry. If not, the form was
        submitted before, and this entry was removed again.

        Raises:
            StoreUnavailable: The act was not recorded, so it must not be carried out.
        """
        entry = AuditEntry(act=act, who=who, queue=queue, details=details, began=round(self._clock(), 3))
        access, draft = await self._open_log(application, create=True), Draft(_encode(entry).decode(), meta=_JSON_META)
        posted = await access.apply(partial(self._messages.post, drafts=[draft]))
        sent = SubmittedForm(content, *posted.locations[0])
        value = _encode_sent(sent)
        present = await self._store.ledger.enter(_work_name(application, form), 0, value, expected=None)
        if present != value:
            await self._messages.delete(access, [sent.entry])
        return entry, _decode_sent(present), present == value

    async def end(self, application: str, location: Location, entry: AuditEntry, outcome: Outcome, text: str) -> None:
        ended = msgspec.structs.replace(entry, outcome=outcome, text=text)
        draft = Draft(_encode(ended).decode(), meta=_JSON_META)
        await self._messages.put(await self._open_log(application, create=True), [location], draft)

    async def find(self, application: str, location: Location) -> AuditEntry | None:
        try:
            messages = await self._messages.fetch(await self._open_log(application), [location], charted=False)
        except (ApplicationNotFound, QueueNotFound):
            return None
        return _decode(messages[0].body) if messages else None

    async def read_page(self, application: str, cursor: str, is_seen: Callable[[AuditEntry], bool]) -> AuditPage:
        """Returns a page of the entries that a caller may see, the newest first.

        The cursor is the id of the next visible entry, so it reveals nothing about other entries. If ``MAX_SCANNED``
        entries do not fill the page, it is the last one.

        Raises:
            ValueError: ``cursor`` is not a cursor.
        """
        since = parse_bound(cursor)
        try:
            access = await self._open_log(application)
        except (ApplicationNotFound, QueueNotFound):
            return AuditPage([], "")
        seen: list[tuple[Location, AuditEntry]] = []
        for _ in range(MAX_SCANNED // PAGE_SIZE):
            newest = RangeRequest(
                partitions=None, limit=PAGE_SIZE, descending=True, since=since, keeps_read_delay=False, merge=True
            )
            reading = await self._reader.read(access, newest)
            seen += (
                ((message.partition, message.position), entry)
                for message in reading.messages
                if is_seen(entry := _decode(message.body))
            )
            if len(seen) > PAGE_SIZE or not reading.more:
                break
            since = parse_bound(reading.cursor)
        return AuditPage(seen[:PAGE_SIZE], ids.to_hex(seen[PAGE_SIZE][0][1]) if len(seen) > PAGE_SIZE else "")

    async def _open_log(self, application: str, *, create: bool = False) -> QueueAccess:
        try:
            queue = await find_queue(self._store, AUDITS, application)
        except (ApplicationNotFound, QueueNotFound):
            if not create:
                raise
            with suppress(ApplicationExists):
                await self._store.applications.create_application(AUDITS)
            queue, _ = await self._store.catalogue.create_queue(AUDITS, application, QueueSpec(ttl=ENTRY_TTL))
        return QueueAccess(self._store, queue)


def _work_name(application: str, form: str) -> str:
    return f"console form {application} {form}"
