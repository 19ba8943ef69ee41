"""SQS errors, with their names in both protocols."""

from __future__ import annotations

from queuey.model import errors

_QUERY_NAMES = {
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "BatchEntryIdsNotDistinct": "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": "AWS.SimpleQueueService.BatchRequestTooLong",
    "EmptyBatchRequest": "AWS.SimpleQueueService.EmptyBatchRequest",
    "InvalidBatchEntryId": "AWS.SimpleQueueService.InvalidBatchEntryId",
    "TooManyEntriesInBatchRequest": "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
    "MessageNotInflight": "AWS.SimpleQueueService.MessageNotInflight",
    "UnsupportedOperation": "AWS.SimpleQueueService.UnsupportedOperation",
}
"""Names of errors in the Query protocol, where they differ from AWS JSON."""

THROTTLED, UNAVAILABLE = "RequestThrottled", "ServiceUnavailable"
"""Names of temporary errors, whose answers have the header ``Retry-After``."""


class SqsError(errors.InvalidRequest):
    """An error of SQS. Raised because of a cached queue row, it makes the call run again with a fresh row.

    Args:
        name: Name of the error in AWS JSON.
    """

    code = "InvalidParameter"

    def __init__(self, name: str, text: str, status: int = 400) -> None:
        super().__init__({name: text})
        self.text = text
        self.name = name
        self.status = status

    def __str__(self) -> str:
        return self.text

    @property
    def query_name(self) -> str:
        return _QUERY_NAMES.get(self.name, self.name)

    @property
    def is_sender_fault(self) -> bool:
        return self.status < 500  # noqa: PLR2004 - 5xx is the service's fault


def invalid(name: str, value: object, reason: str) -> SqsError:
    return SqsError(
        "InvalidParameterValue", f"Value {str(value)[:100]} for parameter {name} is invalid. Reason: {reason}"
    )


def check_range(name: str, value: int | None, minimum: int, maximum: int, otherwise: int = 0) -> int:
    """Returns the number, or ``otherwise`` if it is None.

    Raises:
        SqsError: The number is out of range.
    """
    if value is None:
        return otherwise
    if not minimum <= value <= maximum:
        raise invalid(name, value, f"Must be between {minimum} and {maximum}, if provided.")
    return value


def missing(name: str) -> SqsError:
    return SqsError("MissingParameter", f"The request must contain the parameter {name}.")


def no_such_queue(text: str) -> SqsError:
    return SqsError("QueueDoesNotExist", f"The specified queue does not exist. {text}")


_SERVICE_ERRORS: tuple[tuple[type[Exception], str, int], ...] = (
    (errors.NotFound, "ResourceNotFoundException", 404),
    (errors.NotAuthenticated, "InvalidClientTokenId", 403),
    (errors.NotAllowed, "AccessDenied", 403),
    (errors.TooManyRequests, THROTTLED, 400),
    (errors.StoreUnavailable, UNAVAILABLE, 503),
    (errors.StoreIncompatible, UNAVAILABLE, 503),
    (errors.QueueChanged, UNAVAILABLE, 503),
    (errors.KeyInUse, UNAVAILABLE, 503),
    (errors.ClaimsRefused, "UnsupportedOperation", 400),
)
"""Errors of the service, with their SQS names and statuses. The first match applies."""


def as_sqs(error: Exception, status: int, text: str) -> SqsError:
    """Returns the SQS error for an error of the service: an SqsError as it is, others by their class.

    A class without an SQS name is an InternalFailure for a status of 500 or more, else InvalidParameterValue with 400.
    """
    if isinstance(error, SqsError):
        return error
    if isinstance(error, errors.QueueNotFound):
        return no_such_queue(text)
    for kind, name, answered in _SERVICE_ERRORS:
        if isinstance(error, kind):
            return SqsError(name, text, answered)
    if status >= 500:  # noqa: PLR2004 - 5xx is the service's fault
        return SqsError("InternalFailure", text, 500)
    return SqsError("InvalidParameterValue", text)
