"""A group that met in a file of 0.1.0 goes on in the service, where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdo import AsyncConsumer, open_coordinator
from qdo.coordination import Coordinator, Member, ServiceCoordinator
from qdo.coordination.service.former_file import read_group, take_over
from qdo.errors import CoordinationIncompatible, GroupActive, InvalidArgument
from qdo.partitions import Partition, Queue, subscribe
from queuey.client import AsyncClient
from tests.qdo.consumer.conftest import System, until
from tests.qdo.service.former import end_sessions, write_former
from tests.servers.plugin import unique_name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordination.sqlite3"


def member_of(queue: Queue) -> Member:
    return Member("anna", subscribe([queue.name], [], queue.service, queue.application))


async def ids(system: System, queue: Queue, group: str) -> dict[int, str | None]:
    offsets = await system.client.offsets(queue.name, group)
    return {number: state.offset for number, state in offsets.partitions.items() if state.offset is not None}


async def test_a_group_begins_with_the_offsets_of_its_file_once(system: System, path: Path) -> None:
    """The file's offsets replace those in the service once; offsets set afterwards stay."""
    queue, group = await system.queue(2), unique_name("group")
    sent = await system.send(queue, 3)
    partition = Partition(queue, 1)
    write_former(path, group, {partition: sent[1]})
    await system.client.commit(queue.name, group, {1: sent[0]})
    coordinator = ServiceCoordinator(system.client, group, former=path)
    session = await coordinator.join(member_of(queue), lambda _: None)
    await session.leave()
    assert await ids(system, queue, group) == {1: sent[1]}
    await coordinator.set_offsets({partition: sent[0]})
    await (await ServiceCoordinator(system.client, group, former=path).join(member_of(queue), lambda _: None)).leave()
    assert await ids(system, queue, group) == {1: sent[0]}


async def test_a_group_with_living_members_stays_in_its_file(system: System, path: Path) -> None:
    """Joining is refused while the file has live members; the error names them and the file."""
    queue, group = await system.queue(), unique_name("group")
    write_former(path, group, {}, living=["host-1", "host-2"])
    coordinator = ServiceCoordinator(system.client, group, former=path)
    with pytest.raises(GroupActive) as caught:
        await coordinator.join(member_of(queue), lambda _: None)
    assert all(text in str(caught.value) for text in (str(path), "host-1, host-2"))
    assert await coordinator.members() == {}
    end_sessions(path)
    await (await coordinator.join(member_of(queue), lambda _: None)).leave()


async def test_offsets_of_other_stores_stay_in_the_file(system: System, path: Path) -> None:
    """Each service on this machine takes over its own offsets of queues with the same name, in either order."""
    queue, group = await system.queue(), unique_name("group")
    sent = await system.send(queue, 1)
    elsewhere = Queue("f" * 32, queue.application, queue.name)
    write_former(path, group, {Partition(elsewhere, 1): sent[0]})
    assert await take_over(system.client, system.store, path, group, group) == 0
    assert await system.client.groups(queue.name) == ()
    assert await take_over(system.client, elsewhere.service, path, group, group) == 1
    assert await take_over(system.client, elsewhere.service, path, group, group) == 0
    former = read_group(path, group)
    assert former is not None
    assert former.offsets == {Partition(elsewhere, 1): sent[0]}


async def test_queues_that_are_gone_are_passed_over(system: System, path: Path) -> None:
    """Offsets of deleted queues are skipped and not counted; the others are taken over."""
    queue, group = await system.queue(), unique_name("group")
    sent = await system.send(queue, 1)
    gone = Queue(queue.service, queue.application, f"{queue.name}-gone")
    write_former(path, group, {Partition(gone, 1): sent[0], Partition(queue, 1): sent[0]})
    assert await take_over(system.client, system.store, path, group, group) == 1
    assert (await system.client.offsets(queue.name, group)).partitions[1].offset == sent[0]


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A file without groups is refused by name; an empty one, which a killed 0.1.0 left, has no group."""
    wrong, empty = tmp_path / "wrong", tmp_path / "empty"
    wrong.write_text("this is not a database, whatever its name says")
    empty.write_bytes(b"")
    with pytest.raises(CoordinationIncompatible, match="wrong"):
        read_group(wrong, "group")
    assert read_group(empty, "group") is None


async def test_local_is_the_group_of_the_service(system: System, path: Path) -> None:
    """A program of 0.1.0 goes on with a warning; for calls of the coordinator itself an error names the replacement."""
    queue, group = await system.queue(), unique_name("group")
    sent = await system.send(queue, 2)
    write_former(path, group, {Partition(queue, 1): sent[0]})
    with pytest.warns(DeprecationWarning, match="group="):
        coordinator = open_coordinator(f"local://{path}", group, session_timeout=1.0)
    async with AsyncClient(system.profile.url, key=system.profile.key) as client:
        async with AsyncConsumer(client, coordinator, queues=[queue.name]) as consumer:
            await until(lambda: consumer.assignment == {Partition(queue, 1)})
            assert consumer.committed(Partition(queue, 1)) == sent[0]
            assert list((await client.consumer_groups.show(group)).queues) == [queue.name]
        await coordinator.close()
    with pytest.raises(InvalidArgument, match=r"consumer_groups"):
        await coordinator.offsets()
    assert not isinstance(coordinator, Coordinator)
