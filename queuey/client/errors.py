"""All errors that the client raises, in one tree.

::

    ClientError                      a queuey.model.errors.QueueyError
    ├── InvalidArgument              an argument is not valid; nothing was sent; also a ValueError
    ├── ReceiptsError                the receipts file cannot be written
    ├── TokenError                   the token source gave no token; nothing was sent
    ├── RenewalError                 the thread that renews claims cannot be started; the claims are released
    ├── ProfileError                 the profile file cannot be used
    │   ├── ProfileNotFound
    │   ├── ProfileInvalid           not TOML, or a key is missing or not valid
    │   └── ProfileExposed           users other than its owner may read it
    ├── TransportError               no complete answer came; ``outcome`` says what that means for a write
    │   ├── ConnectionFailed         no connection: nothing was sent
    │   ├── ConnectionLost           the connection broke after the request may have been sent
    │   └── Timeout
    │       ├── ConnectTimeout       nothing was sent
    │       └── AnswerTimeout        sent completely or in part, and not answered in time
    ├── InvalidAnswer                the answer is not from Queuey
    ├── JobError                     the result of a job is not available; has the job's status
    │   ├── JobFailed                    the job is a dead letter; class and text of its error
    │   ├── JobGone                      the job expired, was removed or superseded
    │   ├── ResultTooLarge               the job is done, but its result was too large to keep
    │   └── ResultUnknown                the result was not set, or is not kept any more
    ├── ResultTimeout                the job has not ended in time; also a TimeoutError
    └── ApiError                     the server refused the call; status, code, fields, outcome, retry_after
        ├── InvalidRequest           400
        │   ├── TooLarge             413
        │   └── KeyReused            422: the idempotency key was used for another message
        ├── NotAuthenticated         401
        ├── NotAllowed               403
        ├── NotFound                 404
        │   ├── ApplicationNotFound
        │   ├── QueueNotFound
        │   ├── GroupNotFound
        │   ├── MemberGone               the member has lost its partitions: join again
        │   ├── MessageNotFound
        │   └── NameNotFound             no message has the name
        ├── Conflict                 409
        │   ├── KeyInUse             another send with this idempotency key is running
        │   ├── NameTaken                another message has the name
        │   ├── QueueExists
        │   ├── GroupActive          the group has members, so only they may commit
        │   ├── GroupElsewhere       the group is served in another data centre
        │   ├── NotOwner             the member does not own some partitions; other offsets were recorded
        │   ├── OffsetConflict       has the current offsets, and the partitions that were set anyway
        │   └── ClaimLost            messages were delivered again, or replaced; has their receipts
        └── ServerError              5xx and 429; outcome of a write, outcomes of a batch
            └── ServiceUnavailable   503
                └── TooManyWaiters   the server has too many long polls

No message, attribute or repr of these errors contains the API key or a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from queuey.model.errors import Outcome, QueueyError

if TYPE_CHECKING:
    from queuey.api.jobs import JobInfo
    from queuey.client.results import Receipt, Refused


_SHOWN_FIELDS = 10
"""Max fields named in the text of an error."""


class ClientError(QueueyError):
    """Base of all errors of the client.

    Attributes:
        in_doubt: An earlier attempt at the same call may have been carried out, even if this error says that this one
            was not.
        receipts: Receipts of messages that were stored before the failure, such as by earlier requests of
            ``send_many``.
        temporary: A repetition of the call may succeed later.
    """

    temporary = False
    in_doubt = False

    receipts: tuple[Receipt, ...] = ()

    def doubt(self) -> None:
        """Marks the error as in doubt: an earlier attempt may have been carried out."""
        self.in_doubt = True


class InvalidArgument(ClientError, ValueError):
    """An argument is not valid. Nothing was sent."""


class ReceiptsError(ClientError):
    """The receipts file cannot be written.

    If the constructor of the client raises it, nothing was sent. If a call that stores messages raises it, the messages
    were stored, and ``receipts`` has the receipts that could not be written.
    """


class TokenError(ClientError):
    """The function, file or command that should give a token failed. The call was not sent.

    The text names the source and the reason, and never contains its output. The error is temporary if the function
    raised an error, the command failed or took too long, or the file has given a token before. A function that raises
    TokenError itself refuses to give a token, which ends streams and loops.
    """

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary


class RenewalError(ClientError):
    """The thread that renews claims cannot be started, so the loop ends and releases its claims.

    The process or its user has reached the limit of threads, or there is no memory for another thread.
    """


class ProfileError(ClientError):
    """The profile file cannot be used."""


class ProfileNotFound(ProfileError):
    """The profile file does not exist, and no address of a server was given otherwise."""


class ProfileInvalid(ProfileError):
    """The profile is not TOML, or a key is missing or not valid."""


class ProfileExposed(ProfileError):
    """Users other than the owner may read the profile and its key."""


class TransportError(ClientError):
    """No complete answer came from ``server``.

    Args:
        message: Text that says what happened.
        server: Base address of the server of the last attempt.

    Attributes:
        outcome: ``none`` if nothing was sent, ``unknown`` if a write may have been carried out.
    """

    temporary = True
    outcome: Outcome = "unknown"

    def __init__(self, message: str, server: str = "") -> None:
        super().__init__(message, server)
        self.server = server

    def doubt(self) -> None:
        super().doubt()
        self.outcome = "unknown"

    def __str__(self) -> str:
        text: str = self.args[0]
        return f"{self.server}: {text}" if self.server else text


class ConnectionFailed(TransportError):
    """No connection could be made, so nothing was sent."""

    outcome: Outcome = "none"


class ConnectionLost(TransportError):
    """The connection broke after the request may have been sent."""


class Timeout(TransportError):
    """The server took too long."""


class ConnectTimeout(Timeout):
    """The server took too long to accept a connection. Nothing was sent."""

    outcome: Outcome = "none"


class AnswerTimeout(Timeout):
    """The request was sent, completely or in part, and not answered in time."""


class InvalidAnswer(ClientError):
    """The answer is not from Queuey: another service, a broken proxy, or a much newer server.

    Attributes:
        outcome: Always ``unknown``: a write may have been carried out.
        server: Base address of the server that gave the answer.
    """

    outcome: Outcome = "unknown"
    server = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.server}: {text}" if self.server else text


class JobError(ClientError):
    """The result of a job is not available.

    Args:
        info: The job's status.
    """

    def __init__(self, info: JobInfo) -> None:
        super().__init__(info)
        self.info = info

    def __str__(self) -> str:
        return f"job {self.info.partition}:{self.info.message_id} {self._describe_status()}"

    def _describe_status(self) -> str:
        """Returns the rest of the sentence that begins with the job's place (``job 1:…``)."""
        return f"is {self.info.status}"


class JobFailed(JobError):
    """The job is a dead letter.

    Attributes:
        error, text: Class and text of its last error.
    """

    def __init__(self, info: JobInfo) -> None:
        super().__init__(info)
        self.error = info.error or ""
        self.text = info.text or ""

    def _describe_status(self) -> str:
        return f"failed: {self.error}: {self.text}" if self.text else f"failed: {self.error}"


class JobGone(JobError):
    """The job expired, was removed, or was superseded by a newer message of its name. See ``info.status``."""


class ResultTooLarge(JobError):
    """The job is done, but its result was too large to keep. ``info.size`` is its length in bytes."""

    def _describe_status(self) -> str:
        return f"is done; its result of {self.info.size} bytes of JSON was too large to keep"


class ResultUnknown(JobError):
    """The result of the job was not set, or is not kept any more, or the job was never in this queue (``never_seen``).

    The queue keeps results for ``info.kept`` seconds.
    """

    def _describe_status(self) -> str:
        if self.info.status == "never_seen":
            return "was never in this queue"
        kept = self.info.kept or 0
        cause = f"this queue keeps results for {kept} s" if kept else "this queue keeps no results: set its result_ttl"
        return f"is {self.info.status}, and its result is not known: {cause}"


class ResultTimeout(ClientError, TimeoutError):
    """A job has not ended in time. It continues."""


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The error answer of a server.

    Attributes:
        status: HTTP status.
        code: Queuey's stable code of the error.
        fields: Error text of each field (``"1.partition"`` in a batch).
        text: The answer if it was plain text.
        retry_after: Seconds after which to retry, or None if the server did not say.
        outcome: Outcome of a write, ``none`` or ``unknown``, or None if the server did not say.
        outcomes: The outcome of each message of a batch.
        current: The offset that is recorded now, by partition of the request.
        applied: The partitions whose offset was set anyway.
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
        refusal: The error answer.

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
        """True if the server certainly did not carry out the call, so that even a POST may be repeated."""
        return False


class InvalidRequest(ApiError):
    """The request is not valid. Nothing was stored."""


class TooLarge(InvalidRequest):
    """A body or a batch exceeds the server's limit. Nothing was stored."""


class KeyReused(InvalidRequest):
    """The idempotency key was already used for another message. Nothing was stored."""


class NotAuthenticated(ApiError):
    """The key or the token is unknown, expired, revoked or not for this service."""


class NotAllowed(ApiError):
    """The caller lacks the permission."""


class NotFound(ApiError):
    """Something named in the call does not exist."""


class ApplicationNotFound(NotFound):
    """The application does not exist."""


class QueueNotFound(NotFound):
    """The queue does not exist."""


class GroupNotFound(NotFound):
    """The group does not exist, or has no offsets for the queue."""


class MemberGone(NotFound):
    """The member's session has ended, or it was replaced. Others may own its partitions. Join again."""


class MessageNotFound(NotFound):
    """The message does not exist."""


class Conflict(ApiError):
    """The call conflicts with the present state."""


class QueueExists(Conflict):
    """The queue exists and differs in the given fields."""


class OffsetConflict(Conflict):
    """At least one recorded offset was not the expected one.

    Attributes:
        current: The offset that is recorded now, or None, by partition of the call.
        applied: The partitions that were set anyway.
    """

    def __init__(self, refusal: ErrorAnswer) -> None:
        super().__init__(refusal)
        self.current = dict(refusal.current)
        self.applied = refusal.applied


class NotOwner(Conflict):
    """The member does not own some partitions, or not under these epochs. All other offsets were recorded.

    Attributes:
        partitions: Partitions of the call whose offsets were not recorded.
    """

    def __init__(self, refusal: ErrorAnswer) -> None:
        super().__init__(refusal)
        self.partitions = refusal.not_owned


class GroupActive(Conflict):
    """The group has members, so only they may commit, and the group cannot be deleted."""


class GroupElsewhere(Conflict):
    """The group is served in another data centre. The text names it."""


class KeyInUse(Conflict):
    """Another send with this idempotency key is running, or was when its server stopped. This one had no effect."""

    temporary = True


class NameTaken(Conflict):
    """Another message has the name. This one was not stored."""


class NameNotFound(NotFound):
    """No message has the name."""


class ClaimLost(Conflict):
    """The claim had expired, and the message was delivered to another caller.

    Attributes:
        refused: The refused receipts of the call. It was carried out for all others.
    """

    def __init__(self, refusal: ErrorAnswer) -> None:
        super().__init__(refusal)
        self.refused = refusal.refused


class ServerError(ApiError):
    """The server or a proxy failed, or the caller sent too many requests (429)."""

    temporary = True

    @property
    def not_processed(self) -> bool:
        outcomes = (self.outcome, *self.outcomes)
        return "none" in outcomes and all(outcome in {None, "none"} for outcome in outcomes)


class ServiceUnavailable(ServerError):
    """The server cannot serve the call now."""


class TooManyWaiters(ServiceUnavailable):
    """The server has as many long polls as it allows. The call was not started."""

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
    """Returns the error of the answer's code if its class fits the status, else the error of the status."""
    kind: type[Any] = BY_STATUS.get(refusal.status, ServerError if refusal.status >= 500 else ApiError)  # noqa: PLR2004 - HTTP
    named = BY_CODE.get(refusal.code)
    error: ApiError = (named if named is not None and issubclass(named, kind) else kind)(refusal)
    return error
