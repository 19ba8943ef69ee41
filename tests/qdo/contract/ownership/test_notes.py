"""The next owner learns whether the last one was lost, and which note it left beside the offset."""

from __future__ import annotations

import msgspec

from qdo.coordination import Coordinator, HandlingNote, OwnedOffset, Session
from tests.qdo.contract.backends import LONG_ENOUGH, Service, once
from tests.qdo.contract.conftest import Join
from tests.qdo.contract.ownership.test_fencing import committed
from tests.qdo.contract.samples import ONE

pytestmark = once

NOTE = HandlingNote("5", 2, last=True)


def noted(held: OwnedOffset, note: HandlingNote | None) -> OwnedOffset:
    """Returns the argument that records a note."""
    return msgspec.structs.replace(held, offset=msgspec.structs.replace(held.offset, note=note))


async def test_a_release_is_told_from_a_loss(join: Join, service: Service) -> None:
    """A claim tells a release by the last owner from a loss; a commit in between changes nothing."""
    first, _ = await join("a")
    held = (await first.claim([ONE]))[ONE]
    assert not held.offset.held
    await committed(first, held, "1")
    await first.release([ONE])
    second, _ = await join("b", session_timeout=LONG_ENOUGH)
    held = (await second.claim([ONE]))[ONE]
    assert (held.offset.id, held.offset.held) == ("1", False)
    await committed(second, held, "2")
    await service.expire(second)
    held = await taken(first)
    assert (held.offset.id, held.offset.held) == ("2", True)
    await first.release([ONE])
    assert not (await taken(first)).offset.held


async def test_a_note_outlives_whoever_made_it(join: Join, service: Service) -> None:
    """A note outlives commits, a release and a loss, also where no offset was recorded yet."""
    first, _ = await join("a")
    held = (await first.claim([ONE]))[ONE]
    held = (await first.commit([(noted(held, NOTE), None)]))[ONE]  # type: ignore[assignment] # it is ours
    assert (held.offset.id, held.offset.note) == (None, NOTE)
    held = await committed(first, held, "1")
    assert held.offset.note == NOTE
    await first.release([ONE])
    second, _ = await join("b", session_timeout=LONG_ENOUGH)
    assert (await second.claim([ONE]))[ONE].offset.note == NOTE
    await service.expire(second)
    held = await taken(first)
    assert (held.offset.id, held.offset.note) == ("1", NOTE)
    held = (await first.commit([(noted(held, None), "1")]))[ONE]  # type: ignore[assignment] # likewise
    await first.release([ONE])
    assert (await taken(first)).offset.note is None


async def test_moving_an_offset_leaves_no_suspicion(join: Join, coordinator: Coordinator) -> None:
    """After an offset was moved from outside, the loss and the note are forgotten."""
    session, _ = await join("a")
    held = (await session.claim([ONE]))[ONE]
    await session.commit([(noted(held, NOTE), "1")])
    await session.release([ONE])
    await coordinator.set_offsets({ONE: "7"})
    offset = (await taken(session)).offset
    assert (offset.id, offset.held, offset.note) == ("7", False, None)


async def taken(session: Session) -> OwnedOffset:
    """Claims the partition as soon as it is free."""
    while not (held := await session.claim([ONE])):
        pass
    return held[ONE]
