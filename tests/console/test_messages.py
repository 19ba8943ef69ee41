"""Messages in the console: lists, scans, single messages and downloads, which consume nothing."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.console import messages, pages
from queuey.model.messages import Message, Meta, NewMessage, QueueSpec
from queuey.operations.message_search import MessageFilter
from queuey.storage import Store, bridge
from tests.console.browser import Browser, simplify_html
from tests.console.test_pages import text_of
from tests.replacing import replace_in
from tests.web.caller import Caller

LIST = "/console/a/queuey/q/messages"


def previews(html: str) -> list[str]:
    return [
        unescape(body) for body in re.findall(r'<td class="line"><a [^>]*><code>([^<]*)</code>', simplify_html(html))
    ]


def next_query(html: str) -> str | None:
    match = re.search(r'rel="next" href="[^"?]*\?([^"]*)"', html)
    return None if match is None else unescape(match[1])


def read_all_previews(browser: Browser, query: str = "") -> list[str]:
    html = browser.get(LIST, query=query).text
    bodies = previews(html)
    while (query_of_next := next_query(html)) is not None:
        html = browser.get_part(LIST, query=query_of_next).text
        bodies += previews(html)
    return bodies


@pytest.mark.parametrize("partitions", [1, 3])
def test_pages_are_newest_first(browser: Browser, owner: Caller, partitions: int) -> None:
    """Every message is on one of the pages, once, the newest first, and stays where it is."""
    owner.create("q", partitions=partitions)
    sent = [str(number) for number in range(130)]
    for expected in (sent[:50], sent[50:100], sent[100:]):
        owner.batch("q", *({"body": body, "partition": int(body) % partitions + 1} for body in expected))
    assert read_all_previews(browser) == sent[::-1]
    assert read_all_previews(browser) == sent[::-1]
    assert len(owner.claim("q", limit=1)) == 1


def test_since_a_time_or_an_id(browser: Browser, owner: Caller) -> None:
    """A list begins at a time or at a message; any other text is an error."""
    owner.create("q")
    ids = [owner.post("q", body)["key"] for body in ("a", "b", "c")]
    assert read_all_previews(browser, f"since={ids[1]}") == ["b", "a"]
    assert read_all_previews(browser, "since=1970-01-02") == []
    assert read_all_previews(browser, "since=now") == ["c", "b", "a"]
    assert read_all_previews(browser, "since=-1h") == []
    for wrong in ("yesterday", "-1x", "1:2", "9999-12-31T23:59-05:00", "%2B" + "9" * 400 + "w"):
        assert browser.get(LIST, query=f"since={wrong}").status == 400
    assert browser.get(LIST, query="cursor=nonsense").status == 400


def test_scans(browser: Browser, owner: Caller) -> None:
    """Text, headers and keys are searched step by step; each step shows its progress."""
    owner.create("q", kind="ordered")
    for number in range(40):
        key, headers = f"k{number % 4}", {"X-Header-colour": "green" if number % 2 else "red"}
        owner("POST", "q", f"Body {number}", headers=headers | {"X-Message-Key": key})
    with replace_in(messages, messages.SCAN_SIZE, 7):
        assert read_all_previews(browser, "text=body+3") == [
            "Body 39",
            *(f"Body {number}" for number in range(38, 29, -1)),
            "Body 3",
        ]
        assert len(read_all_previews(browser, "header=Colour")) == 40
        assert len(read_all_previews(browser, "header=colour&value=gree")) == 20
        assert len(read_all_previews(browser, "value=red")) == 20
        assert read_all_previews(browser, "key=k1&text=5") == ["Body 25", "Body 5"]
        page = browser.get(LIST, query="text=nowhere").text
        assert "0 found, 7 scanned" in text_of(page)
        assert ("data-scan" in page, "data-stop" in page) == (True, True)
        with replace_in(messages, messages.MAX_SCANNED, 7):
            page_that_pauses = browser.get(LIST, query="text=nowhere").text
            assert ("data-scan" in page_that_pauses, "Go on" in page_that_pauses) == (False, True)
        with replace_in(messages, messages.PAGE_SIZE, 7):
            assert "data-scan" not in browser.get(LIST, query="text=body").text
        last = browser.get_part(LIST, query=(next_query(page) or "").replace("scanned=7", "scanned=33")).text
        assert "40 scanned" in text_of(last)
    assert "this is the end" in text_of(browser.get(LIST, query="text=nowhere").text)


def test_text_in_bytes() -> None:
    """A text is also looked for in bytes, by its UTF-8."""
    assert MessageFilter(text="é").matches(Message(1, 1, 1, 0, "\0é".encode()))
    assert not MessageFilter(text="e").matches(Message(1, 1, 1, 0, "\0é".encode()))


def test_many_partitions(browser: Browser, owner: Caller) -> None:
    """In a queue with many partitions the page lists the first and says so. Wrong partitions and long texts get 400."""
    owner.create("q", partitions=messages.MAX_PARTITIONS + 1)
    for number in "12":
        owner.post("q", number, X_Partition=number)
    page = browser.get(LIST).text
    assert (previews(page), "Partition 1 of 17 only." in text_of(page)) == (["1"], True)
    [everywhere] = re.findall(r'<a href="[^"?]*\?([^"]*)">Search all partitions', page)
    assert read_all_previews(browser, unescape(everywhere)) == ["2", "1"]
    for wrong in ("partition=18", "partition=x", f"text={'x' * 201}"):
        assert browser.get(LIST, query=wrong).status == 400


def test_messages_that_are_not_due_yet(browser: Browser, owner: Caller) -> None:
    """Messages not yet due have their own list, the next one first, with pages; filters and form stay in it."""
    owner.create("q", partitions=3)
    owner.post("q", "due")
    for number in range(9, 0, -1):
        owner.post("q", f"{number} h", X_Delay=str(3600 * number), X_Partition=str(number % 3 + 1))
    assert read_all_previews(browser) == ["due"]
    [query] = re.findall(r'<a href="[^"?]*\?([^"]*)">Not due yet', browser.get(LIST).text)
    with replace_in(messages, messages.PAGE_SIZE, 2):
        assert read_all_previews(browser, unescape(query)) == [f"{number} h" for number in range(1, 10)]
    assert read_all_previews(browser, "delayed=on&text=7") == ["7 h"]
    page = browser.get(LIST, query="delayed=on").text
    assert '<input type="hidden" name="delayed" value="on">' in page
    assert "this is the end" in text_of(page)
    assert "Messages that are due" in page
    assert read_all_previews(browser, "delayed=on&since=%2B390m") == ["7 h", "8 h", "9 h"]


def test_by_id(browser: Browser, owner: Caller) -> None:
    """The field for an id leads to the message."""
    owner.create("q", partitions=2)
    sent = owner.post("q", "here", X_Partition="2")
    reply = browser.get(LIST, query=f"id={sent['key']}&partition=2")
    assert (reply.status, reply.headers["Location"]) == (303, f"{LIST}/2%3A{sent['key']}")
    assert "here" in browser.get(f"{LIST}/{sent['key']}").text
    assert browser.get(LIST, query="id=nonsense").status == 400


def test_a_message(browser: Browser, owner: Caller) -> None:
    """A message has its body, its headers, and what explain knows of it."""
    owner.create("q")
    headers = {"X-Header-trace": "abc", "Content-Type": "application/vnd.x"}
    sent = owner("POST", "q", '{"a":[1,2]}', headers=headers).messages[0]
    page = browser.get(f"{LIST}/1:{sent['key']}").text
    assert "Body: JSON, 11 bytes" in page
    assert '{\n  "a": [' in unescape(simplify_html(page))
    for words in ("trace abc", "application/vnd.x", "Range reads show it.", "It expires at"):
        assert words in text_of(page)


def test_neighbours_of_a_message(browser: Browser, owner: Caller) -> None:
    """A message's page links to the ones before and after it in its partition; so does that of a deleted one."""
    owner.create("q", partitions=2)
    first, second, third = (owner.post("q", body, X_Partition="2")["key"] for body in "abc")
    owner.post("q", "elsewhere", X_Partition="1")

    def neighbours(place: str) -> dict[str, str]:
        page = browser.get(f"{LIST}/{place}").text
        return dict(re.findall(r'rel="(prev|next)" href="[^"]*%3A([0-9a-f]+)"', page))

    assert neighbours(f"2:{second}") == neighbours(second) == {"prev": first, "next": third}
    assert neighbours(f"2:{first}") == {"next": second}
    assert neighbours(f"2:{third}") == {"prev": second}
    owner("DELETE", f"q/2:{second}")
    assert neighbours(f"2:{second}") == {"prev": first, "next": third}
    assert neighbours(second) == {}


def test_a_message_that_is_not_there(browser: Browser, owner: Caller) -> None:
    """The page says that the message does not exist, and what is known of the id."""
    owner.create("q")
    reply = browser.get(f"{LIST}/1:0123456789ab11e88000000000000001")
    assert reply.status == 404
    assert "There is no message with this id." in reply.text
    assert "absent" in reply.text
    assert browser.get(f"{LIST}/nonsense").status == 400
    assert browser.get(f"{LIST}/1:0123456789ab11e88000000000000001/body").status == 404


def test_download(browser: Browser, store: Store) -> None:
    """A body is given as it is, as a file that no browser opens."""
    queue, _ = bridge.run(store.catalogue.create_queue("queuey", "q", QueueSpec()))
    body = b"\x00\xff<script>alert(1)</script>"
    meta = Meta("text/html")
    [position] = bridge.run(store.messages.append(queue, [NewMessage(body, 1, 60, meta)]))
    [message] = bridge.run(store.messages.fetch(queue, [(1, position)]))
    reply = browser.get(f"{LIST}/1:{message.id}/body")
    assert reply.body == body
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["Content-Disposition"] == f'attachment; filename="message-{message.id}.bin"'
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in reply.headers["Content-Security-Policy"]
    page = browser.get(f"{LIST}/1:{message.id}").text
    assert "00000000  00 ff 3c 73" in page
    assert "<script>alert" not in page


def message(body: str | bytes, **meta: Any) -> Message:  # noqa: ANN401 - fields
    return Message(1, 1, 1, 1, body, Meta(**meta) if meta else None)


@pytest.mark.parametrize(
    ("body", "kind", "cut"),
    [
        ("plain", "text", False),
        ('{"a": 1}', "JSON", False),
        ("[" * 5000, "text", False),
        ("[" * 33 + "]" * 33, "text", False),
        ("[" * 32 + "]" * 32, "JSON", False),
        (json.dumps(["x" * 100_000]), "text", True),
        (b"\x00" * 4096, "bytes", False),
        (b"\x00" * 4097, "bytes", True),
    ],
)
def test_how_bodies_are_shown(body: str | bytes, kind: str, cut: bool) -> None:  # noqa: FBT001
    """JSON has indents unless that could make a page of it, the rest is shown as it is, up to a bound."""
    shown = pages.make_shown_body(body)
    assert (shown.kind, shown.is_cut) == (kind, cut)
    assert shown.size == len(body)


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_indents_change_no_value(value: object) -> None:
    """JSON with indents is the same JSON, and a page of it is bounded."""
    text = json.dumps(value)
    shown = pages.make_shown_body(text)
    assert len(shown.text) <= pages.MAX_SHOWN
    if not shown.is_cut:
        assert json.loads(shown.text) == value
    assert len(pages.make_preview(message(text))) <= pages.MAX_PREVIEW
