"""``qdo status``, ``qdo offsets`` and ``qdo groups`` for a group of the service."""

from __future__ import annotations

import pytest

from queuey.api.groups import Heartbeat, PartitionCommit
from queuey.client import Client
from tests.commands import Run
from tests.qdo.cli.conftest import ServiceGroup


@pytest.fixture
def group(service_group: ServiceGroup) -> ServiceGroup:
    return service_group


def test_a_group_of_the_service(run: Run, group: ServiceGroup, client: Client, queue: str) -> None:
    """Members, owners, assignments, offsets with their owner, and lag are shown; offsets stay without members."""
    sent = [client.send(queue, str(number), partition=1) for number in range(4)]
    anna = client.consumer_groups.join(group.name, [queue], instance="anna")
    epochs = {number: taken.epoch for number, taken in anna.heartbeat(Heartbeat(wait=1)).take[queue].items()}
    anna.commit(queue, {1: PartitionCommit(sent[1].id, epochs[1])})
    other = client.consumer_groups.join(group.name, [queue])
    other.heartbeat()
    to_give_back = anna.heartbeat(Heartbeat(owned={queue: epochs}, wait=3)).give_back[queue]
    document = run("status", "--json").json
    assert [(member["id"], member["static"], member["owns"]) for member in document["members"]] == [
        ("#2", False, 0),
        ("anna", True, len(epochs)),
    ]
    lines = {line["partition"]: line for line in document["partitions"]}
    assert {number for number, line in lines.items() if line["target"] == "#2"} == to_give_back.keys()
    assert {line["owner"] for line in lines.values()} == {"anna"}
    assert (lines[1]["offset"], lines[1]["by"], lines[1]["lag"]) == (sent[1].id, "anna", 2)
    assert document["lag"] == 2
    assert f"{group.name}: 2 members own" in run("status").text
    assert run("offsets", "show", "--json").json_lines[0]["member"] == "anna"
    for member in (anna, other):
        member.leave()
    assert sent[1].id in run("status").text
    shown = run("offsets", "show").text
    assert sent[1].id in shown
    assert "from outside" not in shown
    counts = {line["group"]: line for line in run("groups", "--json").json_lines}
    assert (counts[group.name]["members"], counts[group.name]["partitions"]) == (0, 1)
