"""The pages of the console: what each shows to whom, and what it says is not shown."""

from __future__ import annotations

import hashlib
import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

import queuey.console
from queuey.console import applications, pages
from queuey.console.sessions import Ask
from queuey.messages import NewMessage, QueueSpec
from queuey.storage import Store
from tests.console.browser import Browser, plain
from tests.replacing import replace_in
from tests.web.caller import Caller

VENDOR = Path(queuey.console.__file__).parent / "static" / "vendor"


def text_of(html: str) -> str:
    """Returns the text of a page, its white space as single blanks."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", plain(html))).split())


def test_headers_of_a_page(browser: Browser, stranger: Browser) -> None:
    """A page runs no script but its own, is in no frame, is kept nowhere, and tells no other site where one was."""
    for reply in (browser.get("/console/health"), stranger.get("/console/login"), browser.get("/console/a/nobody")):
        policy = reply.headers["Content-Security-Policy"]
        nonces = set(re.findall(r"'nonce-([^']+)'", policy))
        assert set(re.findall(r'nonce="([^"]+)"', reply.text)) == nonces
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Referrer-Policy"] == "same-origin"
        assert not re.search(r"<(script|style)[^>]*>[^<]", reply.text)
        assert not re.search(r'\s(on\w+|style|hx-on[^=]*)="', reply.text)
    first, second = browser.get("/console/health"), browser.get("/console/health")
    assert first.headers["Content-Security-Policy"] != second.headers["Content-Security-Policy"]


def test_files(stranger: Browser) -> None:
    """Each file has its hash in its address, and is kept for ever; another hash is none of ours."""
    for name in pages.FILE_TYPES:
        reply = stranger.get(pages.file_address(name))
        assert reply.status == 200
        assert "immutable" in reply.headers["Cache-Control"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert stranger.get(f"/console/static/{'0' * 20}/{name}").status == 404
    known = pages.FILES["console.css"].digest
    for path in ("../pages.py", "vendor/SHA256SUMS", "console.css/"):
        assert stranger.get(f"/console/static/{known}/{path}").status == 404


def test_vendored_files_are_what_was_checked() -> None:
    """No vendored file differs from its checksum, and each has its licence beside it."""
    lines = (line.split() for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    others = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS"}
    assert sums.keys() == others
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
    for name in sums:
        if not name.endswith("LICENSE.txt"):
            assert re.sub(r"\.min\.\w+$", ".LICENSE.txt", name) in sums


@pytest.mark.parametrize("path", ["/console/nothing", "/console/a/queuey/q/parts/nothing", "/console/a/nobody"])
def test_errors_are_pages(browser: Browser, path: str, owner: Caller) -> None:
    """What is not there is a page that says so; a script gets a part of a page."""
    owner.create("q")
    reply = browser.get(path)
    assert (reply.status, reply.headers["Content-Type"]) == (404, pages.HTML[1])
    assert "<h1>" in reply.text
    assert "<h1>" not in browser.part(path).text


def test_defects_are_pages(browser: Browser) -> None:
    """A defect of ours is a page with an id, and none of its text."""

    def fail(*_: object) -> object:
        raise RuntimeError("internals")

    with replace_in(Ask, Ask.render, fail):
        fresh = Browser(browser.app)
        fresh.cookies = browser.cookies
        reply = fresh.get("/console/health")
    assert reply.status == 500
    assert "internals" not in reply.text


def test_applications(browser: Browser, operator: Browser, limited: Browser) -> None:
    """An operator sees all applications, everybody else those of the key, and that others are not shown."""
    assert "guest" in operator.get("/console").text
    assert "not shown" not in operator.get("/console").text
    for one in (browser, limited):
        assert one.get("/console").status == 303
        page = one.get("/console", query="prefix=q").text
        assert "guest" not in page.replace("key of", "")
        assert "Other applications are not shown: that needs an operator's key." in text_of(page)
    assert "guest" in operator.get("/console", query="prefix=gu").text
    assert "No application" in operator.get("/console", query="prefix=zz").text


def test_queues_by_prefix_and_page(browser: Browser, owner: Caller) -> None:
    """Pages follow each other by a cursor, within a prefix and without."""
    names = [f"a{number}" for number in range(5)] + ["b*0", "b*1", "c"]
    for name in names:
        owner.create(name)
    with replace_in(applications, applications.PAGE_SIZE, 2):
        assert walk(browser, "") == names
        assert walk(browser, "prefix=a") == names[:5]
        assert walk(browser, "prefix=b*") == ["b*0", "b*1"]
        assert walk(browser, "prefix=zz") == []


def walk(browser: Browser, query: str) -> list[str]:
    """Returns the names on all pages of a list."""
    found: list[str] = []
    address = f"/console/a/queuey/_queues?{query}"
    while True:
        path, _, query = address.partition("?")
        page = plain(browser.get(path, query=query).text)
        found += re.findall(r'<td><a id="queue-\d+" href="[^"]*"><bdi>([^<]*)</bdi>', page)
        following = re.search(r'rel="next" href="([^"]*)"', page)
        if following is None:
            return found
        address = unescape(following[1])


def test_a_limited_key_sees_its_queues(limited: Browser, owner: Caller) -> None:
    """The list has the queues that the key's patterns match, and says that others are not shown."""
    for name in ("orders-1", "orders-2", "private"):
        owner.create(name)
    page = limited.get("/console/a/queuey/_queues").text
    assert "orders-1" in page
    assert "private" not in page
    assert "Other queues are not shown: the key is limited to those that match orders-* ." in text_of(page)
    assert walk(limited, "prefix=orders-2") == ["orders-2"]
    assert limited.get("/console/a/queuey/private").status == 403
    assert limited.get("/console/a/guest").status == 403


def test_a_queue(browser: Browser, owner: Caller) -> None:
    """A queue's page has its numbers, its options and its partitions."""
    owner.create("q", partitions=3, ttl=7200, max_deliveries=4, principals="app:queuey,app:guest=read")
    owner.post("q", "one", X_Partition="2")
    page = text_of(browser.get("/console/a/queuey/q").text)
    for words in (
        "The charts need JavaScript.",
        "1 messages",
        "3 partitions",
        "2 h",
        "Max deliveries 4",
        "app:guest=read",
    ):
        assert words in page


def test_jobs(browser: Browser, owner: Caller) -> None:
    """The part on jobs has how many wait and are claimed, and who has them."""
    owner.create("q")
    for body in ("a", "b", "c"):
        owner.post("q", body)
    owner.claim("q", limit=1, worker="<i>host</i>", ttl=60)
    page = browser.part("/console/a/queuey/q/parts/backlog").text
    assert "Wait to be claimed 2" in text_of(page)
    assert "Not due yet 0 Claimed 1 Retrying, not due yet 0" in text_of(page)
    assert "&lt;i&gt;host&lt;/i&gt;" in page
    owner.post("q", "d", X_Delay="86400")
    later = text_of(browser.part("/console/a/queuey/q/parts/backlog").text)
    assert re.search(r"Not due yet 1, the next one \d{4}-", later)


def test_a_job_that_retries(browser: Browser, owner: Caller) -> None:
    """A job that failed is no waiting one until its time has come, and has its task, arguments and error."""
    owner.create("q")
    call = {"task": "thumb", "args": ["<b>.jpg"], "kwargs": {"size": 4}}
    owner.send_json("POST", "q", {"messages": [{"body": call}]})
    [job] = owner.claim("q", worker="w", ttl=60)
    reason = {"error": "ValueError", "text": "no <i>stack</i>"}
    owner.send_json("POST", "q/claims/release", {"receipts": [job["receipt"]], "delay": 600, "reason": reason})
    page = browser.part("/console/a/queuey/q/parts/backlog").text
    assert "Wait to be claimed 0 Not due yet 0 Claimed 0 Retrying, not due yet 1" in text_of(page)
    place = f"1:{job['message_id']}"
    assert f'thumb("<b>.jpg", size=4) {place} retrying until 2' in unescape(text_of(page))
    assert "ValueError: no <i>stack</i> 2" in unescape(text_of(page))
    assert "<i>" not in page


def test_states_of_jobs(browser: Browser, owner: Caller) -> None:
    """The part on jobs has the beginning of what a worker says of a job; the page of the message has all of it."""
    owner.create("q")
    key = owner.post("q", "a")["key"]
    [job] = owner.claim("q", worker="w", ttl=60)
    state = {"page": 7, "of": "<b>" + 500 * "x"}
    reply = owner.send_json("POST", "q/claims/state", {"states": {job["receipt"]: state}})
    assert reply.status == 200
    page = plain(browser.part("/console/a/queuey/q/parts/backlog").text)
    [shown] = re.findall(r'<td class="preview"><bdi>(.*?)</bdi> <span class="kind">\d{4}-', page)
    assert unescape(shown).startswith('{"page":7,"of":"<b>xxx')
    assert (len(unescape(shown)), shown.endswith("…")) == (200, True)
    assert 500 * "x" in browser.get(f"/console/a/queuey/q/messages/1:{key}").text
    assert "<b>x" not in page


def test_groups(browser: Browser, owner: Caller, store: Store) -> None:
    """The part on groups has each group's lag, and further ones on further pages."""
    owner.create("q", partitions=2)
    first = owner.post("q", "a", X_Partition="1")
    owner.post("q", "b", X_Partition="1")
    for number in range(12):
        path = f"q/offsets/g{number:02d}"
        owner.send_json("PUT", path, {"partitions": {"1": {"offset": first["key"]}}})
    page = browser.part("/console/a/queuey/q/parts/groups").text
    assert "g00 : 1 messages" in text_of(page)
    assert "g09" in page
    assert "g11" not in page
    assert "g11" in browser.part("/console/a/queuey/q/parts/groups", query="start=g10").text


def test_moves(browser: Browser, owner: Caller) -> None:
    """The part on moves has those of this queue alone."""
    for name in ("q", "target", "other"):
        owner.create(name)
    assert owner.send_json("POST", "_moves", {"from": "q", "to": "target"}).status in {200, 202}
    assert "target" in browser.part("/console/a/queuey/q/parts/moves").text
    assert "No move" in browser.part("/console/a/queuey/other/parts/moves").text


def test_dead_letters(browser: Browser, owner: Caller) -> None:
    """Dead letters are grouped by what their errors have in common, the most frequent reason first."""
    owner.create("q")
    owner.create("q.dead")
    for number in range(3):
        bury(owner, "requests.Timeout", f"gave up after {number} s")
    bury(owner, "KeyError", "'name'")
    owner.post("q.dead", "no dead letter")
    page = plain(browser.part("/console/a/queuey/q/parts/dead").text)
    assert re.findall(r'<td class="number">(\d+)</td><td><bdi>([^<]*)</bdi>', page) == [
        ("3", "requests.Timeout"),
        ("1", "KeyError"),
    ]
    assert "gave up after &lt;n&gt; s" in page
    assert "newest 5 messages there; 1 of them say no reason" in text_of(page)
    assert 'q.dead/acts/redrive"' in page
    assert "<h3>" in (alone := browser.part("/console/a/queuey/q.dead/parts/dead").text)
    assert "q.dead.dead" not in alone
    assert "gave up after &lt;n&gt; s" in alone


def test_names_are_isolated(browser: Browser, owner: Caller) -> None:
    """A name that is written from right to left does not turn the words of a heading around."""
    owner.create("q")
    for path in ("", "/q", "/q/messages", "/q/parts/size"):
        assert re.search("<h1>.*<bdi>", browser.get(f"/console/a/queuey{path}").text)


def bury(owner: Caller, error: str, text: str, partition: int = 1, *, into: str = "q.dead") -> None:
    """Stores a dead letter of queue q."""
    said = {"queue": "q", "partition": str(partition), "id": "0" * 32, "attempts": "3", "error": quote(error)}
    said |= {"text": quote(text), "at": "2026-01-01T00:00:00.000Z"}
    headers = {f"X-Header-queuey-dead-{name}": value for name, value in said.items() if value}
    assert owner("POST", into, b"x", headers=headers | {"X-Partition": str(partition)}).status == 201


def test_what_a_key_may_not_see_is_said(measuring: Browser, owner: Caller) -> None:
    """What needs another right is said not to be shown, with the right, and never appears as empty."""
    owner.create("q")
    owner.create("q.dead")
    owner.post("q", "a secret")
    page = measuring.get("/console/a/queuey/q").text
    assert "Messages are not shown: this needs the right read ." in text_of(page)
    assert "This needs read; the credential allows measure." in measuring.part("/console/a/queuey/q/parts/dead").text
    jobs = text_of(measuring.part("/console/a/queuey/q/parts/backlog").text)
    assert "Who has which job is not shown: This needs read; the credential allows measure." in jobs
    for path in ("messages", "messages/1:" + "0" * 32):
        reply = measuring.get(f"/console/a/queuey/q/{path}")
        assert reply.status == 403
        assert "secret" not in reply.text


def test_a_queue_of_principals_is_closed(browser: Browser, operator: Browser, owner: Caller) -> None:
    """The owner of a queue that is for others sees nothing of it; an operator sees its counts alone."""
    owner.create("q", principals="app:guest")
    owner.post("q", "secret")
    page = browser.get("/console/a/queuey/q").text
    assert "You may do here: send, overwrite, admin." in text_of(page)
    assert "What the queue has is not shown: You have no right to see it here." in text_of(page)
    assert "messages" not in page
    assert operator.get("/console/a/queuey/q").status == 200
    assert operator.get("/console/a/queuey/q/messages").status == 403


@pytest.mark.parametrize("part", ["size", "backlog", "groups", "moves", "dead"])
def test_parts_are_pages_without_scripts(browser: Browser, owner: Caller, part: str) -> None:
    """Where no script runs, the link of a part leads to a page with the same contents."""
    owner.create("q")
    path = f"/console/a/queuey/q/parts/{part}"
    alone, page = browser.part(path).text, browser.get(path).text
    assert alone.strip() in page
    assert "<h1>" in page


def test_health(operator: Browser, browser: Browser) -> None:
    """An operator sees what doctor finds, everybody else whether the store can be used."""
    page = operator.get("/console/health").text
    assert "is &lt;b&gt;late&lt;/b&gt;" in page
    assert "reads_waiting" in page
    other = text_of(browser.get("/console/health").text)
    assert "can be written and read" in other
    assert "late" not in other
    assert "not shown: that needs an operator's key" in other


def test_bytes(browser: Browser, owner: Caller, store: Store) -> None:
    """The bytes of a few messages are counted, those of many estimated by the newest hundred."""
    queue, _ = store.create_queue("queuey", "q", QueueSpec())
    store.append(queue, [NewMessage("x" * 10, 1, 60) for _ in range(20)])
    assert "200 bytes of bodies" in text_of(browser.part("/console/a/queuey/q/parts/size").text)
    store.append(queue, [NewMessage("x" * 10, 1, 60) for _ in range(180)])
    said = "About 2.0 KiB of bodies. This is an estimate: there are 200 messages, and the newest 100 have 10 bytes each"
    assert said in text_of(browser.part("/console/a/queuey/q/parts/size").text)
