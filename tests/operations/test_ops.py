"""The resources for operators of the service."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

import queuey
from queuey.app.service import App, Service
from queuey.model.errors import StoreFull, StoreUnavailable
from queuey.operations import lag_metrics
from queuey.operations.health_views import HEARTBEAT_INTERVAL, OpsViews
from queuey.operations.lag_metrics import MEASURE_INTERVAL, Backlogs, GroupLags
from queuey.runtime.metrics import QueueBacklog, make_exposition
from queuey.storage import Ledger, Store
from queuey.web.gateway import Gateway
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in
from tests.web.caller import Caller
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner, until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(caller: Caller) -> Samples:
    reply = caller("GET", "/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/__heartbeat__", "/__heartbeat__/"])
def test_heartbeat(anonymous: Caller, method: str, path: str) -> None:
    """The heartbeat answers OK without a credential; HEAD has no body."""
    reply = anonymous(method, path)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert reply.headers["Content-Length"] == "2"
    assert reply.body == (b"" if method == "HEAD" else b"OK")


def test_heartbeat_of_a_clock_that_was_ahead(anonymous: Caller, between: InterposedStore) -> None:
    """A load balancer cannot repair ids ahead of the clock: the heartbeat is green, and reports them."""
    between.instead(Ledger.ids_ahead, lambda: 400 * 86_400.0)
    reply = anonymous.get("/__heartbeat__")
    assert reply.status == 200
    assert reply.text.startswith("OK, but: The clock was ahead, or is behind now: new ids are 400 d ahead of it")


def test_heartbeat_of_a_sick_store(anonymous: Caller, between: InterposedStore) -> None:
    """A store that cannot turns the heartbeat red and says why."""
    between.fail(Store.ping, StoreFull("The disk is full.", retry_after=5))
    reply = anonymous.get("/__heartbeat__")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
    assert reply.text == "StoreFull: The disk is full."


def views_of(app: App, name: str) -> OpsViews:
    views: OpsViews = app.endpoints[name].view("GET").handler.__self__  # type: ignore[attr-defined] # a method
    return views


@pytest.mark.parametrize("path", ["/__heartbeat__", "/__lbheartbeat__", "/__version__"])
def test_monitors_are_answered_while_every_thread_is_busy(app: App, path: str) -> None:
    """A monitor's question is answered, and counted, when no thread is left to do it."""

    async def work(gateway: Gateway) -> list[int]:
        await Request("GET", path).to(gateway)
        gateway.shares.threads.stop()
        return [(await Request("GET", path).to(gateway)).status for _ in range(3)]

    # If another check of the store were due, a thread would have to do it.
    monitors = views_of(app, "ops.heartbeat")
    monitors.clock = lambda: 0.0

    assert make_runner(app)(work) == [200] * 3
    requests, _, _ = app.service.metrics.copy_totals()
    assert sum(requests["ops." + path.strip("/_"), 200][1:]) == 4


def test_many_scrapes_collect_once_a_second(app: App, between: InterposedStore) -> None:
    """Scrapes share what one thread collects, for a second; meanwhile a heartbeat gets a thread to check the store."""
    now = [100.0]
    views = views_of(app, "ops.metrics")
    views.clock = views.counts.clock = lambda: now[0]
    checks, stuck = list[int](), threading.Event()

    def slow() -> dict[str, float]:
        checks.append(1)
        assert stuck.wait(TEST_TIMEOUT)
        return {}

    between.instead(Store.statistics, slow)

    async def work(gateway: Gateway) -> list[int]:
        strangers = ["/metrics"] * 100 + ["/metrics/"] * 100
        tasks = [asyncio.create_task(Request("GET", path).to(gateway)) for path in strangers]
        await until(lambda: len(gateway.calls) >= 32)
        assert (await Request("GET", "/__heartbeat__").to(gateway)).status == 200
        stuck.set()
        statuses = [(await task).status for task in tasks]
        statuses += [(await Request("GET", "/metrics").to(gateway)).status for _ in range(5)]
        assert len(checks) == 1
        now[0] += HEARTBEAT_INTERVAL
        return [*statuses, (await Request("HEAD", "/metrics").to(gateway)).status]

    assert make_runner(app)(work) == [200] * 206
    assert len(checks) == 2


def test_load_balancer_heartbeat(anonymous: Caller, stopping: threading.Event) -> None:
    """The load balancer's heartbeat is green without asking the store, and red when the process is about to end."""
    for method in ("GET", "HEAD"):
        assert anonymous(method, "/__lbheartbeat__").status == 200
    stopping.set()
    assert anonymous.get("/__lbheartbeat__").status == 503


def test_version(anonymous: Caller) -> None:
    """The version is that of the package."""
    content = anonymous.get("/__version__").json
    assert content == {"name": "queuey", "version": queuey.__version__, "store": "sqlite"}
    assert anonymous("HEAD", "/__version__").body == b""


def test_metrics_count_requests_and_messages(owner: Caller, app: App) -> None:
    """Requests are counted by route and status, messages in and out in all, the store's numbers are there."""
    owner.create("q")
    owner.batch("q", {"body": "1"}, {"body": "2"}, {"body": "3"})
    owner.get("q", limit=2)
    owner.get("q", limit=0)
    owner.get("missing")
    metrics = samples(owner)
    route = ("route", "v1.queue")
    for status in ("200", "201", "400", "404"):
        assert metrics["queuey_requests_total", (route, ("status", status))] == 1
    assert metrics["queuey_request_seconds_count", (route,)] == 4
    assert metrics["queuey_request_seconds_bucket", (("le", "+Inf"), route)] == 4
    assert metrics["queuey_request_seconds_sum", (route,)] > 0
    assert metrics["queuey_messages_received_total", ()] == 3
    assert metrics["queuey_messages_delivered_total", ()] == 2
    assert any(name.startswith("queuey_store_") for name, _ in metrics)


def test_metrics_do_not_grow_with_what_clients_send(owner: Caller, app: App) -> None:
    """Queue names, applications and methods make no new series."""
    owner.create("q")
    owner.get("q")
    owner.get("nothing")
    views_of(app, "ops.metrics").counts.clock = lambda: math.inf  # collects each time
    samples(owner)
    before = samples(owner).keys()
    for number in range(5):
        owner.get(f"nothing{number}")
        owner.get(f"/v1/nobody{number}/x")
    assert samples(owner).keys() == before


def measure(service: Service, backlogs: Backlogs) -> dict[str, QueueBacklog]:
    return {one.queue: one for one in service.core.run(backlogs.measure())}


def test_backlogs(owner: Caller, store: Store) -> None:
    """Queues in the setting are shown with their backlog, up to a limit; others are not."""
    for name in ("jobs-a", "jobs-b", "other"):
        owner.create(name, max_deliveries=1)
        owner.post(name, "x")
    owner.claim("jobs-b", limit=1, ttl=100)
    service = Service(store)
    now = [0.0]
    backlogs = Backlogs(
        service.queues, service.claims, [("queuey", "jobs-*"), ("queuey", "*-a"), ("nobody", "*")], clock=lambda: now[0]
    )
    shown = measure(service, backlogs)
    assert sorted(shown) == ["jobs-a", "jobs-b"]
    assert shown["jobs-a"].counts == {"waiting": 1, "delayed": 0, "claimed": 0, "retrying": 0, "failed": 0, "dead": 0}
    assert shown["jobs-b"].counts == {"waiting": 0, "delayed": 0, "claimed": 1, "retrying": 0, "failed": 0, "dead": 0}
    assert 0 < shown["jobs-a"].age < 600
    text = make_exposition({}, shown.values()).decode()
    assert 'queuey_backlog_messages{application="queuey",queue="jobs-b",state="claimed"} 1.0' in text
    owner.post("jobs-a", "y")
    assert measure(service, backlogs) == shown
    now[0] += MEASURE_INTERVAL
    assert [one.counts["waiting"] for one in measure(service, backlogs).values()] == [2, 0]


def test_no_more_backlogs_than_may_be_shown(owner: Caller, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """The cost of a scrape is bounded by queues and by their partitions, and the log says what is left out."""
    for name in ("a", "b", "c"):
        owner.create(name, partitions=4)
    service = Service(store)
    backlogs = [Backlogs(service.queues, service.claims, [("queuey", "*")]) for _ in range(2)]
    with replace_in(lag_metrics, lag_metrics.MAX_QUEUES, 2):
        assert list(measure(service, backlogs[0])) == ["a", "b"]
    assert "more than 2 queues match" in caplog.text
    with replace_in(lag_metrics, lag_metrics.MAX_PARTITIONS, 7):
        assert list(measure(service, backlogs[1])) == ["a"]
    assert "too many queues" in caplog.text


def test_lags(owner: Caller, store: Store) -> None:
    """All groups of queues that the setting names are shown; only of groups of the service it is known who owns."""
    for name in ("mail", "other"):
        owner.create(name, partitions=2)
    ids = [owner.post("mail", str(number), X_Partition="1")["key"] for number in range(3)]
    mirrored = {"partitions": {"1": {"offset": ids[0]}}}
    assert owner.send_json("PUT", "mail/offsets/mirrored", mirrored).status == 200
    member = owner.send_json("POST", "_groups/readers/members", {"queues": ["mail"]}).json
    beat = owner.send_json("POST", f"_groups/readers/members/{member['member']}", {"wait": 3}).json
    epoch = beat["take"]["mail"]["1"]["epoch"]
    commits = {"member": member["member"], "commits": {"1": {"offset": ids[1], "epoch": epoch}}}
    assert owner.send_json("PUT", "mail/offsets/readers", commits).status == 200
    service = Service(store)
    lags = GroupLags(service.queues, service.offsets, [("queuey", "mail*"), ("nobody", "*")])
    measured = service.core.run(lags.measure())
    shown = {one.group: one for one in measured}
    assert {name: (one.queue, one.messages, one.owned) for name, one in shown.items()} == {
        "mirrored": ("mail", 2, None),
        "readers": ("mail", 1, len(beat["take"]["mail"])),
    }
    assert all(0 <= one.age < 600 for one in shown.values())
    text = make_exposition({}, (), measured).decode()
    labels = 'application="queuey",group="mirrored",queue="mail"'
    assert f"queuey_group_lag_messages{{{labels}}} 2.0" in text
    assert f"queuey_group_owned_partitions{{{labels}}}" not in text


def test_metrics_of_a_sick_store(owner: Caller, between: InterposedStore) -> None:
    """What the process counted can be scraped while the store cannot say anything."""
    owner.create("q")
    between.fail(Store.statistics, StoreUnavailable("no answer"))
    metrics = samples(owner)
    assert metrics["queuey_requests_total", (("route", "v1.application"), ("status", "201"))] == 1
    assert not any(name.startswith("queuey_store_") for name, _ in metrics)
