"""The pages of a queue: their content, who sees which, and what they cost."""

from __future__ import annotations

import re
from html import unescape

import pytest

from queuey.console import queue as pages_of_a_queue
from queuey.model.messages import NewMessage
from queuey.storage import Catalogue, ClaimLogs, Messages, OffsetRecords, Store, bridge
from tests.console.browser import Browser, simplify_html
from tests.console.test_pages import bury, text_of
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in
from tests.web.caller import Caller

Q = "/console/a/queuey/q"


def tabs(browser: Browser, path: str = Q) -> list[str]:
    page = browser.get(path).text
    [nav] = re.findall(r'<nav class="tabs"[^>]*>(.*?)</nav>', page, re.DOTALL) or [""]
    return re.findall(r">([^<]+)</a>", nav)


def tiles(browser: Browser) -> dict[str, str]:
    page = browser.get(Q).text
    pairs = re.findall(r'<div class="tile ?\w*"><dt>(.*?)</dt><dd>.*?<b>(.*?)</b>', page, re.DOTALL)
    return {label: text_of(value) for label, value in pairs}


def test_a_queue(browser: Browser, owner: Caller) -> None:
    """A queue's overview has its numbers; its options and partitions are on a page of their own."""
    owner.create("q", partitions=3, ttl=7200, max_deliveries=4, principals="app:queuey,app:guest=read")
    owner.post("q", "one", X_Partition="2")
    page = text_of(browser.get(Q).text)
    for words in ("The charts need JavaScript", "1 messages", "3 partitions"):
        assert words in page
    page = text_of(browser.get(f"{Q}/options").text)
    for words in ("2 h", "Max deliveries 4", "app:guest=read", "Danger zone", "Purge queue", "Delete queue"):
        assert words in page
    assert browser.get(f"{Q}/nothing").status == 404


def test_tabs_are_those_that_apply(browser: Browser, measuring: Browser, owner: Caller) -> None:
    """An empty queue has no pages of groups and dead letters; a key sees the pages that it may."""
    owner.create("q")
    assert tabs(browser) == ["Overview", "Jobs", "Messages", "Options"]
    assert tabs(measuring) == ["Overview", "Options"]
    owner.create("q.dead")
    key = owner.post("q", "a")["key"]
    owner.send_json("PUT", "q/offsets/g", {"partitions": {"1": {"offset": key}}})
    every = ["Overview", "Jobs", "Groups", "Dead letters", "Messages", "Options"]
    for path in ("", "/jobs", "/groups", "/dead", "/messages", "/options"):
        assert tabs(browser, Q + path) == every
        [current] = re.findall(r'aria-current="page">([^<]*)</a>', browser.get(Q + path).text)
        assert current == every[["", "/jobs", "/groups", "/dead", "/messages", "/options"].index(path)]
    assert tabs(measuring) == ["Overview", "Groups", "Options"]


def test_a_queue_without_claims(browser: Browser, owner: Caller, between: InterposedStore) -> None:
    """A queue whose messages cannot be claimed has no page of jobs, and no figures of them."""
    owner.create("q")
    owner.post("q", "a")
    between.instead(ClaimLogs.claims_refusal, lambda _: "Choose a <b>higher</b> level.")
    assert tabs(browser) == ["Overview", "Messages", "Options"]
    assert tiles(browser).keys() == {"Oldest message", "Sent", "Taken"}
    assert "pause" not in browser.get(Q).text
    assert "No jobs: Choose a &lt;b&gt;higher&lt;/b&gt; level." in browser.get(f"{Q}/jobs").text


def test_tiles(browser: Browser, owner: Caller) -> None:
    """The figures are the waiting, claimed, retrying and dead messages, and the age of the oldest."""
    owner.create("q")
    owner.create("q.dead")
    assert tiles(browser) == {
        "Waiting": "0",
        "Claimed": "0",
        "Retrying": "0",
        "Dead": "0",
        "Oldest": "none",
        "Sent": "0/s",
        "Taken": "0/s",
    }
    for body in ("a", "b", "c", "d"):
        owner.post("q", body)
    [first, _] = owner.claim("q", limit=2, ttl=60)
    owner.send_json("POST", "q/claims/release", {"receipts": [first["receipt"]], "delay": 600})
    owner.post("q", "later", X_Delay="86400")
    bury(owner, "E", "text")
    figures = tiles(browser)
    assert [figures[name] for name in ("Waiting", "Claimed", "Retrying", "Dead")] == ["2", "1", "1", "1"]
    assert re.fullmatch(r"\d+ s", figures["Oldest"])
    page = browser.get(Q).text
    assert re.search(r"1 not due yet, the next \d{4}-", text_of(page))
    for name, address in (("claimed", "jobs?state=claimed"), ("retrying", "jobs?state=retrying"), ("dead", "dead")):
        assert f'<div class="tile {name}">' in page
        assert f'href="{Q}/{address}"' in page


def test_jobs(browser: Browser, owner: Caller) -> None:
    """The page of jobs shows each job's worker, by state, with its acts."""
    owner.create("q")
    for body in ("a", "b", "c"):
        owner.post("q", body)
    first, second = owner.claim("q", limit=2, worker="<i>host</i>", ttl=60)
    owner.send_json("POST", "q/claims/release", {"receipts": [second["receipt"]], "delay": 600})
    page = browser.get(f"{Q}/jobs").text
    assert "&lt;i&gt;host&lt;/i&gt;" in page
    acts = {"claimed": {"cancel-job", "release"}, "retrying": {"retry-job", "cancel-job"}, "waiting": set[str]()}
    jobs = {"claimed": first, "retrying": second}
    for state, expected in acts.items():
        page = browser.get(f"{Q}/jobs", query=f"state={state}").text
        offered = re.findall(r'/acts/([\w-]+)\?message=1%3A([0-9a-f]+)"', page)
        assert {name for name, _ in offered} == expected
        assert {place for _, place in offered} <= {jobs[state]["message_id"] for _ in "x" if state in jobs}
        assert (f'<span class="badge {state}">' in page) == bool(expected)
    assert "No job is in this state." in page
    assert browser.get(f"{Q}/jobs", query="state=x").status == 400


def test_workers(browser: Browser, owner: Caller) -> None:
    """Workers stand with the number of their jobs and their last heartbeat, however many jobs the list has."""
    owner.create("q")
    for _ in range(4):
        owner.post("q", "x")
    owner.claim("q", limit=3, worker="<b>ann", ttl=600)
    owner.claim("q", limit=1, worker="", ttl=600)
    with replace_in(pages_of_a_queue, pages_of_a_queue.MAX_JOBS, 1):
        page = text_of(browser.get(f"{Q}/jobs").text)
    time = r"\d{4}-\d\d-\d\d [\d:]{8} UTC"
    assert re.search(rf"Claims end <b>ann 3 {time} {time} not said 1 {time} {time} A heartbeat is", page)
    assert "The first 1, by the time" in page
    with replace_in(pages_of_a_queue, pages_of_a_queue.MAX_WORKERS, 1):
        assert "1 workers with fewer jobs are not shown." in text_of(browser.get(f"{Q}/jobs").text)


def test_a_job_that_retries(browser: Browser, owner: Caller) -> None:
    """A failed job is not a waiting one until its time has come, and is shown with its task, arguments and error."""
    owner.create("q")
    call = {"task": "thumb", "args": ["<b>.jpg"], "kwargs": {"size": 4}}
    owner.send_json("POST", "q", {"messages": [{"body": call}]})
    [job] = owner.claim("q", worker="w", ttl=60)
    reason = {"error": "ValueError", "text": "no <i>stack</i>"}
    owner.send_json("POST", "q/claims/release", {"receipts": [job["receipt"]], "delay": 600, "reason": reason})
    page = browser.get(f"{Q}/jobs").text
    shown = unescape(text_of(page))
    assert f'thumb ("<b>.jpg", size=4) {job["message_id"][:8]}… retrying due 2' in shown
    assert f'title="1:{job["message_id"]}"' in page
    assert "ValueError: no <i>stack</i> 2" in shown
    assert "<i>" not in page


def test_states_of_jobs(browser: Browser, owner: Caller) -> None:
    """The page of jobs has the beginning of what a worker says of a job; the page of the message has all of it."""
    owner.create("q")
    key = owner.post("q", "a")["key"]
    [job] = owner.claim("q", worker="w", ttl=60)
    state = {"page": 7, "of": "<b>" + 500 * "x"}
    reply = owner.send_json("POST", "q/claims/state", {"states": {job["receipt"]: state}})
    assert reply.status == 200
    page = simplify_html(browser.get(f"{Q}/jobs").text)
    [shown] = re.findall(r'<td class="preview"><bdi>(.*?)</bdi> <span class="kind">\d{4}-', page)
    assert unescape(shown).startswith('{"page":7,"of":"<b>xxx')
    assert (len(unescape(shown)), shown.endswith("…")) == (200, True)
    assert 500 * "x" in browser.get(f"{Q}/messages/1:{key}").text
    assert "<b>x" not in page


def test_groups(browser: Browser, owner: Caller) -> None:
    """The page of groups has each group's lag by partition, and further ones on further pages."""
    owner.create("q", partitions=2)
    first = owner.post("q", "a", X_Partition="1")
    owner.post("q", "b", X_Partition="1")
    for number in range(12):
        path = f"q/offsets/g{number:02d}"
        owner.send_json("PUT", path, {"partitions": {"1": {"offset": first["key"]}}})
    page = browser.get(f"{Q}/groups").text
    assert "g00 behind 1 messages and " in text_of(page)
    assert re.search(rf"1 1 \d+\.\d \S {first['key'][:8]}… 2\S+ \S+ UTC 2 0 0\.0 \S none", text_of(page))
    assert "g09" in page
    assert "g11" not in page
    assert "g11" in browser.get(f"{Q}/groups", query="start=g10").text


def test_dead_letters(browser: Browser, owner: Caller) -> None:
    """Dead letters are grouped by what their errors have in common, the most frequent reason first."""
    owner.create("q")
    owner.create("q.dead")
    assert "No dead letters." in text_of(browser.get(f"{Q}/dead").text)
    for number in range(3):
        bury(owner, "requests.Timeout", f"gave up after {number} s")
    bury(owner, "KeyError", "'name'")
    owner.post("q.dead", "no dead letter")
    page = simplify_html(browser.get(f"{Q}/dead").text)
    assert re.findall(r'<td class="number">(\d+)</td><td><b><bdi>([^<]*)</bdi>', page) == [
        ("3", "requests.Timeout"),
        ("1", "KeyError"),
    ]
    assert "gave up after … s" in page
    assert "newest 5 messages there; 1 of them have no reason" in text_of(page)
    assert 'q.dead/acts/redrive"' in page
    assert len(re.findall(r'q\.dead/acts/redrive\?message=1%3A[0-9a-f]+">Send the latest back', page)) == 2
    assert "gave up after … s" in (alone := browser.get("/console/a/queuey/q.dead/dead").text)
    assert "q.dead.dead" not in alone


def test_what_a_key_may_not_see_is_said(measuring: Browser, owner: Caller) -> None:
    """What needs another right is said not to be shown, with the right, and never appears as empty."""
    owner.create("q")
    owner.create("q.dead")
    owner.post("q", "a secret")
    page = text_of(measuring.get(Q).text)
    assert "Not shown: messages, jobs, dead letters. This needs the right read ." in page
    assert "You have here: measure." in page
    assert "This needs read; the credential allows measure." in text_of(measuring.get(f"{Q}/dead").text)
    for path in ("jobs", "messages", "messages/1:" + "0" * 32):
        reply = measuring.get(f"{Q}/{path}")
        assert reply.status == 403
        assert "secret" not in reply.text
    for path in ("", "/options"):
        assert "/acts/" not in measuring.get(Q + path).text


def test_a_queue_of_principals_is_closed(browser: Browser, operator: Browser, owner: Caller) -> None:
    """The owner of a queue that is for others sees nothing of it; an operator sees its counts alone."""
    owner.create("q", principals="app:guest")
    owner.post("q", "secret")
    page = browser.get(Q).text
    assert "You may do here: send, overwrite, admin." in text_of(page)
    assert "The contents of the queue are not shown: You have no right to see it here." in text_of(page)
    assert "/acts/purge" in page
    assert "messages" not in page
    assert tabs(operator) == ["Overview", "Options"]
    for path in ("messages", "jobs"):
        assert operator.get(f"{Q}/{path}").status == 403
    for path in ("jobs", "groups", "dead", "options"):
        assert browser.get(f"{Q}/{path}").status == 403


@pytest.mark.parametrize(("path", "most"), [("", 40), ("/jobs", 60), ("/options", 40), ("/dead", 20), ("/groups", 60)])
def test_costs_are_bounded(
    browser: Browser, owner: Caller, between: InterposedStore, store: Store, path: str, most: int
) -> None:
    """However much a queue has, a page of it reads a bounded number of times."""
    owner.create("q", partitions=2)
    owner.create("q.dead")
    queue = bridge.run(store.catalogue.queue("queuey", "q"))
    for _ in range(4):
        bridge.run(
            store.messages.append(queue, [NewMessage("x", number, 3600) for number in (1, 2) for _ in range(500)])
        )
    for number in range(30):
        bury(owner, f"Error{number}", "x")
        owner.claim("q", limit=10, worker=f"w{number}", ttl=600)
        owner.send_json("PUT", f"q/offsets/g{number}", {"partitions": {"1": {"offset": "0" * 32}}})
    assert browser.get(Q + path).status == 200  # fills the caches
    reads: list[str] = []
    for method in (
        Messages.read,
        Messages.fetch,
        Messages.lag,
        Messages.inspect,
        OffsetRecords.group_offsets,
        OffsetRecords.groups,
        Catalogue.queue,
    ):
        between.before(method, lambda name=method.__name__: reads.append(name))  # type: ignore[misc]
    assert browser.get(Q + path).status == 200
    assert 0 < len(reads) <= most, sorted(reads)
