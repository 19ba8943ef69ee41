"""Schedules at the console: what is shown to whom, and which acts there are."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.app.service import App
from queuey.model.rights import parse_scope
from queuey.storage import Store, bridge
from tests.console.acting import act, follow_redirect, read_form
from tests.console.browser import Browser
from tests.console.conftest import logged_in
from tests.console.test_hostile_texts import PAYLOADS, StrictParser
from tests.console.test_pages import text_of
from tests.web.caller import Caller as ApiCaller

APPLICATION = "/console/a/queuey"
LIST = f"{APPLICATION}/_schedules"
ADMIN_KEY = "4" * 64


def acts(name: str) -> str:
    return f"{APPLICATION}/_acts/schedule-{name}"


def put(owner: ApiCaller, name: str = "s", **fields: object) -> None:
    reply = owner.send_json("PUT", f"_schedules/{name}", fields)
    assert reply.status in {200, 201}, reply


@pytest.fixture
def owner(owner: ApiCaller) -> ApiCaller:
    owner.create("q")
    put(owner, queue="q", cron="30 9 * * MON", timezone="Europe/Berlin", message={"body": {"wake": "up"}})
    return owner


@pytest.fixture
def admin(app: App, store: Store) -> Browser:
    """A browser whose user may administer all queues, but send to none."""
    bridge.run(store.applications.add_key("queuey", digest_of(ADMIN_KEY), scope=parse_scope(["admin"])))
    return logged_in(app, ADMIN_KEY)


def test_what_is_shown(browser: Browser, owner: ApiCaller) -> None:
    """The list and the page of a schedule have its queue, its timetable, its next times and its message."""
    put(owner, "t", queue="q", every=3600, message={"body": "x", "headers": {"h": "v"}}, paused=True)
    assert f'href="{LIST}"' in browser.get(APPLICATION).text
    page = text_of(browser.get(LIST).text)
    assert "s q 30 9 * * MON Europe/Berlin active" in page
    assert "t q every 60 min paused" in page
    assert len([word for word in page.split() if word == "UTC"]) == 3
    page = text_of(browser.get(f"{LIST}/s").text)
    assert page.count("UTC") == 5 + len(("made", "changed"))
    assert 'Body: JSON, 14 bytes { "wake": "up" }' in page
    assert "Headers h v" in text_of(browser.get(f"{LIST}/t").text)


def test_run(browser: Browser, owner: ApiCaller) -> None:
    """A schedule is run once for each form, and its last tick leads to the message."""
    sent = read_form(browser, acts("run"), "schedule=s")
    first, second = browser.post(acts("run"), sent), browser.post(acts("run"), sent)
    assert first.headers["Location"] == second.headers["Location"]
    assert "Stored message 1:" in follow_redirect(browser, first)
    [message] = owner.get("q").json["messages"]
    assert message["body"] == {"wake": "up"}
    for path in (LIST, f"{LIST}/s", first.headers["Location"]):
        assert f"{APPLICATION}/q/messages/1%3A{message['message_id']}" in browser.get(path).text


def test_a_run_that_fails(browser: Browser, owner: ApiCaller) -> None:
    """If the queue does not take the message, nothing was done, and the page of the schedule says why."""
    owner("DELETE", "q")
    reply = act(browser, acts("run"), "schedule=s")
    assert (reply.status, "Nothing was done." in text_of(reply.text)) == (409, True)
    assert "failed" in text_of(browser.get(f"{LIST}/s").text)


@pytest.mark.parametrize("name", ["run", "pause", "resume", "change", "remove"])
def test_a_schedule_that_others_changed(browser: Browser, owner: ApiCaller, name: str) -> None:
    """An act on a schedule that was changed since the form was opened is refused; the new form has the new state."""
    owner.create("other")
    sent = read_form(browser, acts(name), "schedule=s") | {"typed": "s", "missed": "catch_up"}
    put(owner, queue="other")
    late = browser.post(acts(name), sent)
    assert (late.status, "Somebody has changed the schedule meanwhile" in late.text) == (400, True)
    assert "Its messages go to queue other." in text_of(late.text)
    assert owner.get("_schedules/s").json["last"] is None
    assert act(browser, acts(name), "schedule=s", typed="s", missed="catch_up").status == 303


def test_remove(browser: Browser, owner: ApiCaller) -> None:
    """A schedule is removed when its name was typed; a form that is repeated leads to the same entry."""
    assert act(browser, acts("remove"), "schedule=s", typed="S").status == 400
    assert owner.get("_schedules/s").status == 200
    sent = read_form(browser, acts("remove"), "schedule=s") | {"typed": "s"}
    for _ in range(2):
        assert "Removed schedule s." in follow_redirect(browser, browser.post(acts("remove"), sent))
    assert owner.get("_schedules/s").status == 404


@pytest.mark.parametrize("name", ["run", "pause", "resume", "change", "remove"])
def test_a_schedule_that_is_gone(browser: Browser, owner: ApiCaller, name: str) -> None:
    """An act on a schedule that was removed meanwhile is not done, and does not create it again."""
    sent = read_form(browser, acts(name), "schedule=s") | {"typed": "s", "every": "60"}
    owner("DELETE", "_schedules/s")
    assert browser.post(acts(name), sent).status == 404
    assert browser.get(acts(name), query="schedule=s").status == 404
    assert browser.get(f"{LIST}/s").status == 404
    assert owner.get("_schedules").json["schedules"] == []


def test_make_and_change(browser: Browser, owner: ApiCaller) -> None:
    """A schedule is made of a form; another form changes what was typed, and keeps the rest."""
    fields = {"schedule": "t", "queue": "q", "body": '{"a": 1}', "form": "json", "headers": "x: 7", "every": "5m"}
    assert "Saved schedule t." in follow_redirect(browser, act(browser, acts("add"), **fields))
    made = owner.get("_schedules/t").json
    assert (made["every"], made["missed"]) == (300, "skip")
    assert (made["message"]["body"], made["message"]["headers"]) == ({"a": 1}, {"x": "7"})
    changed = {"cron": "0 3 * * *", "timezone": "Asia/Tokyo", "missed": "catch_up"}
    assert "Saved schedule t." in follow_redirect(browser, act(browser, acts("change"), "schedule=t", **changed))
    after = owner.get("_schedules/t").json
    assert (after["cron"], after["timezone"], after["every"]) == ("0 3 * * *", "Asia/Tokyo", None)
    assert (after["missed"], after["message"]) == ("catch_up", made["message"])
    assert "nothing was changed" in follow_redirect(browser, act(browser, acts("change"), "schedule=t"))
    reply = act(browser, acts("change"), "schedule=t", ttl="60")
    assert (reply.status, "body: " in text_of(reply.text)) == (400, True)
    assert owner.get("_schedules/t").json["message"] == made["message"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"schedule": "s"}, "schedule"),
        ({"queue": "nowhere"}, "queue"),
        ({"cron": "0 0 30 2 *", "every": ""}, "cron"),
        ({"every": "soon"}, "every"),
        ({"every": "", "cron": "0 3 * * *", "timezone": "Mars/Base"}, "timezone"),
        ({"body": ""}, "body"),
        ({"partition": "9"}, "partition"),
    ],
)
def test_a_mistake_keeps_what_was_typed(browser: Browser, owner: ApiCaller, fields: dict[str, str], field: str) -> None:
    """An invalid field is named, nothing is created, and the form keeps what was typed."""
    typed = {"schedule": "new", "queue": "q", "every": "60", "body": "x", "message_key": "kept", **fields}
    reply = act(browser, acts("add"), **typed)
    assert reply.status == 400, reply.text
    assert f"{field}: " in text_of(reply.text)
    assert 'value="kept"' in reply.text
    assert [one["schedule"] for one in owner.get("_schedules").json["schedules"]] == ["s"]


def test_rights(browser: Browser, admin: Browser, limited: Browser, operator: Browser, owner: ApiCaller) -> None:
    """An administrator of a queue sees, pauses and removes its schedules; all other acts need the right to send."""
    page = admin.get(f"{LIST}/s").text
    assert {name: f"schedule-{name}?" in page for name in ("run", "pause", "change", "remove")} == {
        "run": False,
        "pause": True,
        "change": False,
        "remove": True,
    }
    assert "schedule-add" not in admin.get(LIST).text
    for name in ("run", "resume", "change", "add"):
        assert admin.get(acts(name), query="schedule=s").status == 403
        sent = {"form_token": admin.read_form_token(LIST), "act_id": "x" * 22, "schedule": "s"}
        assert admin.post(acts(name), sent).status == 403
    assert "Paused" in follow_redirect(admin, act(admin, acts("pause"), "schedule=s"))
    for other in (limited, operator):
        assert "_schedules" not in other.get(APPLICATION).text
        for path in (LIST, f"{LIST}/s", acts("pause")):
            assert other.get(path, query="schedule=s" if path == acts("pause") else "").status == 403


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_texts(browser: Browser, owner: ApiCaller, payload: str) -> None:
    """Bodies, headers and keys are shown as text, and so is whatever is typed for a name."""
    plain = payload.replace("\0", "")
    message = {"body": payload, "headers": {"x": plain}, "content_type": plain, "message_key": plain}
    put(owner, queue="q", message=message)
    for path in (LIST, f"{LIST}/s", acts("run")):
        reply = browser.get(path, query="schedule=s" if path == acts("run") else "")
        assert reply.status == 200
        StrictParser().feed(reply.text)
    assert browser.get(acts("remove"), query=urlencode({"schedule": payload})).status == 404
    reply = act(browser, acts("add"), schedule=payload, queue=payload, cron=payload, body=payload)
    assert reply.status == 400
    assert "<script>alert" not in reply.text
