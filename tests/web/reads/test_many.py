"""Reading several queues in one request."""

from __future__ import annotations

from tests.web.caller import Caller


def test_answers_are_in_the_order_asked(owner: Caller) -> None:
    """Each queue is read by its own parameters, and answered as a range read with its name."""
    owner.create("a", partitions=2)
    owner.create("b")
    owner.post("a", "a1", X_Partition="1")
    second = owner.post("a", "a2", X_Partition="2")["key"]
    owner.batch("b", {"body": "b1"}, {"body": "b2"})
    reply = owner.send_json(
        "POST",
        "_read",
        {
            "queues": [
                {"queue_name": "b", "limit": 1, "order": "descending"},
                {"queue_name": "a", "partitions": "*", "merge": True},
                {"queue_name": "a", "partitions": [2], "since": second, "delay": 0},
                {"queue_name": "a", "partitions": "1,2", "after": second, "limit": "5", "delay": None},
            ]
        },
    )
    queues = reply.json["queues"]
    assert [queue["queue_name"] for queue in queues] == ["b", "a", "a", "a"]
    assert [[m["body"] for m in queue["messages"]] for queue in queues] == [["b2"], ["a1", "a2"], ["a2"], []]
    assert queues[2]["cursor_safe"] is False
    assert owner.get("b", since=queues[0]["cursor"], order="descending").bodies == ["b1"]


def test_one_bad_queue_leaves_the_others(owner: Caller, guest: Caller) -> None:
    """An unknown queue and one of another caller are reported in their places; the rest is read."""
    owner.create("private")
    owner.create("public", type="public")
    owner.post("public", "hello")
    content = {"queues": [{"queue_name": name} for name in ("private", "public", "missing", "", "_x")]}
    reply = guest.send_json("POST", "_read/", content)
    assert reply.status == 400
    assert reply.errors == {"3.queue_name": "Required"}
    del content["queues"][3]
    private, public, missing, reserved = guest.send_json("POST", "_read", content).json["queues"]
    assert private == {
        "status": "error",
        "queue_name": "private",
        "error_msg": {"Forbidden": "Access was denied to this resource."},
    }
    assert [message["body"] for message in public["messages"]] == ["hello"]
    assert list(missing["error_msg"]) == list(reserved["error_msg"]) == ["InvalidQueueName"]


def test_bad_parameters_are_named_by_index(owner: Caller) -> None:
    """Every bad field of every queue is reported together."""
    owner.create("q")
    reply = owner.send_json(
        "POST",
        "_read",
        {
            "queues": [
                {"queue_name": "q", "limit": 0, "since": "x"},
                {"queue_name": 5},
                7,
                {"queue_name": "q", "partitions": [1.5], "order": "up"},
                {"queue_name": "q", "partitions": {}, "until": 5},
            ],
            "wait": 30,
        },
    )
    assert reply.status == 400
    assert reply.errors == {
        "wait": "30 is greater than maximum value 20",
        "0.limit": "0 is less than minimum value 1",
        "0.since": '"x" is not a message id, an instant or a cursor',
        "1.queue_name": '"5" is not a string',
        "2": '"7" is not an object',
        "3.partitions": '"[1.5]" is not a list of partitions',
        "3.order": '"up" is not one of ascending, descending',
        "4.partitions": '"{}" is not a string',
        "4.until": '"5" is not a message id, an instant or a cursor',
    }


def test_number_of_queues_is_bounded(owner: Caller) -> None:
    """No queue gives no answer, a hundred are read, one more is refused."""
    owner.create("q")
    assert owner.send_json("POST", "_read", {"queues": []}).json == {"status": "ok", "queues": []}
    hundred = [{"queue_name": "q"}] * 100
    assert len(owner.send_json("POST", "_read", {"queues": hundred}).json["queues"]) == 100
    assert owner.send_json("POST", "_read", {"queues": [*hundred, {"queue_name": "q"}]}).status == 400
