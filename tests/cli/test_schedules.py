"""``queuey schedule``."""

from __future__ import annotations

from queuey.client import Client
from tests.commands import Run


def test_from_put_to_delete(run: Run, client: Client, queue: str) -> None:
    """A schedule is made, shown, listed, changed, paused, resumed, run and deleted."""
    put = ("schedule", "put", "nightly")
    message = ("--body", "tidy", "--message-key", "k", "--header", "a=b", "--ttl", "1h", "--content-type", "text/x")
    when = ("--cron", "0 3 * * *", "--timezone", "Europe/Berlin")
    made = run(*put, "--queue", queue, *message, *when, "--json")
    assert made.code == 0, made.err
    assert (made.json["schedule"], made.json["cron"], made.json["timezone"]) == (
        "nightly",
        "0 3 * * *",
        "Europe/Berlin",
    )
    assert made.json["message"] == {
        "body": "tidy",
        "ttl": 3600,
        "message_key": "k",
        "content_type": "text/x",
        "headers": {"a": "b"},
    }
    shown = run("schedule", "show", "nightly").text
    assert "0 3 * * * Europe/Berlin" in shown
    assert "tidy" in shown
    assert [each["schedule"] for each in run("schedule", "list", "--json").json_lines] == ["nightly"]
    assert "nightly" in run("schedule", "list").text
    changed = run(*put, "--every", "90s", "--json-body", '{"a": 1}', "--missed", "catch_up", "--json").json
    assert (changed["every"], changed["missed"], changed["message"]["body"]) == (90, "catch_up", {"a": 1})
    assert run("schedule", "pause", "nightly", "--json").json["next"] == []
    assert "paused" in run("schedule", "list").text
    ran = run("schedule", "run", "nightly", "--json").json["last"]
    assert ran["state"] == "published"
    assert client.get(queue, (ran["partition"], ran["message_id"]))[0].body == {"a": 1}
    assert "is message" in run("schedule", "run", "nightly").text
    assert len(run("schedule", "resume", "nightly", "--json").json["next"]) == 5
    client.delete_queue(queue)
    failed = run("schedule", "run", "nightly")
    assert failed.code == 1
    assert "does not exist" in failed.text
    assert run("schedule", "delete", "nightly").code == 0
    assert run("schedule", "show", "nightly").code == 1


def test_invalid_schedules_are_refused(run: Run, queue: str) -> None:
    """What cannot be is refused, and nothing is made."""
    refused = run("schedule", "put", "s", "--queue", queue, "--body", "x", "--cron", "0 0 30 2 *")
    assert refused.code == 1
    assert "cron" in refused.err
    assert run("schedule", "list", "--json").text == ""
