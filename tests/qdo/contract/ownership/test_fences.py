"""Each check that fences commits, removed in turn: a member must not commit a partition that it no longer owns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from qdo.coordination import CommittedOffset, Coordinator, OwnedOffset, Session
from qdo.coordination.records import encode_offset
from qdo.coordination.tree import ANY_VERSION, Change, Check, Link, SetData
from qdo.errors import SessionLost
from tests.qdo.contract.backends import Service
from tests.qdo.contract.conftest import Join
from tests.qdo.contract.samples import PARTITION
from tests.replacing import replace


def name_parts(parts: set[str]) -> str:
    return "+".join(sorted(parts)) or "nothing"


@contextlib.contextmanager
def only_checks(checks: frozenset[str], session: Session, fresh: Link) -> Iterator[None]:
    """Removes all but some checks of commits.

    Args:
        checks: ``session``: commits go under the session that claimed the partition, or fail; ``owner``: there must
            be an owner; ``version``: the offset must have the version of the claim.
        session: The session whose commits are fenced.
        fresh: The session that commits use without ``session``.
    """

    def recording(self: Session, held: OwnedOffset, offset: CommittedOffset) -> Change:
        owner = (Check(self._paths.owner(held.partition)),) if "owner" in checks else ()
        version = held.version if "version" in checks else ANY_VERSION
        return *owner, SetData(self._paths.offset(held.partition), encode_offset(offset), version)

    link = session.link
    with replace(Session._make_commit, recording):
        if "session" not in checks:
            session.link = fresh
        try:
            yield
        finally:
            session.link = link


async def commit_after_session_ended(
    parts: frozenset[str], join: Join, coordinator: Coordinator, service: Service, *, claimed: bool
) -> str | None:
    """Lets a member commit after its session has ended, with some checks; returns the id recorded then.

    The member has committed 1, a new owner commits 5, and the late commit is 2.
    """
    old, _ = await join("old")
    held = await commit(old, (await old.claim([PARTITION]))[PARTITION], "1")
    new, _ = await join("new")
    await service.expire(old)
    if claimed:
        await commit(new, (await new.claim([PARTITION]))[PARTITION], "5")
    fresh = service.link()
    await fresh.open()
    with only_checks(parts, old, fresh):
        if "session" in parts:
            with pytest.raises(SessionLost):
                await old.commit([(held, "2")])
        else:
            await old.commit([(held, "2")])
    await fresh.close()
    return (await coordinator.offsets())[PARTITION].id


async def commit(session: Session, held: OwnedOffset, identifier: str) -> OwnedOffset:
    after = (await session.commit([(held, identifier)]))[held.partition]
    assert after is not None
    return after


@pytest.mark.parametrize(
    "parts", [{"session"}, {"version"}, {"owner", "version"}, {"session", "owner", "version"}], ids=name_parts
)
async def test_a_late_commit_changes_nothing_after_a_takeover(
    parts: set[str], join: Join, coordinator: Coordinator, service: Service
) -> None:
    """After a takeover the session check alone keeps a late commit out, and so does the version check."""
    assert await commit_after_session_ended(frozenset(parts), join, coordinator, service, claimed=True) == "5"


@pytest.mark.parametrize("parts", [set[str](), {"owner"}], ids=name_parts)
async def test_without_session_and_version_an_offset_moves_back(
    parts: set[str], join: Join, coordinator: Coordinator, service: Service
) -> None:
    """Without both checks a late commit overwrites the new owner's offset; the owner check does not help."""
    assert await commit_after_session_ended(frozenset(parts), join, coordinator, service, claimed=True) == "2"


@pytest.mark.parametrize("parts", [{"session"}, {"owner"}, {"owner", "version"}], ids=name_parts)
async def test_a_late_commit_changes_nothing_although_nobody_took_over(
    parts: set[str], join: Join, coordinator: Coordinator, service: Service
) -> None:
    """Without a takeover the session check alone keeps a late commit out, and so does the owner check."""
    assert await commit_after_session_ended(frozenset(parts), join, coordinator, service, claimed=False) == "1"


@pytest.mark.parametrize("parts", [set[str](), {"version"}], ids=name_parts)
async def test_without_session_and_owner_a_member_records_what_it_does_not_own(
    parts: set[str], join: Join, coordinator: Coordinator, service: Service
) -> None:
    """Without both checks the late commit is recorded, because the version is still that of the last commit."""
    assert await commit_after_session_ended(frozenset(parts), join, coordinator, service, claimed=False) == "2"


async def test_only_who_took_a_partition_commits_it(join: Join, coordinator: Coordinator) -> None:
    """Without the session's own memory another member can commit, because the tree does not distinguish owners."""
    mine, _ = await join("a")
    other, _ = await join("b")
    held = (await mine.claim([PARTITION]))[PARTITION]
    assert await other.commit([(held, "1")]) == {PARTITION: None}
    assert await coordinator.offsets() == {}
    other._held[PARTITION] = held
    assert (await other.commit([(held, "1")]))[PARTITION]
    assert (await coordinator.offsets())[PARTITION].id == "1"
