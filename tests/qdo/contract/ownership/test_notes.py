"""The next owner learns whether the last one was lost, and which note it left beside the offset."""

from __future__ import annotations

import msgspec

from qdo.group.records import HandlingNote, SessionOffset
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.session import ZooKeeperSession
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS, Service, once
from tests.qdo.contract.conftest import Join
from tests.qdo.contract.ownership.test_fencing import commit_and_check
from tests.qdo.contract.samples import PARTITION

pytestmark = once

NOTE = HandlingNote("5", 2, last=True)


def with_note(held: SessionOffset, note: HandlingNote | None) -> SessionOffset:
    return msgspec.structs.replace(held, offset=msgspec.structs.replace(held.offset, note=note))


async def test_a_release_is_told_from_a_loss(join: Join, service: Service) -> None:
    """A claim tells a release by the last owner from a loss; a commit in between changes nothing."""
    first, _ = await join("a")
    held = (await first.claim([PARTITION]))[PARTITION]
    assert not held.offset.held
    await commit_and_check(first, held, "1")
    await first.release([PARTITION])
    second, _ = await join("b", session_timeout=RESPONSIVE_SESSION_SECONDS)
    held = (await second.claim([PARTITION]))[PARTITION]
    assert (held.offset.id, held.offset.held) == ("1", False)
    await commit_and_check(second, held, "2")
    await service.expire(second)
    held = await claim_when_free(first)
    assert (held.offset.id, held.offset.held) == ("2", True)
    await first.release([PARTITION])
    assert not (await claim_when_free(first)).offset.held


async def test_a_note_outlives_whoever_made_it(join: Join, service: Service) -> None:
    """A note outlives commits, a release and a loss, also where no offset was recorded yet."""
    first, _ = await join("a")
    held = (await first.claim([PARTITION]))[PARTITION]
    held = (await first.commit([(with_note(held, NOTE), None)]))[PARTITION]  # type: ignore[assignment] # it is ours
    assert (held.offset.id, held.offset.note) == (None, NOTE)
    held = await commit_and_check(first, held, "1")
    assert held.offset.note == NOTE
    await first.release([PARTITION])
    second, _ = await join("b", session_timeout=RESPONSIVE_SESSION_SECONDS)
    assert (await second.claim([PARTITION]))[PARTITION].offset.note == NOTE
    await service.expire(second)
    held = await claim_when_free(first)
    assert (held.offset.id, held.offset.note) == ("1", NOTE)
    held = (await first.commit([(with_note(held, None), "1")]))[PARTITION]  # type: ignore[assignment] # likewise
    await first.release([PARTITION])
    assert (await claim_when_free(first)).offset.note is None


async def test_moving_an_offset_leaves_no_suspicion(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """After an offset was moved from outside, the loss and the note are forgotten."""
    session, _ = await join("a")
    held = (await session.claim([PARTITION]))[PARTITION]
    await session.commit([(with_note(held, NOTE), "1")])
    await session.release([PARTITION])
    await coordinator.set_offsets({PARTITION: "7"})
    offset = (await claim_when_free(session)).offset
    assert (offset.id, offset.held, offset.note) == ("7", False, None)


async def claim_when_free(session: ZooKeeperSession) -> SessionOffset:
    while not (held := await session.claim([PARTITION])):
        pass
    return held[PARTITION]
