"""States that workers set on their messages: who may set them, who sees them, and when they are gone."""

from __future__ import annotations

from msgspec import UNSET

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.claims.claims import HandlerFailure
from queuey.claims.job_records import JobRecords, JobState
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus
from queuey.model import ids
from queuey.model.ids import Position
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.blocking import blocking
from tests.contract.attempts.test_attempts import make_limited_queue
from tests.contract.claims.test_claims import enter
from tests.contract.samples import append_bodies, fill_queue, make_queue


def shown(service: Service, access: QueueAccess) -> list[bytes | None]:
    found = sorted(
        service.core.run(service.claims.overview.list_jobs(access, 9, states=True)),
        key=lambda one: ids.parse_id(one.message_id),
    )
    return [None if one.state is None else bytes(one.state) for one in found]


def find_state_reasons(service: Service, access: QueueAccess, place: Position) -> list[str]:
    reasons = service.core.run(service.explaining.explain(access, place, 1)).reasons
    return [reason.text.partition(": ")[2] for reason in reasons if reason.code == "state"]


def put(service: Service, access: QueueAccess, receipt: ClaimReceipt, state: bytes) -> ReceiptStatus:
    [settled] = blocking(service.claims).set_states(access, {receipt: state})
    return settled.status


def test_all_processes_see_the_last_state(store: Store, other: Store) -> None:
    """Every process shows a state until another one is set or the message is done; most jobs have none."""
    queue = make_queue(store)
    first, _ = append_bodies(store, queue, "a", "b")
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    a, b = blocking(service.claims).claim(access, limit=2, ttl=60)
    assert put(service, access, a.receipt, b'{"done":1}') is ReceiptStatus.ACCEPTED
    assert shown(peer, peer_access) == [b'{"done":1}', None]
    assert put(peer, peer_access, a.receipt, b'{"done":2}') is ReceiptStatus.ACCEPTED
    assert shown(service, access) == [b'{"done":2}', None]
    assert find_state_reasons(service, access, first) == ['{"done":2}']
    assert [each.state for each in service.core.run(service.claims.overview.list_jobs(access, 9))] == [UNSET, UNSET]
    blocking(service.claims).acknowledge(access, [a.receipt, b.receipt])
    assert shown(peer, peer_access) == []
    assert find_state_reasons(peer, peer_access, first) == []
    assert put(peer, peer_access, a.receipt, b"3") is ReceiptStatus.FINAL
    assert find_state_reasons(peer, peer_access, first) == []


def test_who_has_lost_the_message_is_refused(store: Store, other: Store, clock: Clock) -> None:
    """A worker whose claim was followed by another one cannot set a state, also in a process that has not seen that."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "a")
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    [old] = blocking(service.claims).claim(access, limit=1, ttl=10)
    assert put(service, access, old.receipt, b'"old"') is ReceiptStatus.ACCEPTED
    clock.advance(60)
    assert shown(peer, peer_access) == [b'"old"']
    [new] = blocking(peer.claims).claim(peer_access, limit=1, ttl=60)
    assert put(service, access, old.receipt, b'"late"') is ReceiptStatus.SUPERSEDED
    assert shown(service, access) == [None]
    assert put(peer, peer_access, new.receipt, b'"new"') is ReceiptStatus.ACCEPTED
    late = JobState(old.receipt.number, 0.0, b'"checked before, written late"')
    bridge.run(JobRecords(store.ledger).set_state(queue, 1, place, late))
    assert shown(service, access) == [b'"new"']


def test_a_failed_attempt_keeps_its_state(store: Store) -> None:
    """The state of a failed attempt is shown beside its reason, and not as the state of the next delivery."""
    queue = make_limited_queue(store, 5)
    [place] = append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60)
    put(service, access, claimed.receipt, b'"half"')
    blocking(service.claims).release(access, [claimed.receipt], 0.0, HandlerFailure("ValueError"))
    assert find_state_reasons(service, access, place) == ['"half"']
    blocking(service.claims).claim(access, limit=1, ttl=60)
    assert shown(service, access) == [None]
    assert find_state_reasons(service, access, place) == ['"half"']


def test_a_state_is_no_entry_of_the_log(store: Store) -> None:
    """Setting states changes neither the length of the claim log nor the end of the claim."""
    queue = fill_queue(store, "a")
    service, access = enter(store, queue)
    [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60)
    before = blocking(service.claims).look_at(queue, lambda state, _: (state.number, list(state.outstanding.items())))
    for number in range(3):
        put(service, access, claimed.receipt, b"%d" % number)
    after = blocking(service.claims).look_at(queue, lambda state, _: (state.number, list(state.outstanding.items())))
    assert after == before
