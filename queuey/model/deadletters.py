"""Dead letters: messages that could not be handled, kept with the reason. Their format and rules.

A dead letter is stored in the queue ``<queue>.dead``, with the partition and the id of the original message, so
publishing it twice has the same effect as once. In a queue of another name that could overwrite another message, so it
is posted there under an idempotency key instead. It has the body, content type and headers of the original message, and
these headers:

========================  ===========================================================================
``queuey-dead-queue``     the original queue
``queuey-dead-partition`` the original partition
``queuey-dead-id``        the original id
``queuey-dead-attempts``  number of attempts
``queuey-dead-error``     class of the last error
``queuey-dead-text``      message of the last error, truncated; absent if it is empty
``queuey-dead-at``        when the message was given up, ISO 8601 in UTC
``queuey-dead-history``   JSON list of the last attempts, oldest first: time, worker, error class and truncated message
``queuey-dead-key``       the message key, if the queue of dead letters does not keep it
``queuey-dead-type``      the content type, if HTTP cannot carry it unchanged
``queuey-dead-headers``   a JSON object of headers that could not be kept unchanged
``queuey-dead-lost``      number of headers that did not fit
========================  ===========================================================================

Text in these headers is printable ASCII; ``%`` and all other characters are percent-encoded as UTF-8.
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

from queuey.model.ids import TICKS_PER_SECOND, seconds_to_ticks
from queuey.model.kinds import Traits
from queuey.model.messages import Message, Meta
from queuey.model.titles import instant, option, titled

SUFFIX = ".dead"
HEADER_PREFIX = "queuey-dead-"
TTL = 2_592_000
"""Default seconds that a dead letter lives: 30 days."""
HeaderMode = Literal["as they are", "packed", "left out"]
HEADER_MODES: tuple[HeaderMode, ...] = ("as they are", "packed", "left out")
"""Ways to keep the headers of the original message. If one exceeds the server's limits, the next one is tried."""

_PANEL = "Which dead letters"
QueueLocation = tuple[str, int, str]
"""Name of a queue, and partition and id of a message in it: identifies a message of an application."""

MAX_SAMPLES = 20
"""Max dead letters that a result lists as examples."""

_TEXT, _SHORT_TEXT = 500, 200
_HEADER_NAME_PATTERN = re.compile(r"[a-z0-9!#$%&'*+.^`|~-]+")
_HEADER_VALUE_PATTERN = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_UNESCAPED_CHARACTERS = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery of a message that did not lead to an acknowledgement.

    Attributes:
        number: Number of the attempt; later attempts have higher numbers.
        at: When it ended (seconds since 1970).
        worker: The worker's name for itself; may be blank.
        error: Class of the error.
        text: Message of the error.
    """

    number: int = 0
    at: float
    worker: str = ""
    error: str = ""
    text: str = ""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message was given up.

    Attributes:
        attempts: Number of attempts.
        error: Class of the last error.
        text: Message of the last error.
        at: When the message was given up (seconds since 1970).
        history: The last attempts, oldest first.
    """

    attempts: int
    error: str
    text: str = ""
    at: Annotated[float, titled("given up", instant)]
    history: tuple[Attempt, ...] = ()


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a queue of dead letters, decoded into the original message and the cause.

    Attributes:
        lies_in, stored_partition, stored_id: Queue of dead letters, and partition and id in it.
        queue, partition, id: Queue, partition and id of the original message, according to its headers.
        body: The body: text, or bytes if it is not text.
        json: The body is the text of a JSON value.
        content_type, headers: Content type and headers of the original message.
        lost: Number of headers that could not be kept.
        cause: Why the message was given up.
        key: Key of the original message, if it is known.
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
    """Selects dead letters. All given conditions must hold. Times are in seconds since 1970.

    Attributes:
        queues: Queue that they came from; several may be given.
        patterns: Shell pattern of queues that they came from: crash-*; several may be given.
        dead_queue (<queue>.dead and the queue's dead_letter): Queue that holds them.
        partitions: Only this partition of that queue; several may be given.
        since: Given up at or after this time.
        until: Given up at or before this time.
        error: Class of the error, with or without its module, or a shell pattern: ValueError, requests.*
        limit: Max dead letters of each queue of dead letters, the lowest partitions and ids first.

    Raises:
        ValueError: Neither a queue nor a pattern is given, or the limit is below 1.
    """

    queues: Annotated[tuple[str, ...], option("--queue", panel=_PANEL)] = ()
    patterns: Annotated[tuple[str, ...], option("--pattern", panel=_PANEL)] = ()
    dead_queue: Annotated[str | None, option(panel=_PANEL)] = None
    partitions: Annotated[tuple[int, ...], option("--partition", panel=_PANEL)] = ()
    since: Annotated[float | None, option(instant=True, panel=_PANEL)] = None
    until: Annotated[float | None, option(instant=True, panel=_PANEL)] = None
    error: Annotated[str | None, option(panel=_PANEL)] = None
    limit: Annotated[int | None, option(panel=_PANEL)] = None

    def __post_init__(self) -> None:
        if not self.queues and not self.patterns:
            raise ValueError("name the queue that the dead letters came from, or a pattern")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"a limit is at least 1, not {self.limit}")

    def matches_letter(self, letter: DeadLetter) -> bool:
        """Tests time, queue and error; the pattern may match the error class with or without its module."""
        at, error = letter.cause.at, letter.cause.error
        if (self.since is not None and at < self.since) or (self.until is not None and at > self.until):
            return False
        if letter.queue not in self.queues and not any(fnmatchcase(letter.queue, pattern) for pattern in self.patterns):
            return False
        bare = error.rpartition(".")[2]
        return self.error is None or fnmatchcase(error, self.error) or fnmatchcase(bare, self.error)


class UnsentDeadLetter(msgspec.Struct, frozen=True, order=True):
    """A dead letter that cannot be sent back."""

    lies_in: str
    partition: int
    id: str
    reason: str


class Redriven(msgspec.Struct, frozen=True, tag_field="status", tag="ok"):
    """Result of a redrive; with ``dry_run`` the expected result.

    Attributes:
        sent: Number of dead letters sent back, by queue.
        already_sent: Number of dead letters that an earlier, interrupted call had sent, and that were only removed.
        left: Number of dead letters that cannot be sent back, by reason.
        samples: Examples of the dead letters that cannot be sent back.
        error: Why the redrive ended early, or None.
    """

    sent: dict[str, int] = {}
    already_sent: int = 0
    left: dict[str, int] = {}
    samples: tuple[UnsentDeadLetter, ...] = ()
    error: str | None = None

    def __add__(self, other: Redriven) -> Redriven:
        return Redriven(
            dict(Counter(self.sent) + Counter(other.sent)),
            self.already_sent + other.already_sent,
            dict(Counter(self.left) + Counter(other.left)),
            tuple(sorted((*self.samples, *other.samples))[:MAX_SAMPLES]),
            self.error or other.error,
        )


def group_by_origin(
    letters: Sequence[DeadLetter], queues: Mapping[str, tuple[int, str]], dead_queue: str | None = None
) -> tuple[dict[str, list[int]], Redriven]:
    """Groups dead letters by the queue to which they can be sent back.

    A producer can store a message that claims to be a dead letter of any queue. So a dead letter is sent back only if
    it lies in a queue of dead letters of its original queue.

    Args:
        letters: The dead letters.
        queues: Number of partitions and option ``dead_letter`` of each original queue.
        dead_queue: A queue of dead letters that the operator has named, and that is trusted.

    Returns:
        For each queue the indexes of the dead letters that can be sent to it, and the result for the others.
    """
    going: dict[str, list[int]] = defaultdict(list)
    staying = Redriven()
    for index, letter in enumerate(letters):
        origin = queues[letter.queue]
        if letter.lies_in not in {dead_queue, *list_dead_letter_queues(letter.queue, origin[1])}:
            reason = f"dead letters of {letter.queue} do not go to {letter.lies_in}: check them, then name --dead-queue"
        elif not 0 < letter.partition <= origin[0]:
            reason = f"queue {letter.queue} has only {origin[0]} partitions"
        else:
            going[letter.queue].append(index)
            continue
        staying += make_unsent_result([letter], reason)
    return going, staying


def make_unsent_result(letters: Sequence[DeadLetter], reason: str) -> Redriven:
    staying = (UnsentDeadLetter(x.lies_in, x.stored_partition, x.stored_id, reason) for x in letters)
    return Redriven(left={reason: len(letters)}, samples=tuple(sorted(staying)[:MAX_SAMPLES]))


def choose_partition_and_key(letter: DeadLetter, traits: Traits) -> tuple[int | None, str | None]:
    """Returns the partition and the key for posting a dead letter to a queue. With None the service chooses.

    The key is given only to a queue that stores keys, the partition only without a key.
    """
    key = letter.key if traits.stores_keys else None
    return (letter.partition if "post to partition" not in traits.refuses and key is None else None), key


def queue_for(queue: str, dead_queue: str | None = None) -> str:
    return dead_queue or queue + SUFFIX


def list_dead_letter_queues(queue: str, dead_letter: str = "") -> set[str]:
    return {queue_for(queue), queue_for(queue, dead_letter)}


def holds_dead(queue: str, dead_queue: str | None = None) -> bool:
    return queue == dead_queue or queue.endswith(SUFFIX)


@lru_cache(1 << 16)
def matches_patterns(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether a queue name matches one of the shell patterns of a subscription.

    The cost is at most the length of the name times that of the patterns: ``fnmatch`` tries no star again once the text
    behind it was found.

    A pattern matches queues of dead letters only if it ends with ``.dead``: otherwise a worker would handle its own
    failures again and again.
    """
    every, dead = _compile_patterns(patterns)
    return (dead if name.endswith(SUFFIX) else every)(name) is not None


@lru_cache(256)
def _compile_patterns(patterns: tuple[str, ...]) -> tuple[Callable[[str], object], Callable[[str], object]]:
    dead = [pattern for pattern in patterns if pattern.endswith(SUFFIX)]
    every, ends = ("|".join(map(translate, group)) or "(?!)" for group in (patterns, dead))
    return re.compile(every).match, re.compile(ends).match


def read_origin(meta: Meta | None) -> list[str | None]:
    """Returns queue, partition and id from the headers of a dead letter, with None for a missing header."""
    headers = dict(meta.headers) if meta else {}
    return [headers.get(HEADER_PREFIX + name) for name in ("queue", "partition", "id")]


def make_headers(
    place: QueueLocation,
    kind: str | None,
    headers: Mapping[str, str],
    cause: Cause,
    way: HeaderMode = HEADER_MODES[0],
    key: str | None = None,
) -> dict[str, str]:
    """Returns the headers of a dead letter.

    Args:
        place: Queue, partition and id of the original message.
        kind: Content type of the original message.
        headers: Headers of the original message.
        cause: Why the message was given up.
        way: How the original headers are kept.
        key: Key of the message, unless the queue of dead letters keeps it.
    """
    plain = {name: text for name, text in headers.items() if way == "as they are" and _fits(name, text)}
    packed = {name: text for name, text in headers.items() if name not in plain}
    own = {
        "queue": _encode_header_value(place[0]),
        "partition": str(place[1]),
        "id": place[2],
        "attempts": str(cause.attempts),
        "error": _encode_header_value(cause.error),
        "text": _encode_header_value(cause.text[:_TEXT]),
        "history": _history_text(cause.history),
        "at": datetime.fromtimestamp(cause.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "key": _encode_header_value(key or ""),
        "type": "" if is_header_safe(kind) else _encode_header_value(kind or ""),
        "headers": json_text.dumps(packed) if packed and way != "left out" else "",
        "lost": str(len(packed)) if packed and way == "left out" else "",
    }
    return plain | {HEADER_PREFIX + name: text for name, text in own.items() if text}


def dead_letter_of(message: Message, queue: str, cause: Cause, *, ttl: int = TTL) -> Message:
    """Returns the dead letter of a stored message, with the same id and partition.

    Args:
        message: The original message.
        queue: The original queue.
        cause: Why the message was given up.
        ttl: TTL in seconds, counted from when the message was given up.
    """
    meta = message.meta or Meta()
    headers = make_headers((queue, message.partition, message.id), meta.content_type, dict(meta.headers), cause)
    kind = meta.content_type if is_header_safe(meta.content_type) else None
    expires = seconds_to_ticks(cause.at) + ttl * TICKS_PER_SECOND
    kept = Meta(kind, tuple(headers.items()), meta.json, meta.key)
    return msgspec.structs.replace(message, expires=expires, meta=kept)


def decode_dead_letter(
    headers: Mapping[str, str],
    body: str | bytes,
    *,
    lies: QueueLocation,
    content_type: str | None,
    json: bool = False,
    key: str | None = None,
) -> DeadLetter | None:
    """Decodes a message of a queue of dead letters. Returns None if it is not a dead letter.

    Args:
        headers: Headers of the message.
        body: Body of the message; a JSON value as its text.
        lies: Place of the message in the queue of dead letters.
        content_type: Content type of the message.
        json: The body is stored as a JSON value.
        key: Key of the message.
    """
    own = {name.removeprefix(HEADER_PREFIX): text for name, text in headers.items() if name.startswith(HEADER_PREFIX)}
    try:
        packed = msgspec.json.decode(own.get("headers", "{}"), type=dict[str, str])
        return DeadLetter(
            lies_in=lies[0],
            stored_partition=lies[1],
            stored_id=lies[2],
            queue=unquote(own["queue"]),
            partition=int(own["partition"]),
            id=own["id"],
            body=body,
            json=json,
            content_type=unquote(own["type"]) if "type" in own else content_type,
            headers={name: text for name, text in headers.items() if not name.startswith(HEADER_PREFIX)} | packed,
            lost=int(own.get("lost", 0)),
            cause=Cause(
                attempts=int(own["attempts"]),
                error=unquote(own["error"]),
                text=unquote(own.get("text", "")),
                at=datetime.fromisoformat(own["at"]).timestamp(),
                history=msgspec.json.decode(own.get("history", "[]"), type=tuple[Attempt, ...]),
            ),
            key=unquote(own["key"]) if "key" in own else key,
        )
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
        return None


def decode_stored_dead_letter(message: Message, lies_in: str) -> DeadLetter | None:
    meta = message.meta or Meta()
    headers, lies, kind = dict(meta.headers), (lies_in, message.partition, message.id), meta.content_type
    return decode_dead_letter(headers, message.body, lies=lies, content_type=kind, json=meta.json, key=meta.key)


def convert_for_move(queue: str, message: Message) -> Message:
    """Returns a message as a move stores it in a queue.

    A dead letter that is moved to its original queue becomes the original message. In other queues it stays a dead
    letter.
    """
    letter = decode_stored_dead_letter(message, "")
    if letter is None or letter.queue != queue:
        return message
    key = None if message.meta is None else message.meta.key
    meta = Meta(letter.content_type, tuple(letter.headers.items()), letter.json, key)
    return msgspec.structs.replace(message, meta=meta)


def _history_text(history: Sequence[Attempt]) -> str:
    short = [msgspec.structs.replace(attempt, text=attempt.text[:_SHORT_TEXT]) for attempt in history]
    return json_text.dumps(msgspec.to_builtins(short)) if short else ""


def is_header_safe(kind: str | None) -> bool:
    """Returns whether a content type can be the value of an HTTP header, so that a dead letter keeps it."""
    return kind is None or _HEADER_VALUE_PATTERN.fullmatch(kind) is not None


_VARIABLE_PARTS = [
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "…"),
    (re.compile(r"\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b"), "…"),
    (re.compile(r"0[xX][0-9a-fA-F]+"), "…"),
    (re.compile(r'"[^"\n]*"'), '"…"'),
    (re.compile(r"(?<![A-Za-z0-9])'[^'\n]*'(?![A-Za-z0-9])"), "'…'"),
    (re.compile(r"`[^`\n]*`"), "`…`"),
    (re.compile(r"(?<!\w)[-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?"), "…"),
    (re.compile(r"\s+"), " "),
]


def generalize_error_text(text: str) -> str:
    for pattern, replacement in _VARIABLE_PARTS:
        text = pattern.sub(replacement, text)
    return text.strip()


def _fits(name: str, text: str) -> bool:
    return (
        _HEADER_NAME_PATTERN.fullmatch(name) is not None
        and _HEADER_VALUE_PATTERN.fullmatch(text) is not None
        and not name.startswith(HEADER_PREFIX)
    )


def _encode_header_value(text: str) -> str:
    inner = quote(text.encode("utf-8", "backslashreplace"), safe=_UNESCAPED_CHARACTERS)
    start, end = len(inner) - len(inner.lstrip()), len(inner) - len(inner.rstrip())
    return "%20" * len(inner) if start == len(inner) else "%20" * start + inner.strip() + "%20" * end
