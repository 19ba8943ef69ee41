"""The effects of a clock that was wrong, once it is right again: what is blocked, who reports it, what ends it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.model import ids
from queuey.model.time_parsing import clock_warning
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking
from tests.contract.claims.test_claims import claimed_bodies, enter
from tests.contract.samples import append_bodies, fill_queue, make_queue, new_message, read_one, whole_partition

HOUR, DAY = 3600.0, 86_400.0
JUMPS = [5 * HOUR, 20 * HOUR, 400 * DAY, -5 * HOUR, -400 * DAY]
Open = Callable[[Clock], Store]


def claim(service: Service, access: QueueAccess, ttl: float = 60, *, acknowledge: bool = False) -> list[str | bytes]:
    claimed = blocking(service.claims).claim(access, limit=10, ttl=ttl)
    if acknowledge:
        blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])
    return claimed_bodies(claimed)


@pytest.mark.parametrize("jump", JUMPS)
def test_ids_grow(open_with_clock: Open, jump: float) -> None:
    """Ids ascend in one process whatever its clock does, and on SQLite in all processes."""
    clock = Clock()
    store = open_with_clock(clock)
    queue = make_queue(store)
    places = append_bodies(store, queue, "right")
    clock.advance(jump)
    places += append_bodies(store, queue, "wrong")
    clock.advance(-jump)
    places += append_bodies(store, queue, "right again")
    if store.name == "sqlite":
        later = open_with_clock(clock)
        places += append_bodies(later, queue, "later")
        positions = [message.position for message in read_one(later, queue, whole_partition()).messages]
        assert positions == places
    assert places == sorted(places)
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("jump", "kind"),
    [*((jump, "plain") for jump in JUMPS), *((jump, kind) for kind in ("ordered", "dedup") for jump in JUMPS[1::3])],
)
def test_claims(open_with_clock: Open, jump: float, kind: str) -> None:
    """Later messages are claimed, and claims of a worker that died expire, within 13 h at the latest.

    On Cassandra later ids are below those that claims passed while all clocks were ahead: such a queue is purged.
    """
    clock = Clock()
    store = open_with_clock(clock)
    if store.name != "sqlite" and kind == "ordered":
        pytest.skip("with a clock moved by hand such a queue's read delay on Cassandra is 634 years")
    queue = make_queue(store, kind=kind)
    clock.advance(jump)
    service, access = enter(store, queue)
    bridge.run(store.messages.append(queue, [new_message("lost", ttl=5 * 86_400)]))
    clock.advance(120)
    assert claim(service, access) == ["lost"]
    clock.advance(-jump)
    # On Cassandra the ids of a process stay above those that it has made.
    later = open_with_clock(clock)
    service, access = enter(later, queue)
    waits = predict_delivered(later.name, jump)
    bridge.run(later.messages.append(queue, [new_message("new", ttl=5 * 86_400)]))
    waited, delivered = 0.0, set[str | bytes]()
    while not delivered >= waits:
        clock.advance(600)
        waited += 600
        assert waited <= max(600, min(jump + 1200, 13 * HOUR))
        for _ in range(2):  # A message whose claim has expired comes alone, and before the others of its key.
            delivered.update(claim(service, access, ttl=43_200, acknowledge=True))
    assert delivered == waits
    if later.name != "sqlite" and jump > 0:
        bridge.run(later.catalogue.purge_queue(queue))
        service, access = enter(later, queue := bridge.run(later.catalogue.queue(APP, queue.name)))
        bridge.run(later.messages.append(queue, [new_message("purged")]))
        clock.advance(600)
        assert claim(service, access) == ["purged"]


def predict_delivered(store: str, jump: float) -> set[str]:
    """Returns which messages are delivered: one from long ago has expired."""
    lost = {"lost"} if jump >= -5 * DAY else set()
    return lost if store != "sqlite" and jump > 0 else lost | {"new"}


def read_warning(store: Store) -> str:
    return clock_warning(bridge.run(store.ledger.ids_ahead())) or ""


@pytest.mark.parametrize("behind", [50.0, 5 * HOUR, 400 * DAY])
def test_it_is_said(open_with_clock: Open, behind: float) -> None:
    """The store says how far its ids are ahead, until the clock has caught up, and nothing before or after."""
    clock = Clock()
    store = open_with_clock(clock)
    queue = fill_queue(store, "a")
    assert read_warning(store) == ""
    clock.advance(-behind)
    assert bridge.run(store.ledger.ids_ahead()) == pytest.approx(behind)
    assert (read_warning(store) == "") == (behind < 60)
    service, access = enter(store, queue)
    if store.name == "sqlite":
        [place] = append_bodies(store, queue, "b")
        reasons = service.core.run(service.explaining.explain(access, place, 1)).reasons
        assert any(reason.text == read_warning(store) for reason in reasons) == (behind > 60)
    assert (read_warning(store) in service.core.run(service.explaining.explain_queue(access)).sentences) == (
        behind > 60
    )
    clock.advance(behind + 1)
    assert bridge.run(store.ledger.ids_ahead()) == 0
    assert ids.ticks_to_seconds(append_bodies(store, queue, "c")[0][0]) == pytest.approx(
        ids.ticks_to_seconds(clock.ticks)
    )
