"""The lists of the console: sizes of queues, what a key without the right to list sees, and failures."""

from __future__ import annotations

import re
from contextlib import ExitStack
from html import unescape

from queuey.access.credentials.readers import digest_of
from queuey.app.service import App
from queuey.console import applications, overview
from queuey.model.rights import parse_scope
from queuey.storage import Store, bridge
from tests.console.browser import Browser, simplify_html
from tests.console.conftest import logged_in
from tests.console.test_pages import bury, text_of
from tests.replacing import replace_in
from tests.web.caller import Caller

SEND_KEY = "4" * 64
NONE = "\N{EN DASH}"


def depths(browser: Browser, query: str = "") -> dict[str, tuple[str, str]]:
    """Returns each queue's count of messages and oldest message from the list of queues, as a script gets them."""
    page = simplify_html(browser.get_part("/console/a/queuey/_queues", query=f"depth=on&{query}").text)
    assert "<h1" not in page
    rows = re.findall(r"<bdi>([^<]*)</bdi></a></td>((?:<td.*?</td>)*)</tr>", page, re.DOTALL)
    cells = {unescape(name): [text_of(cell) for cell in row.split("</td>")] for name, row in rows}
    return {name: (row[0], row[4]) for name, row in cells.items()}


def test_depths_of_queues(browser: Browser, owner: Caller) -> None:
    """The list has how many messages each queue has, and the oldest, as a part or by a link; a page does not wait."""
    owner.create("empty")
    owner.create("full", partitions=3)
    for partition in "123":
        owner.post("full", "x", X_Partition=partition)
    page = browser.get("/console/a/queuey/_queues").text
    [link] = re.findall(r'<div hx-get="[^"]*" hx-trigger="load"><a href="([^"]*)">Show how many', page)
    assert text_of(page).count(NONE) > 2 * 5
    sizes = depths(browser)
    assert sizes["empty"] == ("0", NONE)
    assert sizes["full"][0] == "3"
    assert re.fullmatch(r"\d{4}-.* UTC", sizes["full"][1])
    assert depths(browser, "prefix=em") == {"empty": ("0", NONE)}
    whole = browser.get("/console/a/queuey/_queues", query=unescape(link).partition("?")[2]).text
    assert "<h1>" in whole
    assert "hx-get" not in whole
    assert sizes["full"][1] in simplify_html(whole)
    assert "not counted" not in whole


def test_not_all_queues_are_counted(browser: Browser, owner: Caller) -> None:
    """A page counts a limited number of partitions for a limited time, and says how many queues were not counted."""
    for name, partitions in (("a", 2), ("b", 4), ("c", 1)):
        owner.create(name, partitions=partitions)
    with replace_in(overview, overview.MAX_PARTITIONS, 3):
        assert {name for name, (count, _) in depths(browser).items() if count == "0"} == {"a", "c"}
        page = browser.get("/console/a/queuey/_queues", query="depth=on").text
        assert "The messages of 1 queues were not counted" in page
    with replace_in(applications, applications.SEARCH_TIMEOUT, -1.0):
        page = browser.get_part("/console/a/queuey/_queues", query="depth=on").text
    assert "The messages of 3 queues were not counted" in page


def test_a_key_that_only_sends(app: App, store: Store, owner: Caller, stranger: Browser) -> None:
    """A key without the right to list sees its rights, and opens queues by name; these pages name the missing right."""
    bridge.run(
        store.applications.add_key("queuey", digest_of(SEND_KEY), scope=parse_scope(["send"], ["in-*", "orders"]))
    )
    owner.create("orders")
    owner.create("other")
    owner.post("orders", "secret")
    sender = logged_in(app, SEND_KEY)
    page = sender.get("/console/a/queuey")
    assert page.status == 200
    assert "send: queues that match in-* , orders" in text_of(page.text)
    assert "the credential allows send" in page.text
    assert "other" not in re.findall(r"<bdi>([^<]*)</bdi>", page.text)
    reply = sender.get("/console/a/queuey", query="queue=orders")
    assert (reply.status, reply.headers["Location"]) == (303, "/console/a/queuey/orders")
    assert sender.get("/console/a/queuey", query="queue=a%2Fb").headers["Location"] == "/console/a/queuey/a%2Fb"
    page = sender.get("/console/a/queuey/orders")
    assert page.status == 200
    assert "You may do here: send." in text_of(page.text)
    assert "the credential allows send" in page.text
    assert "secret" not in page.text
    assert re.findall(r'class="button[ \w]*" href="([^"]*)"', page.text) == ["/console/a/queuey/orders/acts/send"]
    assert sender.get("/console/a/queuey/orders/acts/send").status == 200
    for path in ("other", "orders/messages", "orders/options", "_failures"):
        assert sender.get(f"/console/a/queuey/{path}").status == 403
    assert "the credential allows send" in sender.get("/console/a/queuey/orders/messages").text


def test_failures_of_an_application(browser: Browser, owner: Caller) -> None:
    """Dead letters are grouped by their reasons over all queues that hold some, with links to each and its latest."""
    owner.create("q")
    owner.create("special", dead_letter="graveyard")
    for name in ("a.dead", "b.dead", "graveyard", "plain"):
        owner.create(name)
    for number in range(3):
        bury(owner, "Timeout", f"gave up after {number} s", into="a.dead")
    bury(owner, "Timeout", "gave up after 9 s", into="graveyard")
    bury(owner, "KeyError", "'name'", into="b.dead")
    owner.post("b.dead", "no dead letter")
    page = simplify_html(browser.get("/console/a/queuey/_failures").text)
    rows = re.findall(
        r'<td class="number">(\d+)</td><td><bdi>([^<]*)</bdi></td><td class="preview"><bdi>([^<]*)<', page
    )
    assert [(count, error) for count, error, _ in rows] == [("4", "Timeout"), ("1", "KeyError")]
    assert rows[0][2] == "gave up after … s"
    text = text_of(page)
    for words in ("a.dead (3) graveyard (1) q q 2026-01-01 00:00:00 UTC", "b.dead q 2026", "b.dead 2 1"):
        assert words in text
    for address in re.findall(r'href="(/console/a/queuey/[^"]*messages/[^"]*)"', page):
        assert browser.get(unescape(address)).status == 200
    assert 'rel="next"' not in page
    assert "plain" not in text


def test_failures_page_by_page(browser: Browser, measuring: Browser, limited: Browser, owner: Caller) -> None:
    """A page reads a limited number of queues and says where it ends, and what the key may not read."""
    owner.create("orders-1", dead_letter="orders-lost")
    for name in ("a.dead", "b.dead", "c", "d.dead", "orders-lost", "z"):
        owner.create(name)
    owner.create("e", dead_letter="e.lost")
    bury(owner, "Timeout", "late", into="orders-lost")

    def walked(by: Browser, **changes: float) -> list[str]:
        names: list[str] = []
        query: str | None = ""
        with ExitStack() as stack:
            for name, value in changes.items():
                stack.enter_context(replace_in(applications, getattr(applications, name), value))
            while query is not None:
                page = by.get("/console/a/queuey/_failures", query=query).text
                searched = page.partition("Queues that were searched")[2]
                names += re.findall(r'<td data-label="Queue"><a href="[^"]*"><bdi>([^<]*)</bdi></a>', searched)
                following = re.search(r'rel="next" href="[^"?]*\?([^"]*)"', page)
                query = None if following is None else unescape(following[1])
        return names

    expected = ["a.dead", "b.dead", "d.dead", "e.lost", "orders-lost"]
    assert walked(browser) == expected
    for size in (1, 2, 3):
        assert walked(browser, MAX_SAMPLED=size) == expected
        assert walked(browser, MAX_SEARCHED=size) == expected
    assert walked(browser, SEARCH_TIMEOUT=-1.0) == expected
    assert walked(limited) == ["orders-lost"]
    assert "This queue does not exist" in browser.get("/console/a/queuey/_failures").text
    refused = measuring.get("/console/a/queuey/_failures")
    assert refused.status == 403
    assert "This needs read; the credential allows measure." in refused.text


def list_names(browser: Browser, query: str) -> list[str]:
    page = browser.get("/console/a/queuey/_queues", query=query).text
    return re.findall(r'id="queue-\d+" href="[^"]*"><bdi>([^<]*)</bdi>', page)


def test_queues_are_sorted_by_their_figures(browser: Browser, owner: Caller) -> None:
    """Each head sorts the page by its column, and again the other way; a queue without a figure comes last."""
    for name, messages in (("a", 2), ("b", 0), ("c", 3)):
        owner.create(name)
        for _ in range(messages):
            owner.post(name, "x")
    owner.create("hidden", principals="app:guest")
    owner.claim("c", limit=2, ttl=60)
    assert list_names(browser, "sort=name&down=on") == ["hidden", "c", "b", "a"]
    assert list_names(browser, "sort=waiting") == ["b", "c", "a", "hidden"]
    assert list_names(browser, "sort=waiting&down=on") == ["a", "c", "b", "hidden"]
    assert list_names(browser, "sort=claimed&down=on")[0] == "c"
    assert list_names(browser, "sort=oldest") == ["a", "c", "b", "hidden"]
    for key in ("retrying", "dead", "sent", "taken"):
        assert len(list_names(browser, f"sort={key}")) == 4
    page = browser.get("/console/a/queuey/_queues", query="sort=waiting&down=on").text
    assert re.search(r'<th [^>]*aria-sort="descending"[^>]*><a href="/console/a/queuey/_queues\?sort=waiting">', page)
    assert "Only the queues of this page are sorted." not in page
    with replace_in(applications, applications.PAGE_SIZE, 2):
        page = browser.get("/console/a/queuey/_queues", query="sort=waiting").text
    assert "Only the queues of this page are sorted." in page
    assert browser.get("/console/a/queuey/_queues", query="sort=principals").status == 400


def test_queues_of_principals_are_not_counted(browser: Browser, owner: Caller) -> None:
    """A queue whose principals keep the key out is in the list, without its messages."""
    owner.create("q", principals="app:guest")
    assert depths(browser) == {"q": (NONE, NONE)}
