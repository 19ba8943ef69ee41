"""What the demo shows, one small function a part, in the order of ``PARTS``.

A part does something with the running service, checks that it came out right, and returns what to print about it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chart
import pipeline
from service import DemoFailed, Service
from workers import Handled, Workers, claimer, read_record

from queuey.client import Client, Outgoing
from queuey.client.errors import ClientError, OffsetConflict
from queuey.client.results import Message, Receipt
from queuey.storage.sqlite import check

FEED = Path(__file__).with_name("earthquakes.jsonl")
WORK = "quakes-work"
LIVE = "quakes-live"
AGAIN = "quakes-again"
JOBS = "quakes-jobs"
PARTITIONS = 4
GROUP = "demo"
WRITERS = 4
ACKNOWLEDGED_BEFORE_KILL = 600
WORKERS = 3
HANDLED_BEFORE_KILL = 500
JOB_COUNT = 200
DONE_BEFORE_KILL = 25


class Account(NamedTuple):
    """The result of a part, for printing: a sentence, and perhaps a table."""

    text: str
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[Any, ...]] = ()


class Stage:
    """State that the parts share: the service, a client, and receipts of messages that earlier parts have stored."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.client: Client
        self.receipts = service.directory / "receipts.jsonl"
        self.quakes = [json.loads(line) for line in FEED.read_text().splitlines()]
        self.networks = Counter(quake["net"] for quake in self.quakes)
        self.work: list[Receipt] = []

    def connect(self) -> None:
        """Replaces the client by a new one, because a restarted service may have another address."""
        self.client = self.service.client()


def require(condition: object, failure: str) -> None:
    """Checks a condition.

    Raises:
        DemoFailed: The condition is false; the message is ``failure``.
    """
    if not condition:
        raise DemoFailed(failure)


def queue_of(network: str) -> str:
    return f"quakes-{network}"


def start(stage: Stage) -> Account:
    line = stage.service.start()
    stage.connect()
    return Account(line)


def feed_subscribers(stage: Stage) -> Account:
    rows: list[tuple[Any, ...]] = []
    for network, count in sorted(stage.networks.items()):
        name = queue_of(network)
        stage.client.create_queue(name)
        quakes = [quake for quake in stage.quakes if quake["net"] == network]
        receipts = stage.client.send_many(name, (Outgoing(json=quake) for quake in quakes))
        require(len(receipts) == count, f"{name}: {len(receipts)} of {count} messages were acknowledged")
        strongest = max(quakes, key=lambda quake: quake["mag"] or 0)
        rows.append((name, count, strongest["title"]))
    text = f"{len(stage.quakes):,} notices of earthquakes went to {len(rows)} queues, one per seismic network."
    return Account(text, ("queue", "messages", "strongest"), rows)


def feed_work(stage: Stage) -> Account:
    stage.client.create_queue(WORK, partitions=PARTITIONS)
    messages = (Outgoing(json=quake, key=quake["net"]) for quake in stage.quakes)
    with stage.service.client(receipts=stage.receipts) as client:
        stage.work = client.send_many(WORK, messages)
    networks: dict[int, set[str]] = {number: set() for number in range(1, PARTITIONS + 1)}
    for quake, receipt in zip(stage.quakes, stage.work, strict=True):
        networks[receipt.partition].add(quake["net"])
    total = sum(len(names) for names in networks.values())
    require(total == len(stage.networks), "a network's notices were spread over several partitions")
    sizes = Counter(receipt.partition for receipt in stage.work)
    rows = [(number, sizes[number], ", ".join(sorted(names))) for number, names in networks.items()]
    return Account(
        f"The same feed went to {WORK}: {PARTITIONS} partitions, each network in one of them, in order.",
        ("partition", "messages", "networks"),
        rows,
    )


def read_both_ways(stage: Stage) -> Account:
    forwards = list(stage.client.read_all(WORK, merge=True, limit=500))
    backwards = list(stage.client.read_all(WORK, merge=True, limit=300, order="descending"))
    require([message.body for message in forwards] == stage.quakes, "the feed did not come back in its order")
    require(backwards == forwards[::-1], "newest first is not the reverse of oldest first")
    rows = [(title, message.id, message.body["title"]) for title, message in _first_and_last(forwards)]
    text = f"Read by time: {len(forwards):,} messages oldest first, the same ones newest first."
    return Account(text, ("", "id", "notice"), rows)


def read_windows(stage: Stage) -> Account:
    first, second = stage.work[len(stage.work) // 3], stage.work[2 * len(stage.work) // 3]
    windows: dict[str, dict[str, Any]] = {
        "before the first mark": {"before": first},
        "from the first to below the second": {"since": first, "before": second},
        "since the second mark": {"since": second},
    }
    counts = {
        title: sum(1 for _ in stage.client.read_all(WORK, merge=True, **bounds)) for title, bounds in windows.items()
    }
    require(sum(counts.values()) == len(stage.work), f"the windows do not add up: {counts}")
    third = len(stage.work) // 3
    require(list(counts.values())[:2] == [third, 2 * len(stage.work) // 3 - third], f"wrong windows: {counts}")
    return Account("Three windows in time make up the whole.", ("window", "messages"), list(counts.items()))


def delete_messages(stage: Stage) -> Account:
    name = queue_of("ak")
    messages = list(stage.client.read_all(name))
    weak = [message for message in messages if (message.body["mag"] or 0) < 1]
    stage.client.delete(name, weak)
    remaining = list(stage.client.read_all(name))
    require(remaining == [message for message in messages if message not in weak], "the wrong messages are gone")
    require(stage.client.get(name, weak[:5]) == [], "deleted messages can still be fetched")
    return Account(f"Deleted {len(weak)} notices below magnitude 1 from {name}; {len(remaining)} are left.")


def show_info(stage: Stage) -> Account:
    info = stage.client.info(WORK)
    require(info.count == len(stage.work), f"info counts {info.count} messages instead of {len(stage.work)}")
    promise = f"{info.acknowledgement.level}: {info.acknowledgement.text}"
    rows = [
        ("messages", info.count),
        ("partitions", info.partitions),
        ("messages live, seconds", info.ttl),
        ("read delay, seconds", info.read_delay),
        ("acknowledged means", promise),
        ("guarantee", info.guarantee),
    ]
    return Account(f"What the service says about {WORK}:", ("", ""), rows)


def record_offset(stage: Stage) -> Account:
    places = [receipt for receipt in stage.work if receipt.partition == stage.work[0].partition]
    partition, half = places[0].partition, places[len(places) // 2 - 1]
    stage.client.commit(WORK, GROUP, {partition: half}, expected={partition: None})
    offset = stage.client.offsets(WORK, GROUP).partitions[partition]
    behind = len(places) - len(places) // 2
    require((offset.offset, offset.lag) == (half.id, behind), f"the offset came back as {offset}")
    try:
        stage.client.commit(WORK, GROUP, {partition: places[-1]}, expected={partition: None})
    except OffsetConflict:
        text = f"Group {GROUP} has processed half of partition {partition}; {behind} messages are behind."
        return Account(f"{text} A commit that expects an older offset is refused.")
    raise DemoFailed("an offset was overwritten by someone who did not know it")


def kill_while_writing(stage: Stage) -> Account:
    name = "quakes-crash"
    stage.client.create_queue(name)
    acknowledged: dict[str, str] = {}
    refused: set[str] = set()
    enough = threading.Event()

    def write(number: int) -> None:
        with stage.service.client() as client:
            for count in range(1_000_000):
                bodies = [f"{number}/{count}/{index}" for index in range(1 + count % 3)]
                try:
                    receipts = client.send_many(name, bodies)
                except ClientError:
                    refused.update(bodies)
                    return
                acknowledged.update((receipt.id, body) for receipt, body in zip(receipts, bodies, strict=True))
                if len(acknowledged) >= ACKNOWLEDGED_BEFORE_KILL:
                    enough.set()

    writers = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    require(enough.wait(30), f"only {len(acknowledged)} messages were acknowledged in 30 s")
    stage.service.kill()
    for writer in writers:
        writer.join(30)
    stage.service.start()
    stage.connect()
    return _compare_with_stored(stage, name, acknowledged, refused)


def check_rest(stage: Stage) -> Account:
    work = list(stage.client.read_all(WORK, merge=True))
    require([message.id for message in work] == [receipt.id for receipt in stage.work], "the work queue has changed")
    for network, count in stage.networks.items():
        stored = sum(1 for _ in stage.client.read_all(queue_of(network)))
        require(stored == count or network == "ak", f"{queue_of(network)} has {stored} of {count} messages")
    require(stage.client.offsets(WORK, GROUP).lag > 0, "the recorded offset is gone")
    complaints = check(stage.service.data)
    require(not complaints, f"the file is damaged: {complaints}")
    return Account("Queues, messages and offsets from before are all there; the file passes its integrity check.")


def share_out(stage: Stage) -> Account:
    stage.client.create_queue(LIVE, partitions=PARTITIONS)
    with Workers(stage.service, LIVE, WORKERS) as workers:
        workers.wait_until_shared(PARTITIONS)
        sent = stage.client.send_many(LIVE, (Outgoing(json=quake, key=quake["net"]) for quake in stage.quakes))
        killed = Counter(handling.pid for handling in workers.wait_for(HANDLED_BEFORE_KILL)).most_common(1)[0][0]
        workers.kill(killed)
        workers.wait_for(len(sent))
        codes = workers.stop()
        handled = workers.handled()
    require(codes == [0] * (WORKERS - 1), f"workers ended with {codes} after SIGTERM")
    duplicates = _count_duplicates(sent, handled, killed)
    rows = []
    for pid in workers.processes:
        own = [handling for handling in handled if handling.pid == pid]
        partitions = ", ".join(str(number) for number in sorted({handling.partition for handling in own}))
        rows.append((pid, len(own), partitions, "killed with -9" if pid == killed else "ended by SIGTERM"))
    text = (
        f"{WORKERS} workers shared the {PARTITIONS} partitions of {LIVE}; one was killed in the middle. Each of the "
        f"{len(sent):,} notices was handled, those of a partition in their order; {duplicates} of them twice."
    )
    return Account(text, ("worker", "handled", "of partitions", ""), rows)


def claim_jobs(stage: Stage) -> Account:
    stage.client.create_queue(JOBS, partitions=2)
    jobs = stage.client.job_queue(JOBS)
    record = stage.service.directory / "jobs.txt"
    record.touch()
    sent = {receipt.id for receipt in stage.client.send_many(JOBS, (q["title"] for q in stage.quakes[:JOB_COUNT]))}
    with claimer(stage.service, JOBS, record) as first, claimer(stage.service, JOBS, record) as second:
        _wait_until(
            lambda: sum(handling.pid == first.pid for handling in read_record(record)) >= DONE_BEFORE_KILL,
            "no job was done",
        )
        first.kill()
        unfinished = jobs.counts().claimed
        _wait_until(lambda: jobs.size().size == 0, "not every job was done")
    done = read_record(record)
    again = Counter(handling.id for handling in done if handling.pid == second.pid)
    require({handling.id for handling in done} == sent, "the jobs that were done are not those that were sent")
    require(max(again.values()) == 1, "a worker that lived has done a job twice")
    twice = len(done) - len(sent)
    text = (
        f"Two workers claimed jobs from {JOBS}; one was killed with {unfinished} jobs claimed by the two. Each of the "
        f"{len(sent)} jobs was done and acknowledged, {twice} of them by both: once before the kill, and once after it."
    )
    rows = [
        (worker.pid, sum(handling.pid == worker.pid for handling in done), end)
        for worker, end in ((first, "killed with -9"), (second, ""))
    ]
    return Account(text, ("worker", "done", ""), rows)


def through_spark(stage: Stage) -> Account:
    """Archives the work queue with Spark, counts it, replays it into a second queue and audits that by the receipts.

    Without Spark, only says that this part is skipped.
    """
    if not pipeline.is_installed():
        return Account(pipeline.MISSING)
    report = pipeline.run(stage.service, WORK, AGAIN, stage.receipts)
    sent = len(stage.work)
    require(report["archived"] == sent, f"{report['archived']} of {sent} messages were archived")
    networks: Counter[str] = Counter()
    for network, _, _, count in report["hours"]:
        networks[network] += count
    require(networks == stage.networks, "the archive's counts by network are not the feed's")
    require(report["replayed"] == sent, f"{report['replayed']} of {sent} messages were replayed")
    again = list(stage.client.read_all(AGAIN, merge=True))
    require([message.body for message in again] == stage.quakes, "the replayed feed is not the feed")
    require((report["accepted"], report["present"]) == (sent, sent), f"the audit found {report['present']} of {sent}")
    require(report["sound"], "the audit found messages twice or altered")
    text = (
        f"Archived {report['archived']:,} messages of {WORK} as Parquet ({report['bytes'] / 1e6:.1f} MB), and counted "
        f"them by network, hour and magnitude with SQL: the chart is {pipeline.chart_path()}\n"
        f"Replayed into {AGAIN} and audited by the receipts of the producer: "
        f"{report['present']:,} of {report['accepted']:,} are there, each once and as it was sent."
    )
    columns = ("network", "notices", *(f"magnitude {name}" for name, _ in chart.CLASSES))
    return Account(text, columns, pipeline.rank_networks(report["hours"]))


def stop(stage: Stage) -> Account:
    seconds = stage.service.stop()
    return Account(f"SIGTERM ended the service in {seconds:.2f} s with exit code 0.")


PARTS: list[tuple[str, Callable[[Stage], Account]]] = [
    ("Start", start),
    ("Subscribers", feed_subscribers),
    ("Work queue", feed_work),
    ("Both directions", read_both_ways),
    ("Since and before", read_windows),
    ("Delete", delete_messages),
    ("Info", show_info),
    ("Offsets", record_offset),
    ("Crash", kill_while_writing),
    ("After the crash", check_rest),
    ("Workers", share_out),
    ("Jobs", claim_jobs),
    ("Pipeline", through_spark),
    ("Stop", stop),
]


def _wait_until(done: Callable[[], bool], failure: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        require(time.monotonic() < deadline, f"{failure} within {seconds:.0f} s")
        time.sleep(0.02)


def _first_and_last(messages: list[Message]) -> list[tuple[str, Message]]:
    return [("oldest", messages[0]), ("newest", messages[-1])]


def _compare_with_stored(stage: Stage, name: str, acknowledged: dict[str, str], refused: set[str]) -> Account:
    """Checks that each acknowledged message is stored once, and that no other is stored but those of failed calls."""
    stored = {message.id: message.body for message in stage.client.read_all(name)}
    bodies = Counter(stored.values())
    lost = [identifier for identifier, body in acknowledged.items() if stored.get(identifier) != body]
    require(not lost, f"{len(lost)} acknowledged messages are lost, such as {lost[:3]}")
    twice = [body for body, count in bodies.items() if count > 1]
    require(not twice, f"{len(twice)} messages are there twice, such as {twice[:3]}")
    unknown = set(bodies) - set(acknowledged.values())
    require(unknown <= refused, f"messages nobody sent: {sorted(unknown - refused)[:3]}")
    rows = [
        ("acknowledged before the kill", len(acknowledged)),
        ("of these there, each exactly once", len(acknowledged) - len(lost)),
        ("under way at the kill", len(refused)),
        ("of these stored nevertheless", len(unknown)),
    ]
    return Account(f"Killed with -9 while {WRITERS} writers sent, and started again.", ("messages", "count"), rows)


def _count_duplicates(sent: list[Receipt], handled: list[Handled], killed: int) -> int:
    """Checks that every notice was handled, in order within its partition; returns the number of repetitions.

    Only notices that the killed worker had handled first may be repeated.
    """
    first: dict[str, Handled] = {}
    again = 0
    for handling in handled:
        earlier = first.setdefault(handling.id, handling)
        if earlier is not handling:
            again += 1
            require(earlier.pid == killed, f"message {handling.id} was handled twice though its worker lived")
    for number in range(1, PARTITIONS + 1):
        order = [receipt.id for receipt in sent if receipt.partition == number]
        done = [handling.id for handling in first.values() if handling.partition == number]
        require(done == order, f"partition {number}: {len(done)} of {len(order)} notices, or out of order")
    return again
