"""The overview of an application: each figure equals the API's, for the queues that the caller may measure."""

from __future__ import annotations

import re

from queuey.access.credentials.readers import digest_of
from queuey.app.service import App
from queuey.console import applications, groups
from queuey.console.filters import moment_absolute
from queuey.model.messages import QueueSpec
from queuey.model.rights import parse_scope
from queuey.operations.queue_activity import CELL_SECONDS, History
from queuey.storage import Store, bridge
from tests.console.browser import Browser, simplify_html
from tests.console.conftest import logged_in
from tests.console.lists.test_groups import make_member_giving_back
from tests.console.test_pages import bury, text_of
from tests.replacing import replace_in
from tests.tenants import GUEST_KEY
from tests.web.caller import Caller

A = "/console/a/queuey"
SENDER_KEY = "5" * 64


def tiles(browser: Browser, application: str = "queuey") -> dict[str, str]:
    page = simplify_html(browser.get_part(f"/console/a/{application}/_overview").text)
    pairs = re.findall(r"<dt>([^<]*)</dt><dd>(?:<a [^>]*>)?<b>(.*?)</b>", page)
    return {label: text_of(number) for label, number in pairs}


def fill_busy_queue(owner: Caller, name: str) -> None:
    """Makes a queue with two ready messages, one delayed, one claimed and one released with a delay."""
    owner.create(name)
    for body in "abcd":
        owner.post(name, body)
    owner.post(name, "later", X_Delay="86400")
    [_, job] = owner.claim(name, limit=2, worker=f"worker of {name}", ttl=60)
    owner.send_json("POST", f"{name}/claims/release", {"receipts": [job["receipt"]], "delay": 600})


def backlog(owner: Caller, name: str) -> dict[str, int]:
    counts: dict[str, int] = owner("GET", f"{name}/backlog").json
    return counts


def test_figures_are_those_of_the_api(browser: Browser, owner: Caller) -> None:
    """Tiles have the sums of the backlogs; dead letters are not counted as waiting, and each of them once."""
    for name in ("orders", "mails"):
        fill_busy_queue(owner, name)
    for name in ("orders.dead", "graveyard"):
        owner.create(name)
    owner.create("special", dead_letter="graveyard")
    bury(owner, "Timeout", "late", into="orders.dead")
    bury(owner, "Timeout", "late", into="graveyard")
    totals, backlogs = tiles(browser), [backlog(owner, name) for name in ("orders", "mails", "special")]
    figures = (("Waiting", "waiting"), ("Not due yet", "delayed"), ("Claimed", "claimed"), ("Retrying", "retrying"))
    for label, name in figures:
        assert totals[label] == str(sum(each[name] for each in backlogs)) != "0"
    assert totals["Dead letters"] == "2"
    assert totals["Workers"] == "2"
    assert totals["Groups that lag"] == "0"
    oldest = min(each["oldest"] for each in backlogs if each["oldest"])
    assert totals["Oldest waiting"] == moment_absolute(oldest)
    page = simplify_html(browser.get_part(f"{A}/_overview").text)
    assert "These are the figures of all 5 queues." in text_of(page)
    assert re.findall(r'<td><a href="/console/a/queuey/([^"/]*)"><bdi>\1</bdi></a></td><td class="number">', page)
    assert "Timeout late" in text_of(page)


def test_rates(app: App, browser: Browser, owner: Caller) -> None:
    """Messages in and out are those that this service counted in the last full minute, of this application alone."""
    owner.create("q")
    history: History = app.service.metrics.listeners[0].__self__  # type: ignore[attr-defined]
    now = 1_000_000.0
    history.clock = lambda: now
    for _ in range(30):
        owner.post("q", "x")
    owner.claim("q", limit=12, ttl=60)
    now += CELL_SECONDS
    figures = tiles(browser)
    assert (figures["Messages in"], figures["Messages out"]) == ("0.50/s", "0.20/s")
    assert tiles(logged_in(app, GUEST_KEY), "guest")["Messages in"] == "0/s"


def test_a_limited_key_sees_sums_of_its_queues(
    app: App, store: Store, browser: Browser, limited: Browser, measuring: Browser, owner: Caller
) -> None:
    """Queues beyond the key's patterns do not count, nor those whose principals keep it out, nor unreadable ones."""
    fill_busy_queue(owner, "orders-1")
    fill_busy_queue(owner, "private")
    for name in ("orders-1", "private"):
        owner.create(f"{name}.dead")
        bury(owner, "Timeout", f"of {name}", into=f"{name}.dead")
    owner.create("orders-closed", principals="app:guest")
    owner.post("orders-closed", "x")
    member = make_member_giving_back(owner)
    history: History = app.service.metrics.listeners[0].__self__  # type: ignore[attr-defined]
    now = history.clock() + CELL_SECONDS
    history.clock = lambda: now
    assert tiles(browser)["Waiting"] == "6"
    sums, page = tiles(limited), text_of(limited.get_part(f"{A}/_overview").text)
    assert (sums["Waiting"], sums["Claimed"], sums["Retrying"], sums["Dead letters"]) == ("2", "1", "1", "1")
    assert sums["Messages in"] == "0.08/s"
    assert sums["Workers"] == "1"
    assert "private" not in page
    assert "closed" not in page
    assert "all 2 queues that the key may measure" in page
    assert "g not shown" in page
    page = text_of(measuring.get_part(f"{A}/_overview").text)
    assert "Timeout" not in page
    assert "in groups alone: jobs need the right read" in page
    assert tiles(measuring)["Dead letters"] == "2"
    bridge.run(store.applications.add_key("queuey", digest_of(SENDER_KEY), scope=parse_scope(["send"], ["orders-*"])))
    sender = logged_in(app, SENDER_KEY)
    assert "You may do here: send: queues that match orders-*" in text_of(sender.get(A).text)
    assert sender.get(f"{A}/_overview").status == 403
    assert member.send_heartbeat().status == 200


def test_groups_that_lag(browser: Browser, owner: Caller) -> None:
    """A group lags if a message has been ahead of it for a while; its lag and members are what the API says."""
    make_member_giving_back(owner)
    group = owner.get("_groups/g", lag="1").json
    ahead = sum(each["lag"] for each in group["queues"]["q"].values())
    assert ahead == 1
    assert tiles(browser)["Groups that lag"] == "0"
    assert tiles(browser)["Workers"] == "2"
    for address in (f"{A}/_overview", f"{A}/_groups"):
        page = text_of(browser.get_part(address, query="lag=on" if "_groups" in address else "").text)
        assert "g rebalancing 2 1 " in page
    with replace_in(groups, groups.MIN_LAG_SECONDS, 0.0):
        assert tiles(browser)["Groups that lag"] == "1"


def test_health_at_a_glance(app: App, operator: Browser, browser: Browser) -> None:
    """An operator sees the worst finding, everybody else whether the store can be used."""
    bridge.run(app.service.store.catalogue.create_queue("queuey", "q", QueueSpec()))
    page = operator.get_part(f"{A}/_overview").text
    assert "warn Clock: is &lt;b&gt;late&lt;/b&gt;." in re.sub(r"<[^>]+>", " ", page).replace("  ", " ")
    assert 'href="/console/health"' in page
    assert "ok Store can be written and read." in text_of(browser.get_part(f"{A}/_overview").text)


def test_the_only_application_opens_at_once(browser: Browser, operator: Browser, store: Store) -> None:
    """A caller who may see one application gets its overview; others choose, by figures that follow the page."""
    reply = browser.get("/console")
    assert (reply.status, reply.headers["Location"]) == (303, A)
    assert browser.get("/console", query="prefix=q").status == 200
    bridge.run(store.catalogue.create_queue("guest", "q", QueueSpec()))
    page = operator.get("/console").text
    assert 'hx-get="/console?depth=on"' in page
    overview = simplify_html(operator.get_part("/console", query="depth=on").text)
    assert re.findall(r'<bdi>(\w+)</bdi></a></td>((?:<td class="number">[^<]*</td>){6})', overview)
    with replace_in(applications, applications.MAX_APPLICATIONS, 1):
        assert "of 1 applications" in operator.get_part("/console", query="depth=on").text


def test_the_page_does_not_wait(browser: Browser) -> None:
    """The figures follow the page, or by a link where no script runs."""
    page = browser.get(A).text
    assert f'<div hx-get="{A}/_overview" hx-trigger="load"' in page
    assert f'<a href="{A}/_overview">Show the figures</a>' in page
    assert "<h1>" in browser.get(f"{A}/_overview").text
