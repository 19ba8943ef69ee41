"""``queuey queue``, ``offsets``, ``group``, ``app`` and ``settings``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queuey.api.groups import Heartbeat
from queuey.client import Client
from queuey.client.credentials.profile import Profile, read_profile, write_profile
from queuey.client.errors import NotAuthenticated
from queuey.facades.sqs import access_keys
from queuey.storage.sqlite import open_store
from tests.commands import Run
from tests.servers.served import Served


def test_queue_from_birth_to_death(run: Run, client: Client) -> None:
    """A queue is created, listed, described, changed, purged and deleted."""
    made = run("queue", "create", "life", "--partitions", "2", "--ttl", "1h", "--principal", "app:x=read", "--json")
    assert (made.code, made.json["partitions"], made.json["ttl"], made.json["principals"]) == (
        0,
        2,
        3600,
        ["app:x=read"],
    )
    assert "already exists" in run("queue", "create", "life", "--partitions", "2").err
    assert run("queue", "create", "life", "--partitions", "3").code == 1
    client.send("life", "x")
    assert {"queue_name": "life"} in run("queue", "list", "--json").json_lines
    listed = run("queue", "list", "--details", "--count", "--start", "life", "--limit", "1", "--json").json
    assert (listed["queue_name"], listed["count"]) == ("life", 1)
    assert "life" in run("queue", "list", "--details", "--count").text
    changed = run(
        "queue", "update", "life", "--partitions", "5", "--reset", "ttl", "--reset", "principals", "--json"
    ).json
    assert (changed["partitions"], changed["ttl"]) == (5, None)
    assert run("queue", "info", "life", "--json").json["count"] == 1
    assert "messages" in run("queue", "info", "life").text
    assert run("queue", "pause", "life").text == "Claims of life are paused.\n"
    assert (client.job_queue("life").receive(), client.info("life").claims) == ([], "paused")
    assert "claims paused" in " ".join(run("queue", "info", "life").text.split())
    assert run("queue", "resume", "life", "--json").json == {"queue_name": "life", "claims": "open"}
    assert len(client.job_queue("life").receive()) == 1
    assert run("queue", "purge", "life", "--yes").code == 0
    assert client.info("life").count == 0
    assert run("queue", "delete", "life", "--yes", "--json").json == {"queue_name": "life", "deleted": True}
    assert run("queue", "info", "life").code == 1


def test_offsets(run: Run, client: Client, queue: str) -> None:
    """Offsets are recorded, compared, shown with their lag, and deleted."""
    sent = [client.send(queue, str(number), partition=1) for number in range(4)]
    assert run("offsets", "set", queue, "g", f"1={sent[1].id}", "--expect", "1=none").code == 0
    refused = run("offsets", "set", queue, "g", f"1={sent[2].id}", "--expect", f"1={sent[0].id}")
    assert (refused.code, refused.out) == (1, b"")
    shown = run("offsets", "show", queue, "--json").json
    assert (shown["group"], shown["partitions"]["1"]["offset"], shown["lag"]) == ("g", sent[1].id, 2)
    assert sent[1].id in run("offsets", "show", queue, "g").text
    assert run("offsets", "delete", queue, "g").code == 2
    assert run("offsets", "delete", queue, "g", "--yes").code == 0
    assert client.groups(queue) == ()
    shown = run("offsets", "show", queue)
    assert (shown.code, shown.out, "qdo status" in shown.err) == (0, b"", True)


def test_groups(run: Run, client: Client, served: Served, queue: str) -> None:
    """A group is listed and shown with its members, owners and lag; members are removed; with members it is kept."""
    member = client.consumer_groups.join(queue, [queue], instance="w1")
    member.heartbeat(Heartbeat(wait=1))
    client.send(queue, "x", partition=1)
    assert queue in run("group", "list", "--json").json["groups"]
    shown = run("group", "show", queue, "--lag", "--json").json
    assert (shown["members"][0]["name"], shown["queues"][queue]["1"]["lag"]) == ("w1", 1)
    assert "w1" in run("group", "show", queue).text
    assert member.joined.member not in run("group", "show", queue, "--json").text
    refused = run("group", "delete", queue, "--yes")
    assert (refused.code, "has members" in refused.err) == (1, True)
    assert run("group", "remove", queue, "1", "--yes").code == 0
    assert run("group", "show", queue, "--json").json["members"] == []
    gone = run("group", "remove", queue, "1", "--yes")
    assert (gone.code, "does not exist" in gone.err) == (1, True)
    client.consumer_groups.join(queue, [queue]).heartbeat()
    assert run("group", "delete", queue, "--yes").code == 1
    assert run("group", "delete", queue, "--yes", "--force").code == 0
    missing = run("group", "show", queue)
    assert (missing.code, "queuey group list" in missing.err) == (1, True)
    elsewhere = run("group", "move", "queuey", queue, "--to", "dc2", "--data", str(served.data))
    assert (elsewhere.code, "dc2" in elsewhere.err) == (1, True)


def test_applications_and_keys(run: Run, served: Served) -> None:
    """A new application's key opens it on the running service, and it alone; a revoked one is listed no more."""
    data = ["--data", str(served.data)]
    made = run("app", "create", "reports", "--note", "first", "--json", *data).json
    assert made["key"] in run("app", "keys", "reports", *data).text
    assert {"application": "reports", "keys": 1} in run("app", "list", "--json", *data).json
    url = served.profile.url
    own = ["--url", url, "--app", "reports", "--key", made["secret"]]
    assert (run("group", "list", *own).code, run("group", "list", *own).out) == (0, b"")
    with Client(url, key=made["secret"], application="reports") as client:
        client.create_queue("of-reports")
    assert run("queue", "list", *own).text == "of-reports\n"
    assert run("queue", "list", "--url", url, "--key", made["secret"]).code == 1
    assert run("app", "create", "reports", *data).code == 1
    assert run("app", "revoke", "reports", made["key"], *data).code == 2
    assert run("app", "revoke", "reports", made["key"], "--yes", *data).code == 0
    assert run("app", "keys", "reports", "--json", *data).json == []


def test_rotation(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rotation the new key lives, the old one has an end, and a profile with the old one has the new one."""
    data = ["--data", str(tmp_path / "data")]
    open_store(tmp_path / "data").close()
    old = run("app", "create", "a", "--json", *data).json
    profile = write_profile(Profile(url="http://x", application="a", key=old["secret"]), tmp_path / "p.toml")
    monkeypatch.setenv("QUEUEY_PROFILE", str(profile))
    new = run("app", "rotate", "a", "--grace", "1h", "--json", *data)
    assert read_profile(profile).key == new.json["secret"] != old["secret"]
    first, second = run("app", "keys", "a", "--json", *data).json
    assert (first["key"], second["key"]) == (old["key"], new.json["key"])
    assert first["expires"] is not None
    assert second["expires"] is None
    added = run("app", "key-add", "a", "--expires", "30d", "--json", *data).json
    assert added["expires"] > first["expires"]


def test_a_rotated_key_is_like_the_old_one(run: Run, tmp_path: Path) -> None:
    """A new key has the limits and the end of the key that it replaces; keys with different limits are refused."""
    data = ["--data", str(tmp_path / "data"), "--json"]
    open_store(tmp_path / "data").close()
    first = run("app", "create", "a", "--expires", "30d", *data).json
    second = run("app", "rotate", "a", *data).json
    assert run("app", "rotate", "a", *data).json["expires"] == second["expires"] == first["expires"]
    shorter = run("app", "rotate", "a", "--key", second["key"], "--expires", "7d", *data).json
    assert shorter["expires"] < first["expires"]
    limited = run("app", "key-add", "a", "--allow", "claim", *data).json
    assert run("app", "rotate", "a", *data).code == 1
    new = run("app", "rotate", "a", "--key", limited["key"], *data).json
    assert (new["allow"], new["queues"], new["expires"]) == (["claim"], ["*"], None)


def test_limited_keys(run: Run, served: Served) -> None:
    """A limited key works within its limits, and errors name the missing right; its limits are shown."""
    data = ["--data", str(served.data)]
    run("app", "create", "shop", *data)
    limits = ["--allow", "read, send", "--queues", "orders-*,orders-*,back"]
    made = run("app", "key-add", "shop", *limits, "--json", *data).json
    assert (made["allow"], made["queues"]) == (["send", "read"], ["orders-*", "back"])
    assert re.search(r"send,read +orders-\*,back", run("app", "keys", "shop", *data).text)
    as_shop = ["--url", served.profile.url, "--app", "shop", "--key", made["secret"]]
    refused = run("queue", "create", "orders-1", *as_shop)
    assert (refused.code, "the credential allows send, read" in refused.err) == (1, True)
    whole = run("app", "key-add", "shop", "--json", *data).json["secret"]
    with Client(served.profile.url, key=whole, application="shop") as client:
        for name in ("orders-1", "others"):
            client.create_queue(name)
    assert run("send", "orders-1", "hello", *as_shop).code == 0
    assert run("queue", "list", *as_shop).text == "orders-1\n"
    refused = run("send", "others", "hello", *as_shop)
    assert (refused.code, "limited to other queues" in refused.err) == (1, True)


def test_access_keys(run: Run, tmp_path: Path) -> None:
    """An access key has an id, with which its note begins, and a secret derived from a file; rotation keeps it."""
    data = ["--data", str(tmp_path / "data")]
    open_store(tmp_path / "data").close()
    whole = run("app", "create", "shop", "--json", *data).json
    made = run("app", "key-add", "shop", "--sqs", "--allow", "send", "--note", "web", "--json", *data).json
    other = run("app", "key-add", "shop", "--sqs", "--json", *data).json
    assert (made["note"], made["allow"]) == (f"{made['access_key_id']} web", ["send"])
    assert made["secret_access_key"] != other["secret_access_key"]
    shown = run("app", "key-add", "shop", "--sqs", *data)
    assert re.search(r"access key id +QK[A-Z2-7]{18}\nsecret access key +\S{40}\n", shown.text)
    secret = tmp_path / "data" / "sqs.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    name = made["access_key_id"]
    assert access_keys.secret_of(secret.read_text().strip().encode(), name) == made["secret_access_key"]
    rotated = run("app", "rotate", "shop", "--grace", "1h", "--json", *data).json
    ends = {key["key"]: key["expires"] for key in run("app", "keys", "shop", "--json", *data).json}
    assert [ends[key["key"]] is None for key in (whole, rotated, made, other)] == [False, True, True, True]
    refused = run("app", "rotate", "shop", "--key", made["key"], *data)
    assert (refused.code, "no valid key" in refused.err) == (1, True)
    assert run("app", "key-add", "@all", "--sqs", *data).code == 2
    secret.write_text("short\n")
    refused = run("app", "key-add", "shop", "--sqs", *data)
    assert (refused.code, "has 5 characters. Use 32 or more" in refused.err) == (2, True)


def test_operators(run: Run, served: Served) -> None:
    """An operator's key needs no application, takes no limits, and lists the queues of every application."""
    data = ["--data", str(served.data)]
    assert run("app", "key-add", "@all", "--allow", "send", *data).code == 2
    assert run("app", "key-add", "@console", *data).code == 2
    made = run("app", "key-add", "@all", "--json", *data).json
    assert "of all applications" in run("app", "keys", "@all", *data).text
    assert "@all" not in run("app", "list", *data).text
    as_operator = ["--url", served.profile.url, "--key", made["secret"], "--app", "queuey"]
    assert run("queue", "list", *as_operator).code == 0
    assert run("queue", "create", "mine", *as_operator).code == 1
    assert run("app", "revoke", "@all", made["key"], "--yes", *data).code == 0


def test_existing_keys_can_be_imported(run: Run, served: Served) -> None:
    """A key from elsewhere works after its import, one character at either end included."""
    ended = run("app", "key-import", "old-app", "--data", str(served.data), stdin=b"a-key-of-old-times-c\n")
    assert (ended.code, b"old-times" in ended.out) == (0, False)
    with Client(served.profile.url, key="a-key-of-old-times-c", application="old-app") as client:
        assert list(client.queue_names()) == []
    again = ["app", "key-import", "old-app", "--data", str(served.data), "--allow", "send"]
    assert run(*again, stdin=b"a-key-of-old-times-c\n").code == 1
    assert run(*again, "--json", stdin=b"another-key").json["allow"] == ["send"]
    half = Client(served.profile.url, key="-key-of-old-times-", application="old-app")
    with half, pytest.raises(NotAuthenticated):
        list(half.queue_names())


@pytest.mark.parametrize("key", [b"", b"two words", b"a;b", "ä".encode()])
def test_keys_that_no_header_carries_are_refused(run: Run, served: Served, key: bytes) -> None:
    """A key that could never be sent is not taken."""
    assert run("app", "key-import", "queuey", "--data", str(served.data), stdin=key).code == 1


def test_a_missing_store_is_not_made(run: Run, tmp_path: Path) -> None:
    """Managing keys at a mistyped directory fails and leaves nothing there."""
    ended = run("app", "list", "--data", str(tmp_path / "typo"))
    assert (ended.code, (tmp_path / "typo").exists()) == (1, False)


def test_settings_show_their_source(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting is shown with its value and where that came from."""
    config = tmp_path / "q.toml"
    config.write_text("threads = 10")
    monkeypatch.setenv("QUEUEY_WORKERS", "3")
    shown = run("settings", "--config", str(config), "--max-body", "99", "--json").json
    assert shown["threads"] == {"value": 10, "source": str(config)}
    assert shown["workers"] == {"value": 3, "source": "QUEUEY_WORKERS"}
    assert shown["max_body"] == {"value": 99, "source": "--max-body"}
    assert shown["host"] == {"value": "127.0.0.1", "source": "default"}
    assert re.search(r"^  workers +3 +QUEUEY_WORKERS$", run("settings").text, re.MULTILINE)


def test_move(run: Run, client: Client, queue: str) -> None:
    """The command waits for the end and prints what was moved; a move is listed and cancelled by its id."""
    target = client.create_queue(partitions=3).name
    client.send_many(queue, ["a", "b", "c"], after=None)
    client.job_queue(queue).receive(limit=1, ttl=600)
    ended = run("queue", "move", queue, target)
    assert ended.code == 0, ended
    assert "is done: 2 messages moved, 1 left because they are claimed." in ended.text
    move = ended.text.split()[1]
    [first, *_] = run("queue", "moves", "--json").json_lines
    assert (first["move"], first["moved"]) == (move, 2)
    assert move in run("queue", "moves").text
    assert run("queue", "follow-move", move, "--json").json["state"] == "done"
    assert run("queue", "cancel-move", move).code == 0
    begun = run("queue", "move", target, queue, "--detach", "--json")
    assert (begun.code, begun.json["from"]) == (0, target)
    client.moving(begun.json["move"]).wait(120)
    assert run("queue", "move", queue, queue).code == 1
