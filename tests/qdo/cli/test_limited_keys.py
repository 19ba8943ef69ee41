"""Commands with keys that do not see all queues: hidden queues are not taken for deleted ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

import queuey.cli
from queuey.client import Client
from tests.commands import Run, make_runner
from tests.qdo.cli.conftest import Group
from tests.servers.served import Served

ID = "0123456789ab11e88000000000000001"
Limit = Callable[..., None]


@pytest.fixture(scope="module", params=["open", "private"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service; a private one has users, and so does not reveal which queues exist."""
    issuer = {"issuer": "https://login.example.org", "audience": "x", "keys": "http://127.0.0.1:9/keys"}
    users = {"queuey": [issuer | {"queues": {"inbox-{user}": ["read"]}}]}
    options = ["--users", json.dumps(users)] if request.param == "private" else []
    with Served(tmp_path_factory.mktemp("served"), options) as running:
        yield running


@pytest.fixture
def limit(served: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Gives the test's commands a key with these verbs, for queues that match these patterns."""
    admin = make_runner("queuey", queuey.cli.main, monkeypatch)

    def limited(allow: str, *queues: str) -> None:
        options = ["--allow", allow, "--queues", ",".join(queues), "--data", str(served.data), "--json"]
        monkeypatch.setenv("QUEUEY_KEY", admin("app", "key-add", "queuey", *options).json["secret"])

    return limited


def test_prune_keeps_offsets_of_hidden_queues(run: Run, group: Group, client: Client, limit: Limit) -> None:
    """Only offsets of queues that certainly do not exist are removed; hidden queues are named."""
    orders, mails = (client.create_queue(partitions=1).name for _ in range(2))
    gone = f"{orders}-gone"
    everything = {(name, 1): ID for name in (orders, mails, gone)}
    group.record({group.partition(*each): ID for each in everything})
    limit("read,claim,send", f"{orders}*")
    for words in (["--dry-run"], ["--yes"]):
        ended = run("offsets", "prune", *words, "--json")
        assert [line["queue"] for line in ended.json_lines] == [gone]
        assert (ended.code, mails in ended.err) == (0, True)
    assert group.offsets() == {each: ID for each in everything if each != (gone, 1)}


def test_a_hidden_queue_is_not_said_to_be_missing(run: Run, client: Client, limit: Limit) -> None:
    """A command that names a queue tells a missing queue from one that the key may not see."""
    name = client.create_queue().name
    limit("read", f"{name}-*")
    refused = run("offsets", "reset", "earliest", "--queue", name)
    assert (refused.code, f"the credential may not see {name}" in refused.err) == (2, True)
    missing = run("offsets", "reset", "earliest", "--queue", f"{name}-1")
    assert (missing.code, f"there is no queue {name}-1" in missing.err) == (2, True)


def test_a_pattern_says_what_it_may_miss(run: Run, group: Group, client: Client, limit: Limit) -> None:
    """A note is printed only if the key lists fewer queues than the pattern may match."""
    name = client.create_queue().name
    hidden = client.create_queue(f"{name[:8]}-hidden").name
    limit("read", f"{name}*")
    ended = run("offsets", "reset", "earliest", "--pattern", f"{name[:8]}*")
    assert (ended.code, list(group.offsets())) == (0, [(name, 1)])
    assert f"The key lists only queues that match {name}*" in ended.err
    assert hidden not in ended.err
    assert "only" not in run("offsets", "reset", "earliest", "--pattern", f"{name}*").err


def test_dead_letters_say_what_they_miss(run: Run, client: Client, limit: Limit) -> None:
    """If the key sees a pattern or queue in part, list and redrive say what may be missing."""
    name = client.create_queue().name
    for queue in (f"{name}.dead", f"{name[:8]}-hidden", f"{name[:8]}-hidden.dead"):
        client.create_queue(queue)
    limit("read,delete,send", f"{name}*")
    for command in ("list", "redrive"):
        ended = run("deadletter", command, "--pattern", f"{name[:8]}*")
        assert (ended.code, f"The key lists only queues that match {name}*" in ended.err) == (0, True)
        assert "The key" not in run("deadletter", command, "--pattern", f"{name}*").err
    limit("read,delete,send", f"{name}.dead")
    ended = run("deadletter", "list", "--queue", name)
    assert (ended.code, f"the credential may not see {name}, so dead letters" in ended.err) == (0, True)
