"""Sends calls: the client's own way to do it as a type, and calls about many receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from queuey.client.calls.call import Call
from queuey.client.claims.held import HeldClaims, Work
from queuey.client.errors import ClaimLost, ClientError
from queuey.client.results import Refused

T = TypeVar("T")


class SendCall(Protocol):
    """Sends a call until it is answered or may not be sent again, within the client's patience or so many seconds."""

    def __call__(self, call: Call[T], within: float | None = None, /) -> T: ...


def send_all(send: SendCall, calls: Iterable[Call[None]], within: float | None = None) -> list[Refused]:
    """Sends calls about receipts; returns those that were refused."""
    refused: list[Refused] = []
    for call in calls:
        try:
            send(call, within)
        except ClaimLost as error:
            if not error.refused:
                raise
            refused.extend(error.refused)
    return refused


def send_work(
    send: SendCall,
    claims: HeldClaims,
    work: Work,
    clock: Callable[[], float],
    report: Callable[[Exception], None],
) -> None:
    """Renews or acknowledges claims, and releases again those that were released meanwhile.

    ``report`` gets each error but those of the service and the network.
    """
    began = clock()
    try:
        refused = send_all(send, work.calls, work.within)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other claims are to be renewed
        claims.failed(work, error)
        if not isinstance(error, ClientError):
            report(error)
    else:
        claims.done(work, began, [each.receipt for each in refused])
    for call in claims.repeated_releases(work):
        try:
            send(call, work.again_within)
        except ClientError:
            continue  # The message is delivered when its claim expires.
        except Exception as error:  # noqa: BLE001 - as above
            report(error)
