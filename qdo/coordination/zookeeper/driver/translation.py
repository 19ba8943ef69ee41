"""Between the terms of the tree and kazoo's: transactions, and errors, of which nothing above the driver sees one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kazoo import exceptions

from qdo.coordination.tree import Change, Create, Delete, Rejection, RejectionReason, SetData
from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, SessionLost

REFUSED: Mapping[type[Exception], RejectionReason] = {
    exceptions.NoNodeError: RejectionReason.NO_NODE,
    exceptions.NodeExistsError: RejectionReason.NODE_EXISTS,
    exceptions.BadVersionError: RejectionReason.BAD_VERSION,
    exceptions.NotEmptyError: RejectionReason.NOT_EMPTY,
}
"""Answers like others: the state of the nodes is not what was asked for."""
FORBIDDEN = (
    exceptions.NoAuthError,
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
    exceptions.SessionClosedRequireSaslError,
    exceptions.QuotaExceededError,
    exceptions.EphemeralOnLocalSessionError,
)
ENDED = (exceptions.SessionExpiredError,)
"""Also of a client that was closed. Whatever is answered so did not happen."""
UNTOLD = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""Beside the operation that a transaction failed for, all others have one of these."""


def send(client: Any, change: Change) -> Any:  # noqa: ANN401 - kazoo has no types
    """Sends operations that are done all or not at all; returns kazoo's answer to come."""
    transaction = client.transaction()
    for operation in change:
        match operation:
            case Create(path, data, ephemeral, sequence):
                transaction.create(path, data, ephemeral=ephemeral, sequence=sequence)
            case SetData(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path):
                transaction.delete(path)
            case _:
                transaction.check(operation.path, operation.version)
    return transaction.commit_async()


def judge(answer: Any) -> Any:  # noqa: ANN401 - of any request
    """Returns what a request was answered, a refusal if nodes are not as they should be, or an error.

    Nothing was found: None. Transactions are answered with a list; when they fail it has an error for each operation.
    """
    if isinstance(answer, exceptions.NoNodeError):
        return None
    if isinstance(answer, list) and any(isinstance(each, Exception) for each in answer):
        return _refusal(answer)
    return answer


def _refusal(errors: Sequence[object]) -> Rejection | Exception:
    for at, error in enumerate(errors):
        if isinstance(error, Exception) and not isinstance(error, UNTOLD):
            why = REFUSED.get(type(error))
            return error if why is None else Rejection(why, at)
    return CoordinationLost("a transaction failed and the server does not say why")


def translate(errors: Sequence[Exception], answered: int) -> CoordinationError:
    """Returns what is raised for errors that are no answers.

    Args:
        errors: At least one.
        answered: How many requests sent along with them were answered, so that something may have been done.
    """
    for error in errors:
        if isinstance(error, FORBIDDEN):
            return CoordinationRefused(f"ZooKeeper does not allow this: {_name(error)}")
    if not answered and all(isinstance(error, ENDED) for error in errors):
        return SessionLost("the session has ended: what it held may be somebody else's by now")
    if isinstance(errors[0], CoordinationError):
        return errors[0]
    return CoordinationLost(f"ZooKeeper cannot be reached, or did not tell the end: {_name(errors[0])}")


def _name(error: Exception) -> str:
    return f"{type(error).__name__} {error}".rstrip(" ()")
