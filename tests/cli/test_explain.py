"""``queuey explain``."""

from __future__ import annotations

from queuey.client import Client
from tests.commands import Run


def test_a_message(run: Run, client: Client, queue: str) -> None:
    """What is known of a message is said in sentences; an id alone is found in its partition."""
    receipt = client.send(queue, "a", partition=2, ttl=600)
    client.commit(queue, "billing", {2: receipt.id})
    client.commit(queue, "reports", {1: receipt.id})
    ended = run("explain", queue, receipt.id)
    assert (ended.code, ended.err) == (0, "")
    first, *lines = ended.text.splitlines()
    assert first.startswith(f"Message {receipt.id} of 20")
    assert first.endswith("Z: stored, and readable.")
    assert "  Range reads show it." in lines
    assert any(line.startswith("  It expires at 20") for line in lines)
    assert "  Group billing has handled it." in lines
    assert "  Group reports has not reached it yet." in lines
    explanation = run("explain", queue, f"2:{receipt.id}", "--json").json
    assert (explanation["stored"], explanation["readable"], explanation["dead_letter"]) == (True, True, None)
    assert explanation["groups"] == {"billing": True, "reports": False}
    assert run("explain", queue, f"1:{receipt.id}", "--json").json["stored"] is False


def test_a_dead_letter(run: Run, client: Client, queue: str) -> None:
    """A message that became a dead letter is found where those lie, with the reason."""
    client.update_queue(queue, max_deliveries=1)
    receipt = client.send(queue, "a", partition=3)
    jobs = client.job_queue(queue)
    [claimed] = jobs.receive(1, ttl=30)
    assert "It is claimed until" in run("explain", queue, receipt.id).text
    jobs.release([claimed.receipt])
    assert jobs.receive(1) == []
    ended = run("explain", queue, receipt.id)
    assert f"  It is a dead letter in queue {queue}.dead: attempts 1, error TooManyDeliveries." in ended.text
    place = run("explain", queue, receipt.id, "--json").json["dead_letter"]
    assert place == {"queue": f"{queue}.dead", "partition": 3}


def test_a_queue(run: Run, client: Client, queue: str) -> None:
    """It shows what decides over reads, and the stored, visible and claimed messages of each partition."""
    client.update_queue(queue, ttl=172_800, max_deliveries=4)
    receipt = client.send(queue, "a", partition=1)
    client.send(queue, "b", partition=2, delay=600)
    client.commit(queue, "billing", {1: receipt.id})
    ended = run("explain", queue)
    assert (ended.code, ended.err) == (0, "")
    for words in (
        f"Queue {queue} of queuey: 3 partitions, user.",
        "Consistency strong, store sqlite, created 20",
        "Messages live 2 d, unless one has a TTL of its own.",
        "Range reads show a message as soon as it is stored and due.",
        f"After 4 deliveries without an acknowledgement a message becomes a dead letter in {queue}.dead.",
        "Group billing is 0 messages behind.",
        "nothing: it is empty",
        "nothing, all from ",
    ):
        assert words in ended.text
    explanation = run("explain", queue, "--json").json
    assert explanation["queue"]["count"] == 2
    assert explanation["claims"]["claimed"] == 0
    assert explanation["claims_refused"] is None
    assert [group["group"] for group in explanation["groups"]] == ["billing"]
