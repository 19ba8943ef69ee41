"""``qdo offsets`` and ``qdo groups``."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from qdo.group.records import Member
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.partitions import Partition, Queue
from queuey.client import EARLIEST, Client, Receipt, order_of, time_of
from tests.commands import Run, simulated_pauses
from tests.qdo.cli.conftest import GROUP, Group
from tests.replacing import replace

FORMER = "0" * 32
"""The id of a store that the service had before."""
CHANGING = [
    ("reset", "earliest"),
    ("reset", "latest"),
    ("seek", "--to", "-1h"),
    ("forget", "--yes"),
    ("forget", "--yes", "--partition", "1"),
]


@pytest.fixture
def sent(client: Client, queue: str) -> list[Receipt]:
    """Four messages in the first partition, one in the second, none in the third."""
    first = [client.send(queue, str(number), partition=1) for number in range(4)]
    return [*first, client.send(queue, "alone", partition=2)]


def test_reset_to_the_ends(run: Run, group: Group, queue: str, sent: list[Receipt]) -> None:
    """``latest`` is behind the newest message of each partition, ``earliest`` before everything.

    Without a selection only offsets of this service's application are moved.
    """
    other = Partition(Queue("elsewhere", "app", queue), 1)
    group.record({other: sent[0].id})
    assert run("offsets", "reset", "latest", "--queue", queue).code == 0
    offsets = group.ask(lambda coordinator: coordinator.offsets())
    assert offsets.pop(other).id == sent[0].id
    ends = {(partition.queue.name, partition.number): offset.id for partition, offset in offsets.items()}
    assert all(end and order_of(end) > order_of(sent[4].id) for end in ends.values())
    assert len(ends) == 3
    ended = run("offsets", "reset", "earliest", "--partition", "1", "--json")
    (line,) = ended.json_lines
    assert (line["from"], line["to"], line["changed"]) == (ends[queue, 1], EARLIEST, True)
    assert group.ask(lambda coordinator: coordinator.offsets())[group.partition(queue, 1)].id == EARLIEST


def test_seek_to_an_id_and_to_an_instant(run: Run, group: Group, queue: str, sent: list[Receipt]) -> None:
    """An id counts as handled itself; messages sent at an instant are handled again."""
    assert run("offsets", "seek", "--to", sent[1].id.upper(), "--queue", queue, "--partition", "1").code == 0
    assert group.offsets() == {(queue, 1): sent[1].id}
    assert run("offsets", "seek", "--to", sent[2].timestamp, "--pattern", f"{queue[:9]}*").code == 0
    offset = group.offsets()[queue, 1]
    assert offset is not None
    assert time_of(sent[1].id) <= time_of(offset) <= time_of(sent[2].id)
    assert len(group.offsets()) == 3


@pytest.mark.parametrize("words", CHANGING, ids=" ".join)
def test_nothing_is_changed(run: Run, group: Group, queue: str, sent: list[Receipt], words: list[str]) -> None:
    """A dry run prints the old and new offsets. While a group has a member its offsets stay, and it is named."""
    group.record({group.partition(queue, 1): sent[0].id})
    ended = run("offsets", *words, "--dry-run")
    assert (ended.code, sent[0].id in ended.text) == (0, True), ended.err
    assert "nothing was changed" in ended.err
    with group.living(Member("somebody")):
        for more in ((), ("--dry-run",)):
            ended = run("offsets", *words, *more)
            assert (ended.code, ended.out, len(ended.err.splitlines())) == (1, b"", 1)
            assert "active" in ended.err
            assert "somebody" in ended.err
        assert {"group": GROUP, "members": 1, "partitions": 1} in run("groups", "--json").json_lines
    assert group.offsets() == {(queue, 1): sent[0].id}


def test_forget_some_and_all(run: Run, group: Group, queue: str, sent: list[Receipt]) -> None:
    """Selected offsets are removed; without a selection the group is removed, after a confirmation."""
    group.record({group.partition(queue, number): sent[0].id for number in (1, 2)})
    assert run("offsets", "forget", "--partition", "1", "--yes").code == 0
    assert group.offsets() == {(queue, 2): sent[0].id}
    refused = run("offsets", "forget")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert run("groups", "--json").json["group"] == GROUP
    assert run("offsets", "forget", "--yes").code == 0
    assert group.offsets() == {}
    assert run("groups", "--json").out == b""


def test_show(run: Run, group: Group, queue: str, sent: list[Receipt]) -> None:
    """Recorded offsets are shown with their time and owner, of all services or of selected queues."""
    other = Partition(Queue("elsewhere", "app", "other"), 2)
    group.record({group.partition(queue, 1): sent[0].id, other: EARLIEST})
    lines = run("offsets", "show", "--json").json_lines
    assert {(line["service"], line["queue"], line["partition"]) for line in lines} == {
        (group.store, queue, 1),
        ("elsewhere", "other", 2),
    }
    shown = run("offsets", "show", "--queue", queue).text
    assert sent[0].id in shown
    assert "from outside" in shown
    assert "other" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seek", "--to", "sometime"], "sometime"),
        (["seek", "--to", f"1:{EARLIEST}"], "cursor"),
        (["reset", "latest", "--queue", "no-such-queue"], "no-such-queue"),
        (["reset", "latest"], "--queue"),
        (["reset", "middle"], "middle"),
        (["show", "--group", ""], "group"),
        (["show", "--coordination", "somewhere:"], "somewhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_usage(run: Run, words: list[str], said: str) -> None:
    """An impossible request exits with code 2 and one clear sentence."""
    ended = run("offsets", *words)
    assert (ended.code, ended.out) == (2, b"")
    assert said in ended.err


def test_a_move_meanwhile_is_noticed(run: Run, group: Group, queue: str, sent: list[Receipt]) -> None:
    """If an offset moves between the read and the change, nothing is changed, and a message says so."""
    group.record({group.partition(queue, 1): sent[0].id})
    look = ZooKeeperCoordinator.offsets

    async def looked(self: ZooKeeperCoordinator, partitions: Iterable[Partition] | None = None) -> object:
        seen = await look(self, partitions)
        await self.set_offsets({group.partition(queue, 1): sent[3].id})
        return seen

    with replace(look, looked):
        ended = run("offsets", "seek", "--to", sent[1].id, "--queue", queue, "--partition", "1")
    assert (ended.code, ended.out) == (1, b"")
    assert group.offsets() == {(queue, 1): sent[3].id}


def test_prune(run: Run, group: Group, client: Client, queue: str, sent: list[Receipt]) -> None:
    """Offsets of deleted queues are removed after a confirmation; those of other queues and stores stay."""
    deleted = client.create_queue(partitions=2).name
    client.delete_queue(deleted)
    gone = [group.partition(deleted, number) for number in (1, 2)]
    former = gone[0]._replace(queue=gone[0].queue._replace(service=FORMER))
    stay = {group.partition(queue, 1), former}
    group.record(dict.fromkeys([*stay, *gone], sent[0].id))
    assert run("offsets", "prune").code == 2
    dry = run("offsets", "prune", "--dry-run", "--json").json_lines
    assert {(line["queue"], line["changed"]) for line in dry} == {(deleted, False)}
    assert group.ask(lambda coordinator: coordinator.offsets()).keys() == {*stay, *gone}
    with group.living(Member("anna")):
        assert (run("offsets", "prune", "--yes").code, len(group.offsets())) == (1, 3)
    assert run("offsets", "prune", "--yes").code == 0
    assert group.ask(lambda coordinator: coordinator.offsets()).keys() == stay
    assert run("offsets", "prune", "--service", group.store, "--yes").code == 2
    assert run("offsets", "prune", "--service", FORMER, "--yes").code == 0
    assert group.ask(lambda coordinator: coordinator.offsets()).keys() == stay - {former}


def test_nothing_is_pruned_while_the_service_is_away(
    run: Run, group: Group, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that does not answer deletes no offsets: its queues may still exist."""
    group.record({group.partition(queue, 1): EARLIEST})
    monkeypatch.setenv("QUEUEY_URL", "http://127.0.0.1:9")
    with simulated_pauses():
        assert run("offsets", "prune", "--yes").code == 1
    assert group.offsets() == {(queue, 1): EARLIEST}
