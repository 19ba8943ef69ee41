"""Dead letters go back to their queues from the console: the selected ones, each once, as far as a request gets."""

from __future__ import annotations

import re
from html import unescape

from queuey.console.acts import messages as acts_on_messages
from queuey.messages.posts import MessageUseCases
from queuey.model.errors import StoreUnavailable
from tests.console.acting import Q, act, follow_redirect
from tests.console.browser import Browser
from tests.console.test_pages import bury, text_of
from tests.contract.samples import eventually
from tests.replacing import replace_in
from tests.web.caller import Caller as ApiCaller


def test_redrive_those_with_one_reason(browser: Browser, owner: ApiCaller) -> None:
    """Dead letters with one reason go back, and the others stay; the page said how many before."""
    owner.create("q")
    owner.create("q.dead")
    for number in range(3):
        bury(owner, "requests.Timeout", f"gave up after {number} s")
    bury(owner, "KeyError", "'name'")
    owner.post("q.dead", "no dead letter")
    letters = browser.get_part(f"{Q}/dead").text
    (path, query), *_ = [
        unescape(address).split("?") for address in re.findall(r'href="([^"]*redrive[^"]*)">Send these', letters)
    ]
    assert "among 5 messages in q.dead: 3." in text_of(browser.get(path, query=query).text)
    assert "Sent back 3 to q." in follow_redirect(browser, act(browser, path, query))
    assert owner.get("q/size").json["size"] == 3
    assert owner.get("q.dead/size").json["size"] == 2
    nothing = browser.get(path, query=query).text
    assert "among 2 messages in q.dead: 0." in text_of(nothing)
    assert "Send them back" not in nothing


def test_a_reason_without_text(browser: Browser, owner: ApiCaller) -> None:
    """Dead letters without a reason go back without those that have one, and blanks at the ends of reasons count."""
    owner.create("q")
    owner.create("q.dead")
    for error, text in (("Poison", ""), ("Poison", "charges twice"), (" Odd", "x" * 1200)):
        bury(owner, error, text)
    letters = browser.get_part(f"{Q}/dead").text
    links = [unescape(address).split("?") for address in re.findall(r'href="([^"]*redrive[^"]*)">Send these', letters)]
    for path, query in links:
        assert "Sent back 1 to q." in follow_redirect(browser, act(browser, path, query))
    assert len(links) == 3


def test_redrive_one(browser: Browser, owner: ApiCaller) -> None:
    """One dead letter goes back from its own page, byte by byte the message that it was."""
    owner.create("q", on_ack="delete")
    body = '{"price": 1.50, "n":  1e2}'
    owner("POST", "q", body, headers={"X-Encoding": "json", "X-Header-Trace": "t 1"})
    [job] = owner.claim("q", ttl=60)
    owner.send_json("POST", "q/claims/release", {"receipts": [job["receipt"]], "retry": False})
    assert eventually(lambda: owner.get("q.dead/size").json.get("size") == 1)
    [letter] = owner.get("q.dead?delay=false").messages
    bury(owner, "KeyError", "'b'")
    page = browser.get(f"/console/a/queuey/q.dead/messages/1:{letter['message_id']}").text
    path, query = unescape(re.findall(r'href="([^"]*redrive[^"]*)"', page)[0]).split("?")
    assert "Sent back 1 to q." in follow_redirect(browser, act(browser, path, query))
    message = owner.get("q?delay=false").messages[-1]
    raw = owner.get(f"q/{message['message_id']}", raw=1)
    assert (raw.text, raw.headers["X-Header-trace"]) == (body, "t 1")
    assert {"price", "n"} == message["body"].keys()
    assert message["headers"] == {"trace": "t 1"}
    assert owner.get("q.dead/size").json["size"] == 1


def test_redrive_what_cannot_go_back(browser: Browser, owner: ApiCaller) -> None:
    """Dead letters of a deleted queue, or of one whose letters are kept elsewhere, stay, and the page says why."""
    owner.create("q.dead")
    bury(owner, "KeyError", "'a'")
    page = follow_redirect(browser, act(browser, "/console/a/queuey/q.dead/acts/redrive"))
    assert "Sent back none. 1 stay: Queue 'q' does not exist." in page
    owner.create("q")
    owner.create("other")
    letter = owner.get("q.dead").json["messages"][0]
    headers = {f"X-Header-{name}": text for name, text in letter["headers"].items()}
    assert owner("POST", "other", b"x", headers=headers).status == 201
    page = follow_redirect(browser, act(browser, "/console/a/queuey/other/acts/redrive"))
    assert "dead letters of q do not go to other" in page


def test_redrive_sends_each_once(browser: Browser, owner: ApiCaller) -> None:
    """A dead letter that was sent and could not be removed is not sent again, and the log says how many were."""
    owner.create("q")
    owner.create("q.dead")
    bury(owner, "KeyError", "'a'")

    def away(*_: object) -> None:
        raise StoreUnavailable("away", outcome="none")

    address = "/console/a/queuey/q.dead/acts/redrive"
    with replace_in(MessageUseCases, MessageUseCases.delete, away):
        page = follow_redirect(browser, act(browser, address))
    assert "Partly done" in page
    assert "Sent back 1 to q. Then it failed: away" in page
    assert (owner.get("q/size").json["size"], owner.get("q.dead/size").json["size"]) == (1, 1)
    again = follow_redirect(browser, act(browser, address))
    assert "Sent back none. 1 had been sent back before, and were removed now." in again
    assert (owner.get("q/size").json["size"], owner.get("q.dead/size").json["size"]) == (1, 0)


def test_go_on(browser: Browser, owner: ApiCaller) -> None:
    """What was not looked at goes back with the next form, however long the text of the reason and many partitions."""
    owner.create("q", partitions=60)
    owner.create("q.dead", partitions=60)
    text = "long " * 90
    for number in range(1, 61):
        bury(owner, "E", text, number)
        bury(owner, "E", text, number)
    bury(owner, "F", text)
    html = browser.get_part(f"{Q}/dead").text
    path, query = next(unescape(address).split("?") for address in re.findall(r'href="([^"]*redrive[^"]*)">Send', html))
    with replace_in(acts_on_messages, acts_on_messages.REDRIVE_TIMEOUT, -1.0):
        reply = act(browser, path, query)
    assert "Sent back 100 to q. There may be more: go on." in follow_redirect(browser, reply)
    page = browser.get(reply.headers["Location"]).text
    path, query = unescape(re.findall(r'href="([^"]*)">Go on', page)[0]).split("?")
    assert "Sent back 20 to q." in follow_redirect(browser, act(browser, path, query))
    assert owner.get("q.dead/size").json["size"] == 1
