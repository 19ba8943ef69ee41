"""The audit log: an act at the console is written down before it is done, and then its result.

The log of an application is a queue of the service's own application, :data:`~queuey.messages.AUDITS`. No key is for
that application, so users cannot change the log. The store's ledger has each form that was sent, so
it is done once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec

from queuey import ids
from queuey.errors import ApplicationExists, ApplicationNotFound, QueueNotFound
from queuey.ids import Position
from queuey.messages import AUDITS, Location, Meta, QueueSpec
from queuey.service.core import Core
from queuey.service.messages import Draft, MessageUseCases
from queuey.service.queue_access import QueueAccess, find_queue
from queuey.service.ranges import Range, parse_bound
from queuey.service.reading import Reader
from queuey.storage import Store, bridge

KEPT = 366 * 86_400
"""Number of seconds for which an entry is kept."""
PAGE = 100
"""Number of entries of a page."""
MAX_SCANNED = 2000
"""Max entries that are read for a page, also if its reader sees none of them."""
_JSON = Meta("application/json", (), json=True)

Outcome = Literal["unknown", "done", "partly", "failed"]
"""``unknown``: it is under way, or the process ended in between."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An act, done or about to be done.

    Attributes:
        act: Its name.
        who: Its actor, in words.
        queue: Its queue; blank: it is about the application.
        details: Its parameters, by name.
        began: Seconds since 1970.
        outcome: Its result.
        text: The result in a sentence.
    """

    act: str
    who: str
    queue: str
    details: dict[str, str]
    began: float
    outcome: Outcome = "unknown"
    text: str = ""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """A form that was sent.

    Attributes:
        content: A hash of the form.
        partition, position: Place of its entry.
    """

    content: bytes
    partition: int
    position: Position

    @property
    def entry(self) -> Location:
        return self.partition, self.position


class Page(msgspec.Struct, frozen=True):
    """A part of a log, the newest entry first.

    Attributes:
        entries: With their places.
        cursor: Start of the next page; blank: there is none.
    """

    entries: list[tuple[Location, Entry]]
    cursor: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode
_encode_sent = msgspec.msgpack.Encoder().encode
_decode_sent = msgspec.msgpack.Decoder(Sent).decode


class AuditLog:
    """Writes and reads the logs of applications; blocks. Its reads do not count as deliveries."""

    def __init__(
        self,
        store: Store,
        messages: MessageUseCases,
        reader: Reader,
        core: Core,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._messages = messages
        self._reader = reader
        self._core = core
        self._clock = clock

    def sent(self, application: str, form: str) -> Sent | None:
        """Returns the entry of a form; None: it was not sent yet."""
        entry = bridge.run(self._store.ledger.entry(_work(application, form), 0))
        return None if entry is None else _decode_sent(entry)

    def begin(
        self, application: str, form: str, *, content: bytes, act: str, who: str, queue: str, details: dict[str, str]
    ) -> tuple[Entry, Sent, bool]:
        """Writes down an act before it is done, once for each form; ``content`` is a hash of the form.

        Returns the entry, the form's record, and whether that is of this entry; if not, the form was sent before.

        Raises:
            StoreUnavailable: It could not be written down, so it must not be done.
        """
        entry = Entry(act=act, who=who, queue=queue, details=details, began=round(self._clock(), 3))
        access, draft = self._access(application, create=True), Draft(_encode(entry).decode(), meta=_JSON)
        posted = self._core.run(access.apply(partial(self._messages.post, drafts=[draft])))
        sent = Sent(content, *posted.locations[0])
        value = _encode_sent(sent)
        stands = bridge.run(self._store.ledger.enter(_work(application, form), 0, value, expected=None))
        if stands != value:
            self._messages.delete(access, [sent.entry])
        return entry, _decode_sent(stands), stands == value

    def end(self, application: str, place: Location, entry: Entry, outcome: Outcome, text: str) -> None:
        """Writes down the result."""
        ended = msgspec.structs.replace(entry, outcome=outcome, text=text)
        draft = Draft(_encode(ended).decode(), meta=_JSON)
        self._messages.put(self._access(application, create=True), [place], draft)

    def find(self, application: str, place: Location) -> Entry | None:
        """Returns an entry; None: there is none at this place."""
        try:
            found = self._messages.fetch(self._access(application), [place], charted=False)
        except (ApplicationNotFound, QueueNotFound):
            return None
        return _decode(found[0].body) if found else None

    def page(self, application: str, cursor: str, is_seen: Callable[[Entry], bool]) -> Page:
        """Returns the entries that a caller sees, the newest first.

        The cursor is the id of the next one of these, so it says nothing of other entries. Behind ``MAX_SCANNED``
        entries there is no further page.

        Raises:
            ValueError: ``cursor`` is none.
        """
        since = parse_bound(cursor)
        try:
            access = self._access(application)
        except (ApplicationNotFound, QueueNotFound):
            return Page([], "")
        seen: list[tuple[Location, Entry]] = []
        for _ in range(MAX_SCANNED // PAGE):
            wanted = Range(partitions=None, limit=PAGE, descending=True, since=since, delayed=False, merge=True)
            reading = self._reader.read(access, wanted)
            seen += (
                ((found.partition, found.position), entry)
                for found in reading.messages
                if is_seen(entry := _decode(found.body))
            )
            if len(seen) > PAGE or not reading.more:
                break
            since = parse_bound(reading.cursor)
        return Page(seen[:PAGE], ids.to_hex(seen[PAGE][0][1]) if len(seen) > PAGE else "")

    def _access(self, application: str, *, create: bool = False) -> QueueAccess:
        try:
            queue = bridge.run(find_queue(self._store, AUDITS, application))
        except (ApplicationNotFound, QueueNotFound):
            if not create:
                raise
            with suppress(ApplicationExists):
                bridge.run(self._store.applications.create_application(AUDITS))
            queue, _ = bridge.run(self._store.catalogue.create_queue(AUDITS, application, QueueSpec(ttl=KEPT)))
        return QueueAccess(self._core, self._store, queue, lambda _: None)


def _work(application: str, form: str) -> str:
    return f"console form {application} {form}"
