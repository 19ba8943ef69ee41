"""Every error that the client raises, in one tree.

::

    ClientError                      a queuey.errors.QueueyError
    ├── InvalidArgument              refused before anything was sent; also a ValueError
    ├── ReceiptsError                the file of receipts cannot be written
    ├── TokenError                   the source of the token gave none; nothing was sent
    ├── RenewalError                 no thread can be started that renews claims; they are released
    ├── ProfileError                 the profile file cannot be used
    │   ├── ProfileNotFound
    │   ├── ProfileInvalid           no TOML, or a key is missing or wrong
    │   └── ProfileExposed           others than its owner may read it
    ├── TransportError               no whole answer came; ``outcome`` says what that means for a write
    │   ├── ConnectionFailed         no connection: nothing was sent
    │   ├── ConnectionLost           broke off after the request may have been sent
    │   └── Timeout
    │       ├── ConnectTimeout       nothing was sent
    │       └── AnswerTimeout        sent, in part or whole, and not answered in time
    ├── InvalidAnswer                an answer that no Queuey gives
    ├── JobError                     a job has no result that is known; carries what became of it
    │   ├── JobFailed                    it is a dead letter; class and text of its error
    │   ├── JobGone                      it expired, was removed or superseded
    │   ├── ResultTooLarge               it is done, and its result was too large to be kept
    │   └── ResultUnknown                its result is not known, or not any more
    ├── ResultTimeout                a job has not ended in time; also a TimeoutError
    └── ApiError                     the server refused; status, code, fields, outcome, retry_after
        ├── InvalidRequest           400
        │   ├── TooLarge             413
        │   └── KeyReused            422: another post has this idempotency key
        ├── NotAuthenticated         401
        ├── NotAllowed               403
        ├── NotFound                 404
        │   ├── ApplicationNotFound
        │   ├── QueueNotFound
        │   ├── GroupNotFound
        │   ├── MessageNotFound
        │   └── NameNotFound             no message has the name
        ├── Conflict                 409
        │   ├── KeyInUse             a post with this idempotency key is being carried out
        │   ├── NameTaken                another message has the name
        │   ├── QueueExists
        │   ├── GroupActive          the group has members, so only they commit
        │   ├── GroupElsewhere       the group is served in another data centre
        │   ├── InstanceTaken        another credential has joined with the instance name
        │   ├── NotOwner             partitions that the member does not own; others were recorded
        │   ├── OffsetConflict       current offsets, and which partitions were set nevertheless
        │   └── ClaimLost            the message was delivered again, or replaced; carries these receipts
        └── ServerError              5xx and 429; outcome of a write, outcomes of a batch
            └── ServiceUnavailable   503
                └── TooManyWaiters   too many long polls

No message, attribute or repr of these errors contains the API key or a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from queuey.errors import Outcome, QueueyError

if TYPE_CHECKING:
    from queuey.api.jobs import JobInfo
    from queuey.client.results import Receipt, Refused


_SHOWN_FIELDS = 10
"""Max fields of a refusal in its text."""


class ClientError(QueueyError):
    """Base of all errors of the client.

    Attributes:
        in_doubt: An earlier attempt at the same call may have been carried out, whatever this one says.
        receipts: What was stored nevertheless: by ``send_many`` in earlier requests before this one failed.
        temporary: The same call may well succeed later, unchanged.
    """

    code = "ClientError"
    temporary = False
    in_doubt = False

    receipts: tuple[Receipt, ...] = ()

    def doubt(self) -> None:
        """Marks the error: an earlier attempt may have been carried out."""
        self.in_doubt = True


class InvalidArgument(ClientError, ValueError):
    """An argument that cannot be sent. Nothing was sent."""

    code = "InvalidArgument"


class ReceiptsError(ClientError):
    """The file of receipts cannot be written.

    Raised when the client is made, nothing was sent; by a call that stores messages, they were stored, and ``receipts``
    has what could not be written down.
    """

    code = "ReceiptsError"


class TokenError(ClientError):
    """The callable, file or command that should give a token gave none. Of this call nothing was carried out.

    Its text says which of them and why, and never what it gave.
    """

    code = "TokenError"


class RenewalError(ClientError):
    """No thread can be started to renew claims, so the loop ends and releases them.

    The process, or its user, has as many threads as it may have, or it has no memory for another one.
    """

    code = "RenewalError"


class ProfileError(ClientError):
    """The profile file cannot be used."""

    code = "ProfileError"


class ProfileNotFound(ProfileError):
    """There is no profile file, and nothing else says where the server is."""

    code = "ProfileNotFound"


class ProfileInvalid(ProfileError):
    """The profile is not TOML or lacks something."""

    code = "ProfileInvalid"


class ProfileExposed(ProfileError):
    """Group or others may read the profile, and with it the key."""

    code = "ProfileExposed"


class TransportError(ClientError):
    """No whole answer came from ``server``.

    Args:
        message: What happened, for people.
        server: Base address of the server that was asked last.

    Attributes:
        outcome: ``none``: nothing was sent. ``unknown``: a write may have been carried out.
    """

    code = "TransportError"
    temporary = True
    outcome: Outcome = "unknown"

    def __init__(self, message: str, server: str = "") -> None:
        super().__init__(message, server)
        self.server = server

    def doubt(self) -> None:
        super().doubt()
        self.outcome = "unknown"

    def __str__(self) -> str:
        """Names the server beside what happened."""
        text: str = self.args[0]
        return f"{self.server}: {text}" if self.server else text


class ConnectionFailed(TransportError):
    """No connection could be made, so nothing was sent."""

    code = "ConnectionFailed"
    outcome: Outcome = "none"


class ConnectionLost(TransportError):
    """The connection broke after the request may have been sent."""

    code = "ConnectionLost"


class Timeout(TransportError):
    """The server took too long."""

    code = "Timeout"


class ConnectTimeout(Timeout):
    """The server took too long to accept a connection; nothing was sent."""

    code = "ConnectTimeout"
    outcome: Outcome = "none"


class AnswerTimeout(Timeout):
    """The request was sent, in part or whole, and not answered in time."""

    code = "AnswerTimeout"


class InvalidAnswer(ClientError):
    """An answer that no Queuey gives: another service, a broken proxy, or a much newer server.

    Attributes:
        outcome: ``unknown``: a write may have been carried out.
        server: Base address of the server that gave it.
    """

    code = "InvalidAnswer"
    outcome: Outcome = "unknown"
    server = ""

    def __str__(self) -> str:
        """Names the server beside what is wrong."""
        text = super().__str__()
        return f"{self.server}: {text}" if self.server else text


class JobError(ClientError):
    """A job has no result that is known.

    Args:
        info: What became of it.
    """

    code = "JobError"

    def __init__(self, info: JobInfo) -> None:
        super().__init__(info)
        self.info = info

    def __str__(self) -> str:
        """Names the job and how it ended."""
        return f"job {self.info.partition}:{self.info.message_id} {self._end()}"

    def _end(self) -> str:
        return f"is {self.info.status}"


class JobFailed(JobError):
    """The job is a dead letter.

    Attributes:
        error, text: Class and text of its last error.
    """

    code = "JobFailed"

    def __init__(self, info: JobInfo) -> None:
        super().__init__(info)
        self.error = info.error or ""
        self.text = info.text or ""

    def _end(self) -> str:
        return f"failed: {self.error}: {self.text}" if self.text else f"failed: {self.error}"


class JobGone(JobError):
    """The job expired, was removed, or was superseded by a newer value of its name: ``info.status`` says which."""

    code = "JobGone"


class ResultTooLarge(JobError):
    """The job is done, and its result was too large to be kept: ``info.size`` is its length in bytes."""

    code = "ResultTooLarge"

    def _end(self) -> str:
        return f"is done; its result of {self.info.size} bytes of JSON was too large to be kept"


class ResultUnknown(JobError):
    """The result of the job is not known, or not any more: its queue has kept it for ``info.kept`` seconds."""

    code = "ResultUnknown"

    def _end(self) -> str:
        if self.info.status == "never_seen":
            return "was never in this queue"
        kept = self.info.kept or 0
        how = f"this queue keeps results for {kept} s" if kept else "this queue keeps no results: set its result_ttl"
        return f"is {self.info.status}, and its result is not known: {how}"


class ResultTimeout(ClientError, TimeoutError):
    """A job has not ended in time. It goes on."""

    code = "ResultTimeout"


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a server that refused.

    Attributes:
        status: HTTP status.
        code: Queuey's stable name of the reason.
        fields: What is wrong, by field or name (``"1.partition"`` in a batch).
        text: The answer when it was plain text.
        retry_after: Seconds after which a retry makes sense; None when the server named none.
        outcome: ``none`` or ``unknown``, of a write; None when the server did not say.
        outcomes: The outcome of each message of a batch.
        current: The offsets that are recorded now, per partition of the request.
        applied: The partitions whose offset was set nevertheless.
        refused: The refused receipts.
        not_owned: The partitions that the member does not own.
    """

    status: int
    code: str = "Error"
    fields: Mapping[str, str] = {}
    text: str = ""
    retry_after: float | None = None
    outcome: str | None = None
    outcomes: tuple[str, ...] = ()
    current: Mapping[int, str | None] = {}
    applied: tuple[int, ...] = ()
    refused: tuple[Refused, ...] = ()
    not_owned: tuple[int, ...] = ()


class ApiError(ClientError):
    """The server refused the call.

    Args:
        refusal: What it said.

    Attributes:
        status, code, fields, retry_after, outcome, outcomes: See :class:`ErrorAnswer`.
    """

    def __init__(self, refusal: ErrorAnswer) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.status = refusal.status
        self.code = refusal.code
        self.fields = dict(refusal.fields)
        self.retry_after = refusal.retry_after
        self.outcome = refusal.outcome
        self.outcomes = refusal.outcomes

    def __str__(self) -> str:
        """Names status, reason and every field that is wrong."""
        shown = [text if name in {self.code, ""} else f"{name}: {text}" for name, text in self.fields.items()]
        if len(shown) > _SHOWN_FIELDS:
            shown[_SHOWN_FIELDS:] = [f"and {len(shown) - _SHOWN_FIELDS} more"]
        detail = "; ".join(shown) or self.refusal.text
        return f"{self.status} {self.code}: {detail}" if detail else f"{self.status} {self.code}"

    def doubt(self) -> None:
        super().doubt()
        self.outcome, self.outcomes = "unknown", ()

    @property
    def not_processed(self) -> bool:
        """True if the server certainly did nothing, so that even a POST may be sent again."""
        return False


class InvalidRequest(ApiError):
    """Something in the request is not acceptable; nothing was stored."""


class TooLarge(InvalidRequest):
    """A body or a batch over the server's limit; nothing was stored."""


class KeyReused(InvalidRequest):
    """The idempotency key is that of another post; nothing was stored."""


class NotAuthenticated(ApiError):
    """The key or the token is unknown, expired, revoked or not for this service."""


class NotAllowed(ApiError):
    """The caller lacks the permission."""


class NotFound(ApiError):
    """Something named in the call does not exist."""


class ApplicationNotFound(NotFound):
    """The server has no such application."""


class QueueNotFound(NotFound):
    """The application has no such queue."""


class GroupNotFound(NotFound):
    """The queue has no offsets of that group."""


class MemberGone(NotFound):
    """The member's session is over, or it was replaced. Others may own its partitions: join again."""


class MessageNotFound(NotFound):
    """The queue has no such message."""


class Conflict(ApiError):
    """The call does not fit the present state."""


class QueueExists(Conflict):
    """A queue of that name exists and differs in the given fields."""


class OffsetConflict(Conflict):
    """At least one offset was not what was expected.

    Attributes:
        current: The offset now recorded per partition of the call; None when none is.
        applied: The partitions that were set nevertheless.
    """

    def __init__(self, refusal: ErrorAnswer) -> None:
        super().__init__(refusal)
        self.current = dict(refusal.current)
        self.applied = refusal.applied


class NotOwner(Conflict):
    """The member does not own some partitions, or not under these epochs. All other offsets were recorded.

    Attributes:
        partitions: Partitions of the call for which nothing was recorded.
    """

    def __init__(self, refusal: ErrorAnswer) -> None:
        super().__init__(refusal)
        self.partitions = refusal.not_owned


class GroupActive(Conflict):
    """The group has members: only they commit, and it cannot be forgotten."""


class GroupElsewhere(Conflict):
    """The group is served in another data centre, which the text names."""


class InstanceTaken(Conflict):
    """Another credential is a member with this instance name."""


class KeyInUse(Conflict):
    """A post with this idempotency key is being carried out, or was when its server stopped. This one did nothing."""

    temporary = True


class NameTaken(Conflict):
    """Another message has the name. This one was not stored."""


class NameNotFound(NotFound):
    """No message has the name."""


class ClaimLost(Conflict):
    """The claim had expired, and the message was delivered to another caller.

    Attributes:
        refused: The refused receipts of the call. The rest were carried out.
    """

    def __init__(self, refusal: ErrorAnswer) -> None:
        super().__init__(refusal)
        self.refused = refusal.refused


class ServerError(ApiError):
    """The server, or something before it, failed, or had too many requests of the caller (429)."""

    temporary = True

    @property
    def not_processed(self) -> bool:
        said = (self.outcome, *self.outcomes)
        return "none" in said and all(outcome in {None, "none"} for outcome in said)


class ServiceUnavailable(ServerError):
    """The server cannot serve the call now."""


class TooManyWaiters(ServiceUnavailable):
    """All places for long polls are taken; the call was not started."""

    @property
    def not_processed(self) -> bool:
        return True


BY_CODE: dict[str, type[ApiError]] = {
    "ClaimLost": ClaimLost,
    "GroupActive": GroupActive,
    "GroupElsewhere": GroupElsewhere,
    "IdempotencyKeyInUse": KeyInUse,
    "IdempotencyKeyReused": KeyReused,
    "InvalidApplicationKey": NotAuthenticated,
    "InvalidApplicationName": ApplicationNotFound,
    "InvalidGroupName": GroupNotFound,
    "InvalidMessageID": MessageNotFound,
    "InvalidName": NameNotFound,
    "InvalidQueueName": QueueNotFound,
    "InstanceTaken": InstanceTaken,
    "MemberGone": MemberGone,
    "NameTaken": NameTaken,
    "NotOwner": NotOwner,
    "OffsetConflict": OffsetConflict,
    "QueueExists": QueueExists,
    "TooManyWaiters": TooManyWaiters,
}

BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: NotAuthenticated,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: InvalidRequest,
    429: ServerError,
    503: ServiceUnavailable,
}


def error_for(refusal: ErrorAnswer) -> ApiError:
    """Returns the error whose class fits the refusal best."""
    kind: type[Any] = BY_STATUS.get(refusal.status, ServerError if refusal.status >= 500 else ApiError)  # noqa: PLR2004 - HTTP
    named = BY_CODE.get(refusal.code)
    error: ApiError = (named if named is not None and issubclass(named, kind) else kind)(refusal)
    return error
