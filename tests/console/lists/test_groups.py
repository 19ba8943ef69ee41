"""The pages of consumer groups: who owns what, what is hidden, and groups that the service does not assign."""

from __future__ import annotations

import math
import re

from queuey.console import pages
from queuey.groups import local_group, shown_groups
from queuey.storage import Catalogue, Store
from tests.console.browser import Browser
from tests.console.conftest import logged_in
from tests.console.test_hostile_texts import StrictParser
from tests.console.test_pages import text_of
from tests.groups.test_members import Member
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in
from tests.tenants import GUEST_KEY
from tests.web.caller import Caller

LIST = "/console/a/queuey/_groups"


def make_member_giving_back(owner: Caller, instance: str = "machine-1") -> Member:
    """Returns a member that owns both partitions and has been asked to give one back to another member."""
    owner.create("q", partitions=2)
    key = owner.post("q", "a", X_Partition="1")["key"]
    owner.post("q", "b", X_Partition="1")
    member = Member(owner, instance=instance)
    member.send_heartbeat(wait=1)
    assert member.owned["q"].keys() == {"1", "2"}
    assert member.commit(key).status == 200
    Member(owner).send_heartbeat()
    assert member.send_heartbeat(wait=3).json["give_back"]
    return member


def test_a_group(browser: Browser, owner: Caller) -> None:
    """The page of a group has its members, and of each partition owner, next owner, offset and lag."""
    make_member_giving_back(owner)
    assert f'href="{LIST}"' in browser.get("/console/a/queuey").text
    assert f'href="{LIST}/g"' in browser.get(LIST).text
    html = browser.get(f"{LIST}/g").text
    page = text_of(html)
    assert "rebalancing Members 2 Messages ahead 1" in page
    assert "Without a member 0 partitions" in page
    time = r"2\S+ \S+ UTC"
    assert re.search(rf"machine-1 1 present {time} {time} 10 s", page)
    assert re.search(rf"#2 2 present {time} {time} 10 s", page)
    assert re.search(rf"1 machine-1 \S 1 {time} [0-9a-f]{{8}}… {time} new", page)
    assert re.search(rf"2 machine-1 #2 0 never none {time} new", page)
    assert re.search(r'<code title="[0-9a-f]{32}">', html)
    assert browser.get(f"{LIST}/nobody").status == 404


def test_pages_of_a_group(browser: Browser, owner: Caller) -> None:
    """A group of many queues has several pages; those of another application and of strangers are closed."""
    for name in ("q", "r"):
        owner.create(name)
    Member(owner, queues=["q", "r"]).send_heartbeat(wait=1)
    with replace_in(shown_groups, shown_groups.LAG_PAGE_SIZE, 1):
        page = browser.get(f"{LIST}/g").text
        assert "Partitions of q" in page
        assert f'<a class="button" rel="next" href="{LIST}/g?start=r">' in page
        assert "Partitions of q" not in browser.get(f"{LIST}/g", query="start=r").text
    guest = logged_in(browser.app, GUEST_KEY)
    assert [guest.get(path).status for path in (LIST, f"{LIST}/g")] == [403, 403]


def test_what_is_not_shown(browser: Browser, limited: Browser, measuring: Browser, owner: Caller) -> None:
    """A caller sees nothing of queues that it may not measure, nor of their members."""
    make_member_giving_back(owner)
    for viewer in (browser, measuring):
        page = viewer.get(f"{LIST}/g").text
        assert "Partitions of q" in page
        assert "machine-1" in page
    page = text_of(limited.get(f"{LIST}/g").text)
    assert "not shown Members 0" in page
    assert "Partitions of q" not in page
    assert "machine-1" not in page


def test_hostile_members(browser: Browser, owner: Caller, store: Store) -> None:
    """The name of an instance is text, whatever it is."""
    make_member_giving_back(owner, "<script>alert(1)</script>\" onload='x'")
    for path in (LIST, f"{LIST}/g", pages.link("a", "queuey", "_groups", "<b>")):
        StrictParser().feed(browser.get(path).text)
    assert "alert(1)" in browser.get(f"{LIST}/g").text


def test_the_list_searches_no_queues(browser: Browser, owner: Caller, between: InterposedStore) -> None:
    """The list of groups reads the queues of their plans, whatever their members' patterns match."""
    owner.create("q")
    owner.post("q", "x")
    listed: list[None] = []
    with replace_in(local_group, local_group.SEARCH_INTERVAL, math.inf):  # No search of the group's own meanwhile.
        Member(owner, queues=[], patterns=["*"]).send_heartbeat(wait=1)
        between.before(Catalogue.list_queues, lambda: listed.append(None))
        assert re.search(r"g ok 1 1 \d+ s", text_of(browser.get_part(LIST, query="lag=on").text))
        assert listed == []
    group = owner.get("_groups/g", lag="1").json
    assert listed != []
    assert group["members"][0]["seen"] >= group["members"][0]["since"]
    assert group["queues"]["q"]["1"]["lag_seconds"] > 0
