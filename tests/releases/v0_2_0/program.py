"""A user's program: it fills a store, and asks for all that it filled it with. Each version keeps a copy.

It needs the client alone, so it also runs on a client of another version: ``python program.py URL KEY APPLICATION``
prints a line of JSON for each answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from queuey.client import Backoff, Client, Outgoing

YEAR = 31_536_000
"""Seconds that everything is kept, so that nothing expires beside the test."""
DAY, WEEK = 86_400, 7 * 86_400
SESSION = 300
ID = "00000000000010008000000000000001"


def fill(client: Client) -> dict[str, Any]:
    """Writes every kind of queue, message, offset, claim, name and schedule; returns the values to ask with."""
    client.create_queue("plain", partitions=3, ttl=YEAR, description="All kinds of messages")
    client.send("plain", "a text", partition=1, idempotency_key="once")
    client.send("plain", b"\x00\xff", partition=1, content_type="image/png", headers={"shape": "round"})
    client.send_many("plain", [Outgoing(json={"n": n}, partition=2, ttl=YEAR - n) for n in range(20)])
    delayed = client.send("plain", "later", partition=3, delay=YEAR / 2)
    client.put("plain", f"3:{ID}", "at an id that a producer chose", headers={"from": "a replay"})
    page = client.read("plain", partitions=2, limit=5, wait=20)
    client.commit("plain", "readers", {2: page.messages[-1].id})
    client.create_queue("public", type="public", ttl=YEAR, principals="app:acme,app:other=read")
    client.send("public", "for everybody")
    for name, ttl in {"hour": 3600, "day": 86_400}.items():
        client.create_queue(name, ttl=ttl)
        client.send(name, f"for one {name}")
    client.named("plain").create("the name", "first")
    client.named("plain").set("the name", "second")

    client.create_queue(
        "jobs",
        ttl=YEAR,
        max_deliveries=2,
        backoff=Backoff(first=0.0, most=0.0),
        max_claimed=100,
        max_claimed_per_key=90,
    )
    client.send_many("jobs", [Outgoing(f"job {n}", key=f"customer {n % 3}") for n in range(12)])
    jobs = client.job_queue("jobs")
    claimed = jobs.receive(6, ttl=40_000, wait=20)
    jobs.ack(claimed[:1])
    jobs.set_states([(claimed[1], {"done": 0.5})])
    jobs.release(claimed[2], delay=3600, reason=("TooEarly", "comes back in an hour"))
    jobs.release(claimed[3], reason=("Broken", "no way to do it"), retry=False)
    for _ in range(300):
        jobs.renew(claimed[4:], ttl=40_000)

    client.create_queue("ordered", ttl=YEAR, kind="ordered", on_ack="delete")
    client.send_many("ordered", [Outgoing(f"step {n}", key="a key") for n in range(3)])
    step = client.job_queue("ordered").receive(1, ttl=40_000, wait=20)
    client.create_queue("dedup", ttl=YEAR, kind="dedup")
    client.send_many("dedup", ["the same", "the same", "another"])
    client.job_queue("dedup").receive(1, ttl=40_000, wait=20)
    client.create_queue("kept", ttl=YEAR, on_ack="delete", on_expiry="dead-letter", result_ttl=WEEK)
    sent = client.send_many("kept", ["gets a result", "is cancelled", "waits"])
    work = client.job_queue("kept")
    done, _ = work.receive(2, ttl=40_000, wait=20)
    work.ack(done, results={done.receipt: {"answer": 42}})
    work.cancel(sent[1])
    client.create_queue("halted", ttl=YEAR, claims="paused")
    member = client.consumer_groups.join("members", ["plain"], instance="one", session=SESSION, grace=DAY)
    for _ in range(300):
        if member.heartbeat().take:
            break
        time.sleep(0.2)
    client.create_queue("source", ttl=YEAR)
    client.create_queue("target", ttl=YEAR)
    client.send_many("source", ["moves", "moves, too"])
    move = client.move("source", "target")
    move.wait(60)
    client.schedules.put("nightly", queue="plain", message="tick", cron="0 3 * * *", timezone="Europe/Berlin")
    client.schedules.put("paused", queue="plain", message=Outgoing(json=[1]), every=600, paused=True)
    return {
        "delayed": delayed.id,
        "held": [one.receipt for one in claimed[4:]],
        "step": step[0].receipt,
        "move": move.id,
        "sent": [f"{one.partition}:{one.id}" for one in sent],
    }


def ask(client: Client, kept: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yields the answer to every kind of request, reads first."""
    yield "hello", client.hello()
    yield "queues", list(client.queues(count=True))
    yield "names", list(client.queue_names())
    for name in ("plain", "jobs", "ordered", "dedup"):
        yield f"info {name}", client.info(name)
        yield f"messages of {name}", list(client.read_all(name, since=0))
    yield "newest", client.read("plain", order="descending", limit=2)
    yield "queues at once", client.read_queues(["plain", "public"])
    yield "by id", client.get("plain", f"3:{ID}")
    yield "raw", client.get_raw("plain", f"3:{ID}")
    yield "explained", client.explain("plain", f"3:{kept['delayed']}")
    yield "by name", client.named("plain").get("the name")
    yield "groups", client.groups("plain")
    yield "offsets", client.offsets("plain", "readers")
    yield "rights", {name: sorted(found) for name, found in client.rights(["plain", "nothing"]).items()}
    yield "schedules", [client.schedules.get(one.name) for one in client.schedules.list()]
    yield "moves", client.moves()
    yield "moving", client.moving(kept["move"]).show()
    for name in ("jobs", "ordered", "dedup", "kept"):
        jobs = client.job_queue(name)
        yield f"counts of {name}", [jobs.counts(), jobs.size(), jobs.backlog()]
        yield f"outstanding of {name}", jobs.outstanding(states=True)
    yield "results", client.job_queue("kept").status(kept["sent"][:2], states=True)
    yield "members", client.consumer_groups.show("members", lag=True)
    yield "peeked", client.job_queue("jobs").peek(3)

    yield "sent again", client.send("plain", "a text", partition=1, idempotency_key="once")
    yield "sent", client.send("plain", "a new text", partition=1)
    yield "renamed", client.named("plain").set("the name", "third")
    yield "renewed", client.job_queue("jobs").renew(kept["held"], ttl=40_000)
    yield "acknowledged", client.job_queue("jobs").ack(kept["held"])
    yield "acknowledged again", client.job_queue("jobs").ack(kept["held"])
    yield "claimed", list(client.job_queue("jobs").receive(10))
    yield "next step", list(client.job_queue("ordered").receive(1, acknowledge=kept["step"]))
    yield "not a duplicate", list(client.job_queue("dedup").receive(10))
    yield "committed", client.commit("plain", "readers", {3: ID})
    yield "changed queue", client.update_queue("plain", ttl=YEAR - 1)
    client.delete("plain", f"3:{ID}")
    yield "deleted", client.get("plain", f"3:{ID}")
    client.purge_queue("public")
    client.delete_queue("target")
    yield "what is left", list(client.queues(count=True))


def plain(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Returns an answer as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def main() -> None:
    """Runs the program against a service."""
    url, key, application = sys.argv[1:]
    with Client(url, key=key, application=application) as client:
        for name, answer in ask(client, fill(client)):
            sys.stdout.write(msgspec.json.encode([name, plain(answer)]).decode() + "\n")


if __name__ == "__main__":
    main()
