"""Every error that Queuey raises, in one tree.

::

    QueueyError
    ├── InvalidRequest            bad input; ``fields`` names what is wrong
    │   ├── Malformed             bad whatever the queue's row says
    │   │   └── TooLarge          a body or a batch over its limit
    │   ├── KeyReused             another post was made under this idempotency key
    │   └── UnknownCoding         a body that is compressed
    ├── NotAuthenticated          a credential that is not known
    │   ├── NoCredential          none was given, and one is needed
    │   ├── InvalidToken          a token of a user that is not accepted
    │   └── InvalidAssertion      the same for an assertion of BrowserID
    ├── NotAllowed                a known caller without the permission
    ├── NotFound
    │   ├── ApplicationNotFound
    │   ├── QueueNotFound
    │   ├── GroupNotFound
    │   ├── KeyNotFound
    │   ├── MessageNotFound
    │   ├── MemberGone            a member of a consumer group that is not there, or not any more
    │   ├── MoveNotFound
    │   └── ScheduleNotFound
    ├── Conflict
    │   ├── QueueExists           re-created with other fields; carries the queue
    │   ├── ApplicationExists
    │   ├── OffsetConflict        compare-and-set failed; carries the present offsets
    │   ├── KeyInUse              a post with this idempotency key is being carried out
    │   ├── NameTaken             a message with another body has the name
    │   ├── NameChanged           somebody else is changing what a name stands for
    │   ├── RecordChanged         a record has another version than the caller knows
    │   ├── MoveUnderWay          messages of the queue are being moved already
    │   ├── ClaimsRefused         the queue's consistency level does not allow claims
    │   ├── TimeZoneUnknown       the machine does not know the time zone of a schedule
    │   ├── NotOwner              a member commits for partitions that it does not own; carries them
    │   ├── GroupActive           the consumer group has members
    │   ├── GroupElsewhere        the consumer group is served in another data centre
    │   ├── InstanceTaken         another credential has the name of an instance
    │   └── ClaimLost             messages were delivered again, or replaced; carries the result of each receipt
    ├── QueueChanged              a cached queue row is out of date; read it again and retry
    ├── TooManyRequests           the application has its share of the process already
    │   ├── TooManyWaiters        too many long polls
    │   ├── TooManyMoves          too many moves between queues are under way
    │   ├── TooManySchedules      the application has as many schedules as it may have
    │   ├── TooManyGroups         the application has as many consumer groups as it may have
    │   ├── TooManyMembers        a consumer group has as many members, or joins, as it may have
    │   └── TooManyClaims         a partition has as many claims as it may have
    ├── StoreUnavailable          the store cannot serve now; ``outcome`` says what became of a write
    │   ├── StoreBusy             locked by another process for too long
    │   ├── StoreFull             no space left
    │   ├── StoreClosed           shutting down
    │   ├── WriteUndone           messages were written too late, or perhaps, and are taken back
    │   └── IssuerUnavailable     the keys that a user's credential is checked with are not there
    ├── TooLate                   ids that were reserved may have been passed by readers
    ├── StoreIncompatible         the file or schema is newer than this program
    └── SettingsError             unknown, conflicting or malformed settings

``code`` is stable: clients may branch on it. HTTP statuses live in ``queuey.web.errors`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from queuey.messages import Queue

Outcome = Literal["none", "unknown"]


class QueueyError(Exception):
    """Base of all errors of Queuey; ``code`` is stable.

    Attributes:
        form: The text, with places for the arguments, of which the first one is also ``name``, and as ``quoted`` for a
            shell; blank: the argument is the text.
    """

    code = "Error"
    form = ""

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
    """Bad input whatever the row of its queue says. Nothing was stored."""


class TooLarge(Malformed):
    """A body, message or batch over its limit. Nothing was stored."""

    code = "TooLarge"


class KeyReused(InvalidRequest):
    """Another post was made under this idempotency key. Nothing was stored."""

    code = "IdempotencyKeyReused"

    def __init__(self, key: str) -> None:
        text = f'Key "{key}" belongs to another post to this queue. Send that one again unchanged, or choose a new key.'
        super().__init__({"idempotency_key": text})


class UnknownCoding(InvalidRequest):
    """A body that is compressed or otherwise encoded. Nothing was stored."""

    code = "UnknownCoding"

    def __init__(self, coding: str) -> None:
        super().__init__({"Content-Encoding": f'"{coding[:40]}" is not decoded here: send the body as it is.'})


class NotAuthenticated(QueueyError):
    """A credential was given and is not valid (unknown, expired, revoked)."""

    code = "InvalidApplicationKey"
    challenge = 'Application realm="queuey"'
    """The value of ``WWW-Authenticate``: which credential to send."""


class NoCredential(NotAuthenticated):
    """No credential was given where one is needed."""

    code = "NoCredential"


class InvalidToken(NotAuthenticated):
    """A user's token is not accepted; the message has nothing of the token."""

    code = "InvalidToken"
    challenge = 'Bearer realm="queuey", error="invalid_token"'


class InvalidAssertion(NotAuthenticated):
    """A user's BrowserID assertion is not accepted; the message has nothing of the assertion."""

    code = "InvalidBrowserID"
    challenge = 'BrowserID realm="queuey"'


class NotAllowed(QueueyError):
    """The caller lacks the permission.

    Args:
        text: The missing right, in a sentence; blank: none is named.
        anonymous: The caller has given no credential.
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
        name: Its name.
        text: Replaces the text of the class.
    """

    code = "NotFound"
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

    code = "MemberGone"
    form = "The member does not exist, or not any more. Drop what was read, and join again."


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
    """The application has no such move, or it ended more than 30 days ago."""

    code = "InvalidMoveId"
    form = "Move {name!r} does not exist. List those that do: queuey queue moves"


class ScheduleNotFound(NotFound):
    """The application has no such schedule, or the caller may not know of it."""

    code = "InvalidScheduleName"
    form = "Schedule {name!r} does not exist. List those that do: queuey schedule list"


class Conflict(QueueyError):
    """The request does not fit the present state."""

    code = "Conflict"


class QueueExists(Conflict):
    """A queue of that name exists with other fields; ``queue`` is the existing one."""

    code = "QueueExists"

    def __init__(self, queue: Queue, differing: Sequence[str]) -> None:
        super().__init__(queue, differing)
        self.queue = queue
        self.differing = tuple(differing)

    def __str__(self) -> str:
        name = self.queue.name
        there = ", ".join(f"{field} {_shown(getattr(self.queue, field))}" for field in self.differing)
        return f"Queue {name!r} exists and has {there}. Ask for that, or change it: queuey queue update {quote(name)}"


class ApplicationExists(Conflict):
    """An application of that name exists."""

    code = "ApplicationExists"
    form = "Application {name!r} exists already. Give it a further key: queuey app key-add {quoted}"


class OffsetConflict(Conflict):
    """At least one compare-and-set of an offset failed.

    Args:
        current: The recorded offset of each partition of the request (lower hex, None: none).
        applied: The partitions of the request that were set nevertheless.
    """

    code = "OffsetConflict"

    def __init__(self, current: Mapping[int, str | None], applied: Sequence[int]) -> None:
        super().__init__(current, applied)
        self.current = dict(current)
        self.applied = tuple(applied)

    def __str__(self) -> str:
        there = ", ".join(
            f"{offset or 'none'} in partition {number}"
            for number, offset in self.current.items()
            if number not in self.applied
        )
        return f"The recorded offset is not the expected one: {there}. Another client has changed it: read it again."


class KeyInUse(Conflict):
    """A post with this idempotency key is being carried out. This one stored nothing.

    Args:
        key: The key.
        retry_after: Seconds after which the answer of that post is known, or it can be carried out anew.
    """

    code = "IdempotencyKeyInUse"
    form = 'A post with key "{name}" is being carried out. Send it again in {1} s.'

    def __init__(self, key: str, retry_after: int = 1) -> None:
        super().__init__(key, retry_after)
        self.key = key
        self.retry_after = retry_after


class NameTaken(Conflict):
    """A message with this name is there and has another body. Nothing was stored.

    Args:
        name: The name.
    """

    code = "NameTaken"
    form = '"{name}" names another message. Wait until that is done, or replace it with PUT.'


class NameChanged(Conflict):
    """Another caller is changing the value of a name. Nothing was stored.

    Args:
        name: The name.
    """

    code = "NameChanged"
    form = '"{name}" is being changed by others.'


class RecordChanged(Conflict):
    """A record has another version than the caller knows, or is gone. Nothing was changed.

    Args:
        name: Its name.
    """

    code = "RecordChanged"
    form = '"{name}" is being changed by others. Try again.'


class TimeZoneUnknown(Conflict):
    """The machine does not know the time zone of a schedule.

    Args:
        name: Of the time zone.
    """

    code = "TimeZoneUnknown"
    form = (
        "Time zone {name!r} is not known on this machine of the service. "
        "Install the package tzdata there, or give the schedule another time zone."
    )


class MoveUnderWay(Conflict):
    """Messages of the queue are being moved already.

    Args:
        source: The queue.
        target: Where its messages go.
        move: The id of the move.
    """

    code = "MoveUnderWay"
    form = "Queue {name!r} is being moved to {1!r}. Wait until that has ended, or cancel it: move {2}"

    def __init__(self, source: str, target: str, move: str) -> None:
        super().__init__(source, target, move)
        self.move = move


class ClaimsRefused(Conflict):
    """Messages of the queue cannot be claimed at its consistency level; the text names one at which they can."""

    code = "ClaimsRefused"


class ClaimLost(Conflict):
    """Claims had expired, and their messages were delivered to other callers; or newer values have taken their names.

    The other receipts succeeded.

    Args:
        results: The result of each receipt, in the order given, for the answer.
    """

    code = "ClaimLost"

    def __init__(self, results: Sequence[object]) -> None:
        super().__init__(
            "Some messages were delivered again, because their claims had expired, or were replaced under their name: "
            "see results. Skip these."
        )
        self.results = tuple(results)


class NotOwner(Conflict):
    """A member commits for ``partitions`` that it does not own; only offsets of ``applied`` ones were recorded."""

    code = "NotOwner"

    def __init__(self, partitions: Sequence[int], applied: Sequence[int] = ()) -> None:
        super().__init__(partitions, applied)
        self.partitions = tuple(partitions)
        self.applied = tuple(applied)

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.partitions))
        return f"The member does not own {numbers} under this epoch. Drop what was read of them; others may handle it."


class GroupActive(Conflict):
    """The group has members; only they commit, and it cannot be forgotten."""

    code = "GroupActive"
    form = "Group {name!r} has members. Commit as one of them, or stop them first: queuey group show {quoted}"


class GroupElsewhere(Conflict):
    """The group is served in another data centre, which is the second argument."""

    code = "GroupElsewhere"
    form = (
        "Group {name!r} is served in data centre {1!r}. Ask there; if that is lost for good: "
        "queuey group move APP {quoted} --to CENTRE"
    )


class InstanceTaken(Conflict):
    """Another credential has joined with this instance name."""

    code = "InstanceTaken"
    form = "Another credential is a member as instance {name!r}. Use another name, or wait until that session is over."


class QueueChanged(QueueyError):
    """The queue row a call was made with is out of date (updated, purged or deleted meanwhile).

    Nothing was stored or read. The caller looks the queue up again and retries.
    """

    code = "QueueChanged"


class TooManyRequests(QueueyError):
    """The application uses its share of the process already. Nothing was done."""

    code = "TooManyRequests"
    retry_after = 1


class TooManyWaiters(TooManyRequests):
    """All places for long polls are taken."""

    code = "TooManyWaiters"


class TooManyMoves(TooManyRequests):
    """The application has as many moves under way as it may have, or all applications together have."""

    code = "TooManyMoves"
    retry_after = 5


class TooManySchedules(TooManyRequests):
    """The application has as many schedules as it may have."""

    code = "TooManySchedules"


class TooManyGroups(TooManyRequests):
    """The application has as many consumer groups with members as it may have."""

    code = "TooManyGroups"


class TooManyMembers(TooManyRequests):
    """The group has as many members as it may have, or had too many joins within the hour."""

    code = "TooManyMembers"


class TooManyClaims(TooManyRequests):
    """A partition has as many claims as it may have. The refused part was not done.

    Args:
        message: For people.
        outcome: ``unknown``: other parts of the same request may be done.
    """

    code = "TooManyClaims"

    def __init__(self, message: str, *, outcome: Outcome = "none") -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome


class StoreUnavailable(QueueyError):
    """The store cannot serve the call now.

    Args:
        message: For people.
        outcome: ``none``: the write is not and will not be visible. ``unknown``: it may be.
        retry_after: Seconds after which a retry makes sense.
    """

    code = "StoreUnavailable"

    def __init__(self, message: str, *, outcome: Outcome = "none", retry_after: int = 1) -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome
        self.retry_after = retry_after


def in_doubt(error: Exception) -> Exception:
    """Returns an error as one whose write may be visible: its outcome is not ``none``."""
    if isinstance(error, TooManyClaims):
        return TooManyClaims(str(error), outcome="unknown")
    if isinstance(error, StoreUnavailable) and error.outcome == "none":
        return StoreUnavailable(str(error), outcome="unknown", retry_after=error.retry_after)
    if isinstance(error, TooManyRequests):
        return StoreUnavailable(str(error), outcome="unknown", retry_after=error.retry_after)
    return error


class StoreBusy(StoreUnavailable):
    """Another process holds the store's write lock for too long."""

    code = "StoreBusy"


class StoreFull(StoreUnavailable):
    """No space is left for writes."""

    code = "StoreFull"


class StoreClosed(StoreUnavailable):
    """The store is shutting down."""

    code = "StoreClosed"


class WriteUndone(StoreUnavailable):
    """Messages may have been written too late; they were taken back before any reader could see them.

    They may be posted again. Answers have the code of ``StoreUnavailable``: nothing was stored.
    """


class IssuerUnavailable(StoreUnavailable):
    """The issuer of a user's credential cannot be asked for its keys now. Nothing was done."""

    code = "IssuerUnavailable"


class TooLate(QueueyError):
    """A reader may have passed the ids at which messages were to be written.

    Args:
        written: The messages were written; else nothing was.
    """

    code = "TooLate"

    def __init__(self, *, written: bool) -> None:
        super().__init__("the ids of these messages lie too close to what readers may have passed")
        self.written = written


class StoreIncompatible(QueueyError):
    """This program does not know the store's format."""

    code = "StoreIncompatible"
    outcome: Outcome = "unknown"


class SettingsError(QueueyError):
    """Unknown, malformed or conflicting settings."""

    code = "SettingsError"


def _shown(value: object) -> str:
    if isinstance(value, tuple | list | frozenset | set):
        return ", ".join(sorted(map(str, value))) or "none"
    return "none" if value is None else str(value)
