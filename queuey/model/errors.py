"""Every error that Queuey raises, in one tree.

::

    QueueyError
    ├── InvalidRequest            bad input; ``fields`` explains each bad field
    │   ├── Malformed             bad input, regardless of the queue
    │   │   └── TooLarge          a body or a batch over its limit
    │   ├── KeyReused             the idempotency key belongs to another post
    │   └── UnknownCoding         the body is compressed or otherwise encoded
    ├── NotAuthenticated          the credential is unknown, expired or revoked
    │   ├── NoCredential          a credential is needed, and none was given
    │   ├── InvalidToken          a user's token is not accepted
    │   └── InvalidAssertion      a user's BrowserID assertion is not accepted
    ├── NotAllowed                the caller lacks the permission
    ├── NotFound
    │   ├── ApplicationNotFound
    │   ├── QueueNotFound
    │   ├── GroupNotFound
    │   ├── KeyNotFound
    │   ├── MessageNotFound
    │   ├── MemberGone            a member of a consumer group does not exist any more, or never did
    │   ├── MoveNotFound
    │   └── ScheduleNotFound
    ├── Conflict
    │   ├── QueueExists           re-created with other fields; carries the queue
    │   ├── ApplicationExists
    │   ├── OffsetConflict        compare-and-set failed; carries the present offsets
    │   ├── KeyInUse              a post with this idempotency key is being carried out
    │   ├── NameTaken             the name belongs to a message with another body
    │   ├── NameChanged           another caller is changing the value of a name
    │   ├── RecordChanged         the stored record has another version
    │   ├── MoveUnderWay          messages of the queue are already being moved
    │   ├── ClaimsRefused         the queue's consistency level does not allow claims
    │   ├── TimeZoneUnknown       the machine does not know the time zone of a schedule
    │   ├── NotOwner              a member commits for partitions that it does not own; carries them
    │   ├── GroupActive           the consumer group has members
    │   ├── GroupElsewhere        the consumer group is served in another data centre
    │   └── ClaimLost             messages were delivered again or replaced; carries the result of each receipt
    ├── QueueChanged              a cached queue row is out of date; read it again and retry
    ├── TooManyRequests           the application has used up its share of the process
    │   ├── TooManyWaiters        too many long polls
    │   ├── TooManyMoves          too many moves between queues are under way
    │   ├── TooManySchedules      the application has its max number of schedules
    │   ├── TooManyGroups         the application has its max number of consumer groups
    │   ├── TooManyMembers        a consumer group has its max number of members, or of joins within the hour
    │   └── TooManyClaims         a partition has its max number of claims
    ├── StoreUnavailable          the store cannot serve now; ``outcome`` tells whether a write may be visible
    │   ├── StoreBusy             locked by another process for too long
    │   ├── StoreFull             no space left
    │   ├── StoreClosed           shutting down
    │   ├── WriteUndone           messages may have been written too late, and were removed again
    │   └── IssuerUnavailable     the keys for checking a user's credential are not available
    ├── TooLate                   readers may have passed reserved ids
    ├── StoreIncompatible         this program does not know the format of the file or schema
    └── SettingsError             unknown, conflicting or malformed settings

``code`` is stable: clients may branch on it. HTTP statuses are defined only in ``queuey.web.errors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from queuey.model.messages import Queue

Outcome = Literal["none", "unknown"]


class QueueyError(Exception):
    """Base class of all errors of Queuey.

    Attributes:
        code: A stable word for programs: the name of the class, unless the class has another one.
        form: Format string of the message. It may use the arguments by index; ``name`` is the first argument, and
            ``quoted`` is the first argument quoted for a shell. If blank, the argument is the message.
    """

    code = "Error"
    form = ""

    def __init_subclass__(cls) -> None:
        if "code" not in cls.__dict__:
            cls.code = cls.__name__

    def __str__(self) -> str:
        if not self.form:
            return super().__str__()
        name = str(self.args[0])
        return self.form.format(*self.args, name=name, quoted=quote(name))


class InvalidRequest(QueueyError):
    """Bad input. Nothing was stored.

    Args:
        fields: An explanation for each bad field (``"1.partition"`` in a batch).
        code: Overrides the class's stable code.
    """

    code = "InvalidParameter"

    def __init__(self, fields: Mapping[str, str], *, code: str | None = None) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in fields.items()))
        self.fields = dict(fields)
        if code is not None:
            self.code = code


class Malformed(InvalidRequest):
    """Bad input, regardless of the queue. Nothing was stored."""

    code = "InvalidParameter"


class TooLarge(Malformed):
    """A body, message or batch over its limit. Nothing was stored."""


class KeyReused(InvalidRequest):
    """The idempotency key belongs to another post. Nothing was stored."""

    code = "IdempotencyKeyReused"

    def __init__(self, key: str) -> None:
        text = f'Key "{key}" belongs to another post to this queue. Send that one again unchanged, or choose a new key.'
        super().__init__({"idempotency_key": text})


class UnknownCoding(InvalidRequest):
    """The body is compressed or otherwise encoded. Nothing was stored."""

    def __init__(self, coding: str) -> None:
        super().__init__({"Content-Encoding": f'"{coding[:40]}" is not decoded here: send the body as it is.'})


class NotAuthenticated(QueueyError):
    """The given credential is not valid (unknown, expired or revoked)."""

    code = "InvalidApplicationKey"
    challenge = 'Application realm="queuey"'
    """Value of the header ``WWW-Authenticate``."""


class NoCredential(NotAuthenticated):
    """A credential is needed, and none was given."""


class InvalidToken(NotAuthenticated):
    """A user's token is not accepted. The message does not contain any part of the token."""

    challenge = 'Bearer realm="queuey", error="invalid_token"'


class InvalidAssertion(NotAuthenticated):
    """A user's BrowserID assertion is not accepted. The message does not contain any part of the assertion."""

    code = "InvalidBrowserID"
    challenge = 'BrowserID realm="queuey"'


class NotAllowed(QueueyError):
    """The caller lacks the permission.

    Args:
        text: A sentence about the missing right; may be blank.
        anonymous: The caller has not sent a credential.
    """

    code = "Forbidden"

    def __init__(self, text: str = "", *, anonymous: bool = False) -> None:
        super().__init__(text)
        self.anonymous = anonymous

    def __str__(self) -> str:
        return f"Access was denied to this resource. {super().__str__()}".rstrip()


class NotFound(QueueyError):
    """Something named in the request does not exist.

    Args:
        name: Name of the missing thing.
        text: Message to use instead of the class's ``form``.
    """

    form = "{name}"

    def __init__(self, name: str = "", text: str = "") -> None:
        super().__init__(name, text)
        self.name = name
        self._text = text

    def __str__(self) -> str:
        return self._text or super().__str__()


class ApplicationNotFound(NotFound):
    code = "InvalidApplicationName"
    form = "Application {name!r} does not exist. Create it: queuey app create {quoted}"


class QueueNotFound(NotFound):
    code = "InvalidQueueName"
    form = "Queue {name!r} does not exist. Create it: queuey queue create {quoted}"


class MemberGone(NotFound):
    """The member does not exist, its session is over, it was replaced, or it joined with another credential."""

    form = "The member does not exist any more, or never did. Drop the messages that were read, and join again."


class GroupNotFound(NotFound):
    code = "InvalidGroupName"
    form = "Group {name!r} has no offsets of this queue. List those that have: queuey offsets show QUEUE"


class KeyNotFound(NotFound):
    code = "InvalidKeyId"
    form = "Key {name!r} does not exist. List those that do: queuey app keys APPLICATION"


class MessageNotFound(NotFound):
    code = "InvalidMessageID"
    form = "Message {name} is not there: it was deleted, has expired, or lies in another partition."


class MoveNotFound(NotFound):
    """The move does not exist, or a hundred moves of its application have ended since."""

    code = "InvalidMoveId"
    form = "Move {name!r} does not exist. List those that do: queuey queue moves"


class ScheduleNotFound(NotFound):
    """The schedule does not exist, or the caller may not see it."""

    code = "InvalidScheduleName"
    form = "Schedule {name!r} does not exist. List those that do: queuey schedule list"


class Conflict(QueueyError):
    """The request does not fit the present state."""


class QueueExists(Conflict):
    """A queue of that name exists with other fields: ``queue`` is that queue, ``differing`` names the fields."""

    def __init__(self, queue: Queue, differing: Sequence[str]) -> None:
        super().__init__(queue, differing)
        self.queue = queue
        self.differing = tuple(differing)

    def __str__(self) -> str:
        name = self.queue.name
        fields = ", ".join(f"{field} {_format_value(getattr(self.queue, field))}" for field in self.differing)
        return f"Queue {name!r} exists and has {fields}. Ask for that, or change it: queuey queue update {quote(name)}"


class ApplicationExists(Conflict):
    """An application of that name exists."""

    form = "Application {name!r} exists already. Give it a further key: queuey app key-add {quoted}"


class OffsetConflict(Conflict):
    """At least one compare-and-set of an offset failed.

    Args:
        current: The recorded offset of each partition of the request, in lower-case hex or None.
        applied: The partitions of the request with offsets that were set nevertheless.
    """

    def __init__(self, current: Mapping[int, str | None], applied: Sequence[int]) -> None:
        super().__init__(current, applied)
        self.current = dict(current)
        self.applied = tuple(applied)

    def __str__(self) -> str:
        offsets = ", ".join(
            f"{offset or 'none'} in partition {number}"
            for number, offset in self.current.items()
            if number not in self.applied
        )
        return f"The recorded offset is not the expected one: {offsets}. Another client has changed it: read it again."


class KeyInUse(Conflict):
    """A post with this idempotency key is being carried out. This call stored nothing.

    Args:
        key: The key.
        retry_after: Seconds after which the result of that post is known, or the post can be repeated.
    """

    code = "IdempotencyKeyInUse"
    form = 'A post with key "{name}" is being carried out. Send it again in {1} s.'

    def __init__(self, key: str, retry_after: int = 1) -> None:
        super().__init__(key, retry_after)
        self.key = key
        self.retry_after = retry_after


class NameTaken(Conflict):
    """The name belongs to a message with another body. Nothing was stored.

    Args:
        name: The name.
    """

    form = '"{name}" names another message. Wait until that is done, or replace it with PUT.'


class NameChanged(Conflict):
    """Another caller is changing the value of a name. Nothing was stored.

    Args:
        name: The name.
    """

    form = '"{name}" is being changed by others.'


class RecordChanged(Conflict):
    """The stored record has another version, or does not exist. Nothing was changed.

    Args:
        name: Name of the record.
    """

    form = '"{name}" is being changed by others. Try again.'


class TimeZoneUnknown(Conflict):
    """The machine does not know the time zone of a schedule.

    Args:
        name: Name of the time zone.
    """

    form = (
        "Time zone {name!r} is not known on this machine of the service. "
        "Install the package tzdata there, or give the schedule another time zone."
    )


class MoveUnderWay(Conflict):
    """Messages of the queue are already being moved.

    Args:
        source: The queue.
        target: The queue to which its messages are moved.
        move: Id of the move.
    """

    form = "Queue {name!r} is being moved to {1!r}. Wait until that has ended, or cancel it: move {2}"

    def __init__(self, source: str, target: str, move: str) -> None:
        super().__init__(source, target, move)
        self.move = move


class ClaimsRefused(Conflict):
    """Messages of the queue cannot be claimed at its consistency level. The text names a level that allows claims."""


class ClaimLost(Conflict):
    """Messages of expired claims were delivered to other callers, or newer values have taken the messages' names.

    The other receipts of the request succeeded.

    Args:
        results: Result of each receipt, in the order of the request, for the answer.
    """

    def __init__(self, results: Sequence[object]) -> None:
        super().__init__(
            "Some messages were delivered again, because their claims had expired, or were replaced under their name: "
            "see results. Skip these."
        )
        self.results = tuple(results)


class NotOwner(Conflict):
    """A member committed for ``partitions`` that it does not own. Only the offsets of ``applied`` were recorded."""

    def __init__(self, partitions: Sequence[int], applied: Sequence[int] = ()) -> None:
        super().__init__(partitions, applied)
        self.partitions = tuple(partitions)
        self.applied = tuple(applied)

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.partitions))
        return f"The member does not own {numbers} under this epoch. Drop what was read of them; others may handle it."


class GroupActive(Conflict):
    """The group has members. Only they can commit, and the group cannot be deleted."""

    form = "Group {name!r} has members. Commit as one of them, or stop them first: queuey group show {quoted}"


class GroupElsewhere(Conflict):
    """The group is served in another data centre, given by the second argument."""

    form = (
        "Group {name!r} is served in data centre {1!r}. Ask there; if that is lost for good: "
        "queuey group move APP {quoted} --to CENTRE"
    )


class QueueChanged(QueueyError):
    """The queue row of a call is out of date: the queue was updated, purged or deleted.

    Nothing was stored or read. The caller looks up the queue again and retries.
    """


class TooManyRequests(QueueyError):
    """The application has used up its share of the process. Nothing was done."""

    retry_after = 1


class TooManyWaiters(TooManyRequests):
    """The application, or the process, has its max number of long polls."""


class TooManyMoves(TooManyRequests):
    """The application, or all applications together, have the max number of moves under way."""

    retry_after = 5


class TooManySchedules(TooManyRequests):
    """The application has its max number of schedules."""


class TooManyGroups(TooManyRequests):
    """The application has its max number of consumer groups with members."""


class TooManyMembers(TooManyRequests):
    """The group has its max number of members, or had too many joins within the hour."""


class TooManyClaims(TooManyRequests):
    """A partition has its max number of claims. The refused part of the request was not done.

    Args:
        message: Message for people.
        outcome: ``unknown`` if other parts of the request may have been done.
    """

    def __init__(self, message: str, *, outcome: Outcome = "none") -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome


class StoreUnavailable(QueueyError):
    """The store cannot serve the call now.

    Args:
        message: Message for people.
        outcome: ``none`` if the write is not visible and never will be, ``unknown`` if it may be.
        retry_after: Seconds after which a retry is useful.
    """

    def __init__(self, message: str, *, outcome: Outcome = "none", retry_after: int = 1) -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome
        self.retry_after = retry_after


def in_doubt(error: Exception) -> Exception:
    """Returns an error with outcome ``unknown``, as an earlier attempt may have stored something; others unchanged."""
    if isinstance(error, TooManyClaims):
        return TooManyClaims(str(error), outcome="unknown")
    if isinstance(error, StoreUnavailable) and error.outcome == "none":
        return StoreUnavailable(str(error), outcome="unknown", retry_after=error.retry_after)
    if isinstance(error, TooManyRequests):
        return StoreUnavailable(str(error), outcome="unknown", retry_after=error.retry_after)
    return error


class StoreBusy(StoreUnavailable):
    """Another process has held the store's write lock for too long, or a resource of the store is busy."""


class StoreFull(StoreUnavailable):
    """No space is left for writes."""


class StoreClosed(StoreUnavailable):
    """The store is shutting down."""


class WriteUndone(StoreUnavailable):
    """Messages may have been written too late. They were removed before any reader could see them.

    They may be posted again. Answers have the code of ``StoreUnavailable``: nothing was stored.
    """

    code = "StoreUnavailable"


class IssuerUnavailable(StoreUnavailable):
    """The keys of the issuer of a user's credential are not available now. Nothing was done."""


class TooLate(QueueyError):
    """Readers may have passed the ids at which messages were to be written.

    Args:
        written: True if the messages were written nevertheless.
    """

    def __init__(self, *, written: bool) -> None:
        super().__init__("readers may have passed the ids of these messages")
        self.written = written


class StoreIncompatible(QueueyError):
    """This program does not know the store's format."""

    outcome: Outcome = "unknown"


class SettingsError(QueueyError):
    """Unknown, malformed or conflicting settings."""


def _format_value(value: object) -> str:
    if isinstance(value, tuple | list | frozenset | set):
        return ", ".join(sorted(map(str, value))) or "none"
    return "none" if value is None else str(value)
