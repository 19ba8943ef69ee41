"""Creating, listing, changing, deleting and describing queues."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.web.caller import Caller

pytestmark = pytest.mark.one_app


def test_create_answers_with_all_fields(owner: Caller) -> None:
    """A new queue is 201 with every field, those not given at their defaults."""
    reply = owner.send_form("POST", "", queue_name="q")
    assert reply.status == 201
    assert reply.json == {
        "status": "ok",
        "queue_name": "q",
        "partitions": 1,
        "type": "user",
        "consistency": "strong",
        "principles": None,
        "ttl": None,
        "read_delay": None,
        "max_deliveries": 0,
        "backoff": None,
        "dead_letter": "",
        "on_ack": "keep",
        "on_expiry": "drop",
        "kind": "plain",
        "max_claimed": 0,
        "max_claimed_per_key": 0,
        "claims": "open",
        "result_ttl": 0,
        "description": "",
    }


def test_create_without_a_name_makes_one_up(owner: Caller) -> None:
    """A queue without a name gets a random UUID's digits, as from the original; empty values mean not given."""
    first = owner.send_form("POST").json["queue_name"]
    second = owner.send_form("POST", "", queue_name="", partitions="", principles="").json["queue_name"]
    assert (UUID(first).version, UUID(first).hex) == (4, first)
    assert first != second


@pytest.mark.parametrize("spelling", ["principles", "principals"])
def test_json_and_form_create_alike(owner: Caller, spelling: str) -> None:
    """JSON takes the same fields as a form, numbers and lists in their own types."""
    fields: dict[str, object] = {
        "partitions": 7,
        "type": "public",
        "ttl": 60,
        "read_delay": 1.5,
        "max_deliveries": 5,
        "dead_letter": "failed",
        "on_ack": "delete",
        "on_expiry": "dead-letter",
        "kind": "dedup",
        "max_claimed": 9,
    }
    texts: dict[str, object] = {"backoff": "first=5, most=600", spelling: "app:x, bid:a.b@c-d.example.org=read"}
    values = {"backoff": {"first": 5, "most": 600}, spelling: ["app:x", "bid:a.b@c-d.example.org=read"]}
    form = owner.send_form("POST", "", queue_name="a", **fields, **texts)
    made = owner.send_json("POST", "", {"queue_name": "b", **fields, **values})
    assert form.status == made.status == 201
    assert form.json | {"queue_name": ""} == made.json | {"queue_name": ""}
    assert form.json["principles"] == "app:x,bid:a.b@c-d.example.org=read"


def test_names(owner: Caller) -> None:
    """A queue has a name that a URL can reach, percent-encoded; with any other it is not created."""
    for name in ("a/b", "x" * 51, "x" * 51 + ".dead", ".", "..", "_x", "a\nb", "\x7f", "\x00", "a\x80", "\x9f"):
        reply = owner.send_form("POST", "", queue_name=name)
        assert (reply.status, list(reply.errors)) == (400, ["queue_name"]), name
    assert owner.get().json["queues"] == []
    for name in ("x" * 50, "a b", "ä,ö", "1:2", "50%", "a+b", "日本", "x_", "messages", "a;b?c#d", "👍"):
        owner.create(name)
        path = "".join(f"%{byte:02X}" for byte in name.encode())
        owner.post(path, "hello")
        assert owner.get(path).bodies == ["hello"], name
        assert owner("DELETE", path + "/").status == 200


@pytest.mark.parametrize(
    ("partitions", "text"), [("0", "0 is less than minimum value 1"), ("201", "201 is greater than maximum value 200")]
)
def test_partitions_are_bounded(owner: Caller, partitions: str, text: str) -> None:
    """A queue has 1 to 200 partitions."""
    assert owner.send_form("POST", "", partitions=partitions).errors == {"partitions": text}


def test_every_bad_field_is_named(owner: Caller) -> None:
    """All bad fields are reported together, in the words of the original."""
    reply = owner.send_form(
        "POST",
        "",
        partitions="x",
        type="secret",
        consistency="sure",
        principles="app:a,nobody",
        ttl="0",
        read_delay="-1",
        max_deliveries="1001",
        backoff="first=99",
        on_ack="forget",
        on_expiry="mourn",
        max_claimed="-1",
        max_claimed_per_key="1001",
    )
    assert reply.status == 400
    assert reply.errors == {
        "partitions": '"x" is not a number',
        "type": '"secret" is not one of user, public',
        "consistency": '"sure" is not one of weak, strong, very_strong',
        "principles": '"nobody" is not app:<name>, bid:<mail address> or user:<name>, with =read or =delete or nothing',
        "ttl": "0 is less than minimum value 1",
        "read_delay": "-1 is less than minimum value 0",
        "max_deliveries": "1001 is greater than maximum value 1000",
        "backoff": "first, 99 s, is longer than most, 60 s: give both",
        "on_ack": '"forget" is not one of keep, delete',
        "on_expiry": '"mourn" is not one of drop, dead-letter',
        "max_claimed": "-1 is less than minimum value 0",
        "max_claimed_per_key": "1001 is greater than maximum value 1000",
    }


@pytest.mark.parametrize(
    ("backoff", "text"),
    [
        ("5", "Object contains unknown field `5`"),
        ({"factor": 0.5}, "Expected `float` >= 1.0 - at `$.factor`"),
        ("most=1e9", "Expected `float` <= 43200.0 - at `$.most`"),
        ([1], "Expected `object`, got `array`"),
    ],
)
def test_no_backoffs(owner: Caller, backoff: object, text: str) -> None:
    """Delays that cannot be are refused, and the queue is not made."""
    assert owner.send_json("POST", "", {"queue_name": "q", "backoff": backoff}).errors == {"backoff": text}
    assert owner.get("q/info").status == 404


@pytest.mark.parametrize("name", ["q", "a/b", "_dead", "x" * 51])
def test_dead_letters_go_to_another_queue(owner: Caller, name: str) -> None:
    """The queue of dead letters has a name that a queue can have, and is not the queue itself."""
    assert list(owner.send_form("POST", "", queue_name="q", dead_letter=name).errors) == ["dead_letter"]
    owner.create("q", dead_letter="failed")
    assert list(owner.send_form("PUT", "q", dead_letter=name).errors) == ["dead_letter"]
    assert owner.get("q/info").json["dead_letter"] == "failed"
    assert owner.send_json("PUT", "q", {"dead_letter": None}).json["dead_letter"] == ""
    assert owner.get("q/info").json["dead_letter"] == "q.dead"


def test_both_spellings_must_agree(owner: Caller) -> None:
    """Principles and principals are one field."""
    assert owner.send_form("POST", "", principles="app:x", principals="app:x").status == 201
    assert list(owner.send_form("POST", "", principles="app:x", principals="app:y").errors) == ["principals"]


def test_list_shows_names_in_order(owner: Caller) -> None:
    """A plain listing has the names alone."""
    for name in ("b", "a", "c"):
        owner.create(name)
    assert owner.get().json == {
        "status": "ok",
        "queues": [{"queue_name": "a"}, {"queue_name": "b"}, {"queue_name": "c"}],
        "next": None,
        "patterns": ["*"],
    }


def test_list_details_and_counts(owner: Caller) -> None:
    """Details adds every field that is set, include_count adds the count and all details."""
    owner.create("q", principles="app:x", ttl=5, read_delay=2)
    owner.create("r")
    owner.batch("r", {"body": "1"}, {"body": "2"})
    detailed = owner.get(details="True").json["queues"]
    assert {key: value for key, value in detailed[0].items() if key != "created"} == {
        "queue_name": "q",
        "application": "queuey",
        "partitions": 1,
        "type": "user",
        "consistency": "strong",
        "principles": "app:x",
        "ttl": 5,
        "read_delay": 2.0,
    }
    assert detailed[1].keys() == {"queue_name", "application", "created", "partitions", "type", "consistency"}
    counted = owner.get(include_count="yes").json["queues"]
    assert [queue["count"] for queue in counted] == [0, 2]
    assert counted[0].keys() == detailed[0].keys() | {"count"}


def test_values_of_a_list(owner: Caller) -> None:
    """A listing has 1 to 10,000 queues a page; some texts are false, every other is true."""
    owner.create("q")
    for value in ("false", "0", "FALSE", "False", ""):
        assert owner.get(details=value, include_count=value).json["queues"] == [{"queue_name": "q"}], value
    for limit in ("0", "-1", "10001", "x", "1.5"):
        assert list(owner.get(limit=limit).errors) == ["limit"]


def test_update_changes_only_what_is_given(owner: Caller) -> None:
    """PUT leaves every field alone that it does not name."""
    owner.create("q", partitions=2, type="public", consistency="weak", principles="app:x", ttl=5, read_delay=1)
    before = owner.send_form("PUT", "q", max_deliveries="3", on_ack="delete", max_claimed="5").json
    given = {"type": "public", "consistency": "weak", "principles": ["app:x"], "ttl": 5, "max_deliveries": 3}
    assert before.items() >= given.items()
    reply = owner.send_form("PUT", "q", partitions=4)
    assert reply.json == before | {"partitions": 4}
    assert reply.json["created"] == owner.get("q/info").json["created"]


def test_expiry_needs_options_that_fit(owner: Caller) -> None:
    """Expired messages become dead letters only in queues that delete finished messages and hold no dead letters."""
    refused = owner.send_form("POST", "", queue_name="q", on_expiry="dead-letter")
    assert (refused.status, refused.errors) == (
        400,
        {"on_expiry": "dead-letter needs on_ack=delete, and on_ack is keep. Set both."},
    )
    options = {"on_expiry": "dead-letter", "on_ack": "delete"}
    dead = owner.send_form("POST", "", queue_name="q.dead", **options)
    assert dead.errors == {
        "on_expiry": "dead-letter cannot be set for a dead-letter queue such as 'q.dead'. Leave it out."
    }
    owner.create("q", **options)
    assert (
        "Expired messages without a TTL of their own become dead letters in q.dead."
        in (owner.get("q/explain").json["sentences"])
    )
    for change in ({"on_ack": None}, {"on_ack": "keep"}):
        assert list(owner.send_json("PUT", "q", change).errors) == ["on_expiry"]
    assert owner.send_json("PUT", "q", {"on_ack": None, "on_expiry": None}).json["on_expiry"] == "drop"


def test_update_resets_with_null(owner: Caller) -> None:
    """JSON null resets principals, TTL and read delay to their defaults; so does an empty list of principals."""
    owner.create("q", principles="app:x", ttl=5, read_delay=1)
    assert owner.send_json("PUT", "q", {"principals": []}).json["principles"] == []
    owner.send_json("PUT", "q", {"principals": ["app:x"]})
    reply = owner.send_json("PUT", "q", {"principles": None, "ttl": None, "read_delay": None, "partitions": None})
    assert (reply.json["principles"], reply.json["ttl"], reply.json["read_delay"]) == ([], None, None)
    assert reply.json["partitions"] == 1


def test_multipart_and_other_bodies_are_refused(owner: Caller) -> None:
    """A body that is neither form nor JSON is refused by name, not silently ignored."""
    reply = owner("POST", "", "queue_name=q", headers={"Content-Type": "text/plain"})
    assert (reply.status, list(reply.errors)) == (400, ["Content-Type"])
    assert owner("POST", "", "", headers={"Content-Type": "text/plain"}).status == 201


def test_form_text_is_utf8(owner: Caller) -> None:
    """Form values are percent-encoded or raw UTF-8; anything else is refused."""
    kind = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert owner("POST", "", "queue_name=%C3%A4+b", headers=kind).json["queue_name"] == "ä b"
    assert owner("POST", "", "queue_name=ö", headers=kind).json["queue_name"] == "ö"
    assert owner("POST", "", "queue_name=%FF", headers=kind).status == 400
    assert owner("POST", "", b"queue_name=\xff", headers=kind).status == 400


def test_ordered_queues(owner: Caller) -> None:
    """An ordered queue needs keys and shows them."""
    owner.create("q", kind="ordered", partitions=3)
    assert owner.get("q/info").json["kind"] == "ordered"
    for headers, field in (({}, "message_key"), ({"X-Partition": "1"}, "partition")):
        reply = owner("POST", "q", b"a", headers=headers)
        assert (reply.status, list(reply.errors)) == (400, [field])
    assert list(owner.batch("q", {"body": "a", "message_key": "k"}, {"body": "b"}).errors) == ["message_key"]
    [posted] = owner.batch("q", {"body": "a", "message_key": "kä"}).messages
    assert owner.batch("q", {"body": "b", "message_key": "kä", "headers": {"x": "1"}}).status == 201
    place = f"{posted['partition']}:{posted['key']}"
    assert [each["message_key"] for each in owner.get("q", partitions="*").messages] == ["kä", "kä"]
    assert owner.get(f"q/{place}", raw="1").headers["X-Message-Key"] == "k%C3%A4"
    assert [(each["body"], each["message_key"]) for each in owner.claim(limit=1)] == [("a", "kä")]


def test_a_backoff_is_shown_and_reset(owner: Caller) -> None:
    """The row shows what was set, and info and the details of the list, too; info shows the default after a reset."""
    owner.create("q", backoff="first=5,most=600")
    backoff = {"first": 5.0, "factor": 2.0, "most": 600.0, "jitter": 0.1}
    assert owner.get("q/info").json["backoff"] == backoff
    assert owner.get("?details=1").json["queues"][0]["backoff"] == backoff
    assert owner.send_json("PUT", "q", {"backoff": None}).json["backoff"] is None
    assert owner.get("q/info").json["backoff"] == backoff | {"first": 1.0, "most": 60.0}
