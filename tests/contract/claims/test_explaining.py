"""Explains why a message is not read or claimed, on both stores; tests/web covers each reason."""

from __future__ import annotations

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.model import ids
from queuey.model.ids import Position
from queuey.storage import ClaimLogs, Store, bridge
from tests.backends import Clock
from tests.blocking import blocking
from tests.contract.claims.test_claims import enter
from tests.contract.samples import append_bodies, make_queue, new_message
from tests.interposed_store import InterposedStore


def codes(service: Service, access: QueueAccess, place: Position, partition: int | None = None) -> list[str]:
    return [reason.code for reason in service.core.run(service.explaining.explain(access, place, partition)).reasons]


def test_from_post_to_delete(store: Store) -> None:
    """A message is found in its partition, with its expiry and its claim, until it is deleted."""
    queue = make_queue(store, partitions=3)
    [place] = append_bodies(store, queue, "a", partition=2)
    [late] = bridge.run(store.messages.append(queue, [new_message("b", partition=3, delay=1000)]))
    service, access = enter(store, queue)
    explanation = service.core.run(service.explaining.explain(access, place, None))
    assert (explanation.stored, explanation.readable) == (True, True)
    assert [(reason.code, reason.partition) for reason in explanation.reasons] == [("readable", 2), ("expires", 2)]
    assert codes(service, access, late) == ["delayed", "expires"]
    assert codes(service, access, place, 1) == ["absent", "no_trace"]
    assert len(blocking(service.claims).claim(access, limit=1, ttl=60)) == 1
    assert codes(service, access, place) == ["readable", "expires", "claimed"]
    bridge.run(store.messages.delete(queue, [(2, place)]))
    assert codes(service, access, place) == ["absent", "claimed", "no_trace"]
    bridge.run(store.catalogue.purge_queue(queue))
    assert codes(service, access, place) == ["absent", "no_trace"]


def test_acts_of_operators(store: Store, clock: Clock) -> None:
    """An explanation says whether a message was retried before it was due, or was cancelled."""
    queue = make_queue(store)
    service, access = enter(store, queue)
    claims = blocking(service.claims)
    [late] = bridge.run(store.messages.append(queue, [new_message("a", delay=1000)]))

    def last() -> str:
        return service.core.run(service.explaining.explain(access, late, None)).reasons[-1].text

    claims.make_available_now(access, late)
    assert last() == "It has not been claimed yet; one of the next claims gets it, even before it is due."
    assert len(claims.claim(access, limit=1, ttl=30)) == 1
    claims.cancel(access, late)
    assert last().endswith("It is cancelled: its worker was asked to stop, and no claim gets it again.")
    clock.advance(60)
    assert last() == "It was delivered 1 time and cancelled: no claim gets it again."


def test_the_delay_of_reads(store: Store) -> None:
    """Within the read delay a message is stored and not readable; the time at which it will be is right."""
    queue = make_queue(store, read_delay=1000.0)
    [place] = append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    explanation = service.core.run(service.explaining.explain(access, place, None))
    assert (explanation.stored, explanation.readable, explanation.reasons[0].code) == (True, False, "read_delay")
    assert explanation.reasons[0].at == ids.ticks_to_seconds(place[0]) + 1000


def test_reads_that_prove_nothing(store: Store) -> None:
    """If reads need not meet every write, the explanation says so, for existing and for missing messages."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "a")
    refusing = InterposedStore(store)
    refusing.instead(ClaimLogs.claims_refusal, lambda _queue: "Choose very_strong.")
    service, access = enter(refusing.store, queue)
    assert codes(service, access, place) == ["readable", "expires", "not_claimable", "not_proven"]
    bridge.run(store.messages.delete(queue, [(1, place)]))
    assert codes(service, access, place) == ["absent", "not_proven", "no_trace"]
