"""Dead letters: messages that could not be handled, kept with the reason. Their format, and what they have in common.

A dead letter lies in the queue ``<queue>.dead``, in the partition and under the id of the message that it was, so that
publishing it twice is the same as once. Where that could overwrite another message, as in a queue of another name, it
is posted under an idempotency key instead. Its body and content type are the message's, its headers too, and beside
them:

========================  ===========================================================================
``queuey-dead-queue``     the queue that it came from
``queuey-dead-partition`` the partition
``queuey-dead-id``        its id
``queuey-dead-attempts``  how often it was tried
``queuey-dead-error``     class of the last error
``queuey-dead-text``      what that error said, cut; absent if it said nothing
``queuey-dead-at``        when it was given up, ISO 8601 in UTC
``queuey-dead-history``   JSON list of the last attempts, oldest first: when, who, class and text of the error, cut
``queuey-dead-key``       the message key, if the queue of dead letters does not keep it
``queuey-dead-json``      ``1``: the body is the text of what was a JSON value; written by 0.1.0 only, now it stays one
``queuey-dead-type``      the content type, where HTTP cannot carry it as it is
``queuey-dead-headers``   a JSON object of headers that could not be kept as they are
``queuey-dead-lost``      number of headers that did not fit
========================  ===========================================================================

Text in these headers is printable ASCII; ``%`` and everything else is percent-encoded as UTF-8.
"""

from __future__ import annotations

import json as json_text
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Annotated, Literal
from urllib.parse import quote, unquote

import msgspec

from queuey.ids import TICKS_PER_SECOND, seconds_to_ticks
from queuey.messages import Message, Meta
from queuey.titles import instant, titled

SUFFIX = ".dead"
PREFIX = "queuey-dead-"
TTL = 2_592_000
"""Default seconds that a dead letter lives: 30 days."""
Way = Literal["as they are", "packed", "left out"]
WAYS: tuple[Way, ...] = ("as they are", "packed", "left out")
"""Ways to carry the message's own headers, in order: the next one is tried when they exceed the server's limits."""

Place = tuple[str, int, str]
"""Queue, partition and id of a message."""

SAMPLES = 20
"""Max dead letters that a result names among those that stay."""

_TEXT, _SHORT_TEXT = 500, 200
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^`|~-]+")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery of a message that did not lead to an acknowledgement.

    Attributes:
        number: Higher for later attempts.
        at: When it ended, in seconds since 1970.
        worker: The worker's name for itself; blank: none.
        error: Class of the error.
        text: Its message.
    """

    number: int = 0
    at: float
    worker: str = ""
    error: str = ""
    text: str = ""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message was given up.

    Attributes:
        attempts: How often it was tried.
        error: Class of the last error.
        text: Message of the last error.
        at: Seconds since 1970.
        history: The last attempts, oldest first.
    """

    attempts: int
    error: str
    text: str = ""
    at: Annotated[float, titled("given up", instant)]
    history: tuple[Attempt, ...] = ()


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a queue of dead letters, and the message that it was.

    Attributes:
        lies_in, stored_partition, stored_id: Its place in the queue of dead letters.
        queue, partition, id: Where it came from, by its headers.
        body: Text, or bytes if it is none.
        json: The body is the text of a JSON value.
        content_type, headers: As they were.
        lost: How many headers could not be kept.
        cause: Why it was given up.
        key: As it was, if it came from an ordered queue.
    """

    lies_in: str
    stored_partition: int
    stored_id: str
    queue: str
    partition: int
    id: str
    body: str | bytes
    json: bool
    content_type: str | None
    headers: Mapping[str, str]
    lost: int
    cause: Cause
    key: str | None = None


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of dead letters; every given condition must hold.

    Attributes:
        queues: The queues that they came from.
        patterns: Or shell patterns of those queues.
        dead_queue: The queue of dead letters; None: ``<queue>.dead``, and the one that the option ``dead_letter``
            names.
        partitions: Of the queue of dead letters; empty: all.
        since: Earliest time at which they were given up (seconds since 1970).
        until: Latest time.
        error: Class of the error, bare or with its module; a shell pattern.
        limit: Max dead letters of each queue, those of the lowest partitions and ids first; None: all.

    Raises:
        ValueError: No queue and no pattern is named, or the limit is below 1.
    """

    queues: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    dead_queue: str | None = None
    partitions: tuple[int, ...] = ()
    since: float | None = None
    until: float | None = None
    error: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.queues and not self.patterns:
            raise ValueError("name the queue that the dead letters came from, or a pattern")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"a limit is at least 1, not {self.limit}")

    def takes(self, one: DeadLetter) -> bool:
        at, error = one.cause.at, one.cause.error
        if (self.since is not None and at < self.since) or (self.until is not None and at > self.until):
            return False
        if one.queue not in self.queues and not any(fnmatchcase(one.queue, each) for each in self.patterns):
            return False
        bare = error.rpartition(".")[2]
        return self.error is None or fnmatchcase(error, self.error) or fnmatchcase(bare, self.error)


class UnsentDeadLetter(msgspec.Struct, frozen=True, order=True):
    """A dead letter that cannot be sent back."""

    lies_in: str
    partition: int
    id: str
    reason: str


class Redriven(msgspec.Struct, frozen=True):
    """Result of a redrive; with ``dry_run`` what it would do.

    Attributes:
        sent: Dead letters that went back, by queue.
        moved: Of these, how many got other ids than those reserved first, because a retry came too late for them.
        kept: Dead letters that a killed attempt had sent; it is not known if in time.
        left: Dead letters that cannot go back, by reason.
        samples: Some of these.
    """

    sent: dict[str, int] = {}
    moved: int = 0
    kept: int = 0
    left: dict[str, int] = {}
    samples: tuple[UnsentDeadLetter, ...] = ()

    def __add__(self, other: Redriven) -> Redriven:
        return Redriven(
            dict(Counter(self.sent) + Counter(other.sent)),
            self.moved + other.moved,
            self.kept + other.kept,
            dict(Counter(self.left) + Counter(other.left)),
            tuple(sorted((*self.samples, *other.samples))[:SAMPLES]),
        )


def by_origin(
    found: Sequence[DeadLetter], queues: Mapping[str, tuple[int, str] | None], dead_queue: str | None = None
) -> tuple[dict[str, list[int]], Redriven]:
    """Divides dead letters by the queue that they go back to.

    A producer can store a message that claims to be a dead letter of any queue. So one goes back only from where
    letters of that queue are kept.

    Args:
        found: The dead letters.
        queues: Number of partitions and option ``dead_letter`` of each origin; None: the queue is gone.
        dead_queue: The operator has named it; what lies there is believed.

    Returns:
        The indexes of those that go to each queue, and those that stay.
    """
    going: dict[str, list[int]] = defaultdict(list)
    staying = Redriven()
    for index, one in enumerate(found):
        there = queues[one.queue]
        if there is None:
            reason = f"queue {one.queue} is gone"
        elif one.lies_in not in {dead_queue, *queues_for(one.queue, there[1])}:
            reason = f"dead letters of {one.queue} do not go to {one.lies_in}: check them, then name --dead-queue"
        elif not 0 < one.partition <= there[0]:
            reason = f"queue {one.queue} has only {there[0]} partitions"
        else:
            going[one.queue].append(index)
            continue
        staying += left_of([one], reason)
    return going, staying


def left_of(letters: Sequence[DeadLetter], reason: str) -> Redriven:
    """Returns the result for dead letters that stay."""
    staying = (UnsentDeadLetter(each.lies_in, each.stored_partition, each.stored_id, reason) for each in letters)
    return Redriven(left={reason: len(letters)}, samples=tuple(sorted(staying)[:SAMPLES]))


def place_of(letter: DeadLetter, kind: str, *, keeps_keys: bool) -> tuple[int | None, str | None]:
    """Returns the partition and the key with which a dead letter is posted to a queue; None: the queue chooses."""
    key = letter.key if keeps_keys else None
    return (letter.partition if kind == "plain" and key is None else None), key


def queue_for(queue: str, dead_queue: str | None = None) -> str:
    return dead_queue or queue + SUFFIX


def queues_for(queue: str, dead_letter: str = "") -> set[str]:
    """Returns the queues of a queue's dead letters, those of handlers and those of claims.

    ``dead_letter`` is the queue's option; blank: none.
    """
    return {queue_for(queue), queue_for(queue, dead_letter)}


def holds_dead(queue: str, dead_queue: str | None = None) -> bool:
    """Returns whether a queue is one of dead letters."""
    return queue == dead_queue or queue.endswith(SUFFIX)


def matches_patterns(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether members that subscribe to queues by shell patterns want the queue of a name.

    A pattern matches queues for dead letters only if it ends as they do: a worker would handle its failures again and
    again.
    """
    every, dead = _matchers(patterns)
    return (dead if name.endswith(SUFFIX) else every)(name) is not None


@lru_cache(256)
def _matchers(patterns: tuple[str, ...]) -> tuple[Callable[[str], object], Callable[[str], object]]:
    """Returns a match for all patterns, and a match for patterns of queues for dead letters."""
    dead = [pattern for pattern in patterns if pattern.endswith(SUFFIX)]
    every, ends = ("|".join(map(translate, each)) or "(?!)" for each in (patterns, dead))
    return re.compile(every).match, re.compile(ends).match


def origin_of(meta: Meta | None) -> list[str | None]:
    """Returns queue, partition and id from the headers of a dead letter; None for each that is missing."""
    said = dict(meta.headers) if meta else {}
    return [said.get(PREFIX + name) for name in ("queue", "partition", "id")]


def headers_of(
    place: Place, kind: str | None, headers: Mapping[str, str], cause: Cause, way: Way = WAYS[0], key: str | None = None
) -> dict[str, str]:
    """Returns the headers of a dead letter.

    Args:
        place: Where the message was.
        kind: Its content type.
        headers: Its own headers.
        cause: Why it was given up.
        way: How it carries them.
        key: Its key, unless that is stored beside the headers.
    """
    plain = {name: text for name, text in headers.items() if way == "as they are" and _fits(name, text)}
    packed = {name: text for name, text in headers.items() if name not in plain}
    own = {
        "queue": _ascii(place[0]),
        "partition": str(place[1]),
        "id": place[2],
        "attempts": str(cause.attempts),
        "error": _ascii(cause.error),
        "text": _ascii(cause.text[:_TEXT]),
        "history": _history_text(cause.history),
        "at": datetime.fromtimestamp(cause.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "key": _ascii(key or ""),
        "type": "" if is_carried(kind) else _ascii(kind or ""),
        "headers": json_text.dumps(packed) if packed and way != "left out" else "",
        "lost": str(len(packed)) if packed and way == "left out" else "",
    }
    return plain | {PREFIX + name: text for name, text in own.items() if text}


def dead_letter_of(message: Message, queue: str, cause: Cause, *, ttl: int = TTL) -> Message:
    """Returns the dead letter of a stored message, with the same id and partition.

    Args:
        message: The message.
        queue: Where it came from.
        cause: Why it was given up.
        ttl: Seconds to live, from when it was given up.
    """
    meta = message.meta or Meta()
    headers = headers_of((queue, message.partition, message.id), meta.content_type, dict(meta.headers), cause)
    kind = meta.content_type if is_carried(meta.content_type) else None
    expires = seconds_to_ticks(cause.at) + ttl * TICKS_PER_SECOND
    kept = Meta(kind, tuple(headers.items()), meta.json, meta.key)
    return msgspec.structs.replace(message, expires=expires, meta=kept)


def dead_letter_from(
    headers: Mapping[str, str],
    body: str | bytes,
    *,
    lies: Place,
    content_type: str | None,
    json: bool = False,
    key: str | None = None,
) -> DeadLetter | None:
    """Reads a message of a queue of dead letters; None: it is no dead letter.

    Args:
        headers: Of the message.
        body: Of the message; a JSON value as its text.
        lies: Its place in the queue of dead letters.
        content_type: Of the message.
        json: It is stored as a JSON value, whatever its headers say.
        key: Of the message.
    """
    said = {name.removeprefix(PREFIX): text for name, text in headers.items() if name.startswith(PREFIX)}
    try:
        packed = msgspec.json.decode(said.get("headers", "{}"), type=dict[str, str])
        return DeadLetter(
            lies_in=lies[0],
            stored_partition=lies[1],
            stored_id=lies[2],
            queue=unquote(said["queue"]),
            partition=int(said["partition"]),
            id=said["id"],
            body=body,
            json=json or "json" in said,
            content_type=unquote(said["type"]) if "type" in said else content_type,
            headers={name: text for name, text in headers.items() if not name.startswith(PREFIX)} | packed,
            lost=int(said.get("lost", 0)),
            cause=Cause(
                attempts=int(said["attempts"]),
                error=unquote(said["error"]),
                text=unquote(said.get("text", "")),
                at=datetime.fromisoformat(said["at"]).timestamp(),
                history=msgspec.json.decode(said.get("history", "[]"), type=tuple[Attempt, ...]),
            ),
            key=unquote(said["key"]) if "key" in said else key,
        )
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
        return None


def stored_dead_letter(message: Message, lies_in: str) -> DeadLetter | None:
    """Reads a stored message of a queue of dead letters; None: it is no dead letter."""
    meta = message.meta or Meta()
    headers, lies, kind = dict(meta.headers), (lies_in, message.partition, message.id), meta.content_type
    return dead_letter_from(headers, message.body, lies=lies, content_type=kind, json=meta.json, key=meta.key)


def moved_to(queue: str, message: Message) -> Message:
    """Returns a message as a move stores it in a queue.

    A dead letter that goes back to the queue that it came from is the message that it was. Elsewhere it stays a dead
    letter.
    """
    letter = stored_dead_letter(message, "")
    if letter is None:
        return message
    meta = message.meta or Meta()
    if letter.queue == queue:
        meta = Meta(letter.content_type, tuple(letter.headers.items()), key=meta.key)
    return msgspec.structs.replace(message, meta=msgspec.structs.replace(meta, json=letter.json))


def _history_text(history: Sequence[Attempt]) -> str:
    """Returns attempts as the text of a header, as many as fit."""
    short = [msgspec.structs.replace(one, text=one.text[:_SHORT_TEXT]) for one in history]
    return json_text.dumps(msgspec.to_builtins(short)) if short else ""


def is_carried(kind: str | None) -> bool:
    """Returns whether HTTP can carry a content type as it is."""
    return kind is None or _VALUE.fullmatch(kind) is not None


_SHAPES = [
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"0[xX][0-9a-fA-F]+"), "<id>"),
    (re.compile(r'"[^"\n]*"'), '"…"'),
    (re.compile(r"(?<![A-Za-z0-9])'[^'\n]*'(?![A-Za-z0-9])"), "'…'"),
    (re.compile(r"`[^`\n]*`"), "`…`"),
    (re.compile(r"(?<!\w)[-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?"), "<n>"),
    (re.compile(r"\s+"), " "),
]


def shape_of(text: str) -> str:
    """Returns the common form of texts of one kind of error: ids, quoted strings and numbers are replaced."""
    for pattern, instead in _SHAPES:
        text = pattern.sub(instead, text)
    return text.strip()


def _fits(name: str, text: str) -> bool:
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(text) is not None and not name.startswith(PREFIX)


def _ascii(text: str) -> str:
    """Returns text as a header's value. HTTP would drop spaces at its ends."""
    inner = quote(text.encode("utf-8", "backslashreplace"), safe=_PRINTABLE)
    start, end = len(inner) - len(inner.lstrip()), len(inner) - len(inner.rstrip())
    return "%20" * len(inner) if start == len(inner) else "%20" * start + inner.strip() + "%20" * end
