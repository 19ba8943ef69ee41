"""The facade of EmoDB on a real service: every route and every error, on the wire."""

from __future__ import annotations

import http.client
import json
import re
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest

from queuey.client import Client
from tests.acceptance.facades.calls import WAIT, Facade, Reply, find_adjacent_free_ports
from tests.servers.served import Served
from tests.waiting import until

SUCCESS = (200, {"success": True})
BAD_ARGUMENT = "java.lang.IllegalArgumentException"
HOUR = "ttl=3600"


class Emodb:
    """A caller with a key."""

    def __init__(self, served: Served, key: str = "") -> None:
        self._facade = Facade(served.port)
        self.key = key or served.profile.key

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Sends a request with the key; a body other than bytes is sent as JSON."""
        if body is not None:
            headers = {"Content_Type": "application/json", **headers}
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self._facade.call(method, path, raw, **{"X_BV_API_Key": self.key, **headers})

    def get(self, path: str) -> Any:  # noqa: ANN401 - tests look into it
        reply = self.call("GET", path)
        assert reply.status == 200, reply
        assert reply.headers["Content-Type"].startswith("application/json")
        return json.loads(reply.body)

    def call_successfully(self, method: str, path: str, body: object = None) -> None:
        reply = self.call(method, path, body)
        assert (reply.status, json.loads(reply.body)) == SUCCESS

    def call_without_key(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        return self._facade.call(method, path, body, **headers)


@pytest.fixture
def emodb(served: Served) -> Emodb:
    return Emodb(served)


@pytest.fixture
def name() -> str:
    return f"q{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(name: str) -> str:
    return f"/queue/1/{name}"


def refusal_of(reply: Reply) -> tuple[int, str | None, str]:
    return reply.status, reply.headers["X-BV-Exception"], reply.body.decode()


def ids_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in messages]


@pytest.mark.parametrize("base", ["queue", "dedupq"])
def test_every_route(emodb: Emodb, base: str, name: str) -> None:
    """A message goes all ways that there are."""
    path = f"/{base}/1/{name}"
    emodb.call_successfully("POST", f"{path}/send", {"n": 1})
    emodb.call_successfully("POST", f"{path}/sendbatch", [{"n": 2}, {"n": 3}])
    emodb.call_successfully("POST", f"/{base}/1/_sendbatch", {name: [{"n": 4}], f"{name}-too": [{"n": 5}]})
    assert emodb.get(f"{path}/size") == emodb.get(f"{path}/uncached_size") == emodb.get(f"{path}/size?limit=9") == 4
    peeked = emodb.get(f"{path}/peek")
    polled = emodb.get(f"{path}/poll?{HOUR}&limit=10&partitioned=true")
    assert sorted(each["payload"]["n"] for each in peeked) == [1, 2, 3, 4]
    assert sorted(ids_of(peeked)) == sorted(ids_of(polled))
    assert all(re.fullmatch("[0-9a-f]{40}", each) for each in ids_of(polled))
    assert emodb.get(f"{path}/claimcount") == 4
    emodb.call_successfully("POST", f"{path}/renew?ttl=0", ids_of(polled)[:1])
    assert ids_of(emodb.get(f"{path}/poll?{HOUR}")) == ids_of(polled)[:1]
    emodb.call_successfully("POST", f"{path}/ack", ids_of(polled)[:2])
    emodb.call_successfully("POST", f"{path}/unclaimall")
    assert sorted(ids_of(emodb.get(f"{path}/poll?ttl=0&limit=1000"))) == sorted(ids_of(polled)[2:])
    emodb.call_successfully("POST", f"{path}/renew?{HOUR}", ids_of(polled)[2:3])
    assert ids_of(emodb.get(f"{path}/poll?{HOUR}")) == ids_of(polled)[3:]
    emodb.call_successfully("DELETE", path)
    assert emodb.get(f"{path}/size") == emodb.get(f"{path}/claimcount") == 0
    emodb.call_successfully("POST", f"{path}/ack", ids_of(polled))


def test_a_queue_that_is_not_there(emodb: Emodb, queue: str) -> None:
    """A missing queue behaves like an empty one, and only a send creates it."""
    assert emodb.get(f"{queue}/poll") == emodb.get(f"{queue}/peek") == []
    assert emodb.get(f"{queue}/size") == emodb.get(f"{queue}/claimcount") == 0
    emodb.call_successfully("POST", f"{queue}/unclaimall")
    emodb.call_successfully("POST", f"{queue}/ack", [])
    emodb.call_successfully("DELETE", queue)
    assert emodb.call("POST", f"{queue}/send", b"{").status == 400
    assert emodb.call_without_key("GET", f"/v1/queuey/{queue.split('/')[3]}/info").status == 404


def test_queues_are_the_applications_own(emodb: Emodb, native: Client, name: str, queue: str) -> None:
    """Queues of the facade keep messages for 14 days in 8 partitions, and are shared with the service's own API."""
    emodb.call_successfully("POST", f"{queue}/send", {"a": 1})
    emodb.call_successfully("POST", f"/dedupq/1/{name}/send", 1)
    info = native.info(name)
    assert (info.partitions, info.ttl, info.kind) == (8, 14 * 86_400, "plain")
    assert native.info(f"{name}~dedup").kind == "dedup"
    assert [message.body for message in native.job_queue(name).peek()] == [{"a": 1}]
    native.send(name, "text")
    native.send(name, b"\xff\xfe")
    polled = emodb.get(f"{queue}/poll?{HOUR}")
    assert sorted(str(each["payload"]) for each in polled) == ["//4=", "text", "{'a': 1}"]
    emodb.call_successfully("POST", f"{queue}/ack", ids_of(polled))
    assert native.job_queue(name).size().size == 0


@pytest.mark.parametrize(
    "text", ['{"b": 1.0,  "a":[1e2, 12345678901234567890]}', '"\\u00e9 é"', "null", "[]", "-0.0", '{"a":1,"a":2}']
)
def test_payloads_come_back_as_they_were_sent(emodb: Emodb, queue: str, text: str) -> None:
    """Whatever JSON it is, its text is the same, alone and in batches."""
    raw = text.encode()
    emodb.call_successfully("POST", f"{queue}/send", b" " + raw + b"\n")
    [message] = emodb.get(f"{queue}/poll?{HOUR}")
    assert emodb.call("GET", f"{queue}/peek").body == b'[{"id":"%b","payload":%b}]' % (message["id"].encode(), raw)
    emodb.call_successfully("POST", f"{queue}/ack", [message["id"]])
    emodb.call_successfully("POST", f"{queue}/sendbatch", b"[" + raw + b" ]")
    assert b'"payload":%b}' % raw in emodb.call("GET", f"{queue}/peek").body


def test_names(emodb: Emodb, name: str) -> None:
    """Names have up to 255 characters; the kinds, and a name and its underscored one, are apart."""
    for own in (f"{name}.:@-".ljust(255, "x"), f"__{name}".ljust(255, "x")):
        for number, base in enumerate(("queue", "dedupq")):
            emodb.call_successfully("POST", f"/{base}/1/{own}/sendbatch", list(range(number + 1)))
        assert [emodb.get(f"/{base}/1/{own}/size") for base in ("queue", "dedupq")] == [1, 2]
    for wrong in (name.upper(), f"_{name}", name.ljust(256, "x"), f"{name}~dedup", "%C3%A9", "a%20b"):
        status, exception, text = refusal_of(emodb.call("POST", f"/queue/1/{wrong}/send", 1))
        assert (status, exception, text[:30]) == (400, BAD_ARGUMENT, "Queue name must be a lowercase")


def test_a_batch_of_thousands(emodb: Emodb, queue: str) -> None:
    """A batch has any number of messages, and a poll gives up to 1,000 of all partitions."""
    emodb.call_successfully("POST", f"{queue}/sendbatch", list(range(2500)))
    payloads: list[int] = []
    while polled := emodb.get(f"{queue}/poll?{HOUR}&limit=1000"):
        payloads += (each["payload"] for each in polled)
        emodb.call_successfully("POST", f"{queue}/ack", ids_of(polled))
    assert sorted(payloads) == list(range(2500))


def test_keys(emodb: Emodb, queue: str) -> None:
    """A key is in a header or in the query; without one, or with a wrong one, everything is 403."""
    assert emodb.call_without_key("GET", f"{queue}/size?APIKey={emodb.key}").body == b"0"
    refused = [
        emodb.call_without_key("GET", f"{queue}/size"),
        emodb.call_without_key("GET", f"{queue}/poll", X_BV_API_Key="wrong"),
        emodb.call_without_key("GET", f"{queue}/poll", X_BV_API_Key=f"wrong; Application {emodb.key}"),
        emodb.call_without_key("GET", f"{queue}/poll", Authorization=f"Application {emodb.key}"),
        emodb.call_without_key("POST", f"{queue}/send", b"1", Content_Type="application/json"),
        emodb.call_without_key("POST", "/queue/1/_sendbatch", b"{}", Content_Type="application/json"),
        emodb.call_without_key("POST", "/queue/1/_move"),
        emodb.call_without_key("GET", "/queue/1/_move/AAAAAAAAAAAAA"),
        emodb.call_without_key("DELETE", queue),
    ]
    exception = "com.bazaarvoice.emodb.common.api.UnauthorizedException"
    assert {refusal_of(reply) for reply in refused} == {(403, exception, '{"reason":"not authorized"}')}


BIG = b'["' + b"x" * 30_716 + b'"]'


@pytest.mark.parametrize(
    ("method", "path", "body", "text"),
    [
        ("GET", "poll?limit=0", None, "Limit must be >0"),
        ("GET", "poll?ttl=-1", None, "ClaimTtl must be >=0"),
        ("GET", "poll?ttl=3601", None, "ClaimTtl must be <=1 hour"),
        ("GET", "peek?limit=-5", None, "Limit must be >0"),
        ("GET", "peek?limit=1001", None, "Limit must be <=1000"),
        ("POST", "ack", ["xyz"], "Invalid event ID."),
        ("POST", "ack", ["0001" + 32 * "0" + "ffff"], "Invalid event ID checksum."),
        ("POST", "send", BIG + b"x"[:0] + b" ", ""),
        (
            "POST",
            "send",
            b'["x' + BIG[2:],
            "Message size (30721) is greater than the maximum allowed (30720) message size",
        ),
        (
            *("POST", "sendbatch", b'[1, ["x' + BIG[2:] + b"]"),
            "Message size (30721) is greater than the maximum allowed (30720) message size",
        ),
    ],
)
def test_bad_arguments(emodb: Emodb, queue: str, method: str, path: str, body: object, text: str) -> None:
    """Bad arguments are refused in the original's words, and nothing is stored. What just fits is taken."""
    reply = emodb.call(method, f"{queue}/{path}", body)
    if text:
        assert refusal_of(reply) == (400, BAD_ARGUMENT, text)
        assert reply.headers["Content-Type"] == "text/plain"
    else:
        assert reply.status == 200
    assert emodb.get(f"{queue}/size") == (0 if text else 1)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("poll?limit=ten", '"ten" is not a number.'),
        ("poll?ttl=1.5", '"1.5" is not a number.'),
        ("claimcount?partitioned=1", '"1" must be "true" or "false".'),
    ],
)
def test_parameters_of_the_wrong_type(emodb: Emodb, queue: str, path: str, text: str) -> None:
    """Parameters of the wrong type are refused without an exception header."""
    assert refusal_of(emodb.call("GET", f"{queue}/{path}")) == (400, None, text)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("send", b""),
        ("send", b"{"),
        ("send", b'"\xff"'),
        ("send", b"[" * 201 + b"]" * 201),
        ("sendbatch", b'{"a":1}'),
        ("ack", b'{"a":1}'),
        ("ack", b"[1]"),
        ("renew", b"[null]"),
    ],
)
def test_bodies_of_the_wrong_shape(emodb: Emodb, queue: str, path: str, body: bytes) -> None:
    """Bodies of the wrong shape are refused with a message as JSON, and nothing is stored."""
    reply = emodb.call("POST", f"{queue}/{path}", body)
    assert (reply.status, reply.headers["X-BV-Exception"]) == (400, None)
    assert json.loads(reply.body).keys() == {"message"}
    assert emodb.get(f"{queue}/size") == 0


def test_bodies_that_are_not_json(emodb: Emodb, queue: str) -> None:
    """A body without the content type of JSON is 415; a null list of ids is a bad argument."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        assert emodb.call("POST", f"{queue}/send", b"1", Content_Type=kind).status == 415
    assert emodb.call_without_key("POST", f"{queue}/ack", b"[]", X_BV_API_Key=emodb.key).status == 415
    assert refusal_of(emodb.call("POST", f"{queue}/ack", b"null"))[:2] == (400, BAD_ARGUMENT)
    assert emodb.get(f"{queue}/size") == 0


def test_ids_of_another_queue(emodb: Emodb, name: str) -> None:
    """They are refused, the other kind's included, and nothing is done with the other ids of the request."""
    for path in (f"/queue/1/{name}", f"/queue/1/{name}-2", f"/dedupq/1/{name}"):
        emodb.call_successfully("POST", f"{path}/send", 1)
    ids = {path: emodb.get(f"{path}/poll?{HOUR}")[0]["id"] for path in (f"/queue/1/{name}", f"/dedupq/1/{name}")}
    first, second = ids.values()
    for path in (f"/queue/1/{name}", f"/queue/1/{name}-2"):
        assert refusal_of(emodb.call("POST", f"{path}/ack", [first, second])) == (
            400,
            BAD_ARGUMENT,
            "Invalid event ID checksum.",
        )
    assert emodb.get(f"/queue/1/{name}/size") == 1
    emodb.call_successfully("POST", f"/queue/1/{name}/ack", [first.upper(), first])
    assert emodb.get(f"/queue/1/{name}/size") == 0


def test_moves(emodb: Emodb, name: str, queue: str) -> None:
    """A move between missing queues ends soon; plain and dedup queues have references of their own."""
    reply = emodb.call("POST", f"/queue/1/_move?from={name}&to={name}-2")
    reference = json.loads(reply.body)["id"]
    assert re.fullmatch("[A-Z2-7]{13}", reference)
    assert emodb.get(f"/queue/1/_move/{reference}").keys() == {"from", "to", "status"}
    unknown = "com.bazaarvoice.emodb.queue.api.UnknownMoveException"
    for path in ("/queue/1/_move/AAAAAAAAAAAAA", "/queue/1/_move/no-base32", f"/dedupq/1/_move/{reference}"):
        body = json.dumps({"id": path.rsplit("/", 1)[1]}, separators=(",", ":"))
        assert refusal_of(emodb.call("GET", path)) == (404, unknown, body)
    assert refusal_of(emodb.call("POST", f"/queue/1/_move?from={name}&to={name}")) == (
        400,
        BAD_ARGUMENT,
        "cannot move queue to itself",
    )
    for query in (f"from={name}", f"to={name}", "", f"from=&to={name}", f"from={name}&to=Upper"):
        assert refusal_of(emodb.call("POST", f"/queue/1/_move?{query}"))[:2] == (400, BAD_ARGUMENT)
    reference = json.loads(emodb.call("POST", f"/dedupq/1/_move?from={name}&to={name}-2").body)["id"]
    shown = emodb.get(f"/dedupq/1/_move/{reference}")
    assert (shown["from"], shown["to"]) == (name, f"{name}-2")
    assert refusal_of(emodb.call("GET", f"/queue/1/_move/{reference}"))[:2] == (404, unknown)


def test_other_paths(emodb: Emodb, queue: str) -> None:
    """Ping needs no key; other methods and paths are not there."""
    assert emodb.call_without_key("GET", "/ping").body == b"pong"
    for method, path in (("GET", f"{queue}/send"), ("GET", queue), ("GET", f"{queue}/nothing"), ("POST", "/queue/1/")):
        assert emodb.call(method, path).status == 404


def test_alone(tmp_path: Path) -> None:
    """Alone it has nothing of the service's own API, and the start says how to make a key."""
    with Served(tmp_path, ["--facade", "emodb", "--app", "queuey"], port=find_adjacent_free_ports()) as served:
        assert Facade(served.port).call("GET", "/v1/queuey").status == 404
        until(lambda: "queuey app key-add queuey" in served.output)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The service does not start where clients could not ask for its health."""
    port = find_adjacent_free_ports()
    with socket.create_server(("127.0.0.1", port + 1)):
        refused = Served(tmp_path, ["--facade", "emodb"], port=port)
        try:
            assert refused.end() == 3
            assert f"cannot listen on 127.0.0.1:{port + 1}" in refused.output
        finally:
            refused.kill()


def test_health(served: Served) -> None:
    """The port above the service's accepts connections, and does nothing else."""
    for method, path, status, body in (
        ("HEAD", "/healthcheck", 200, b""),
        ("GET", "/healthcheck", 200, b'{"queuey":{"healthy":true}}'),
        ("GET", "/other", 404, b"{}"),
        ("POST", "/healthcheck", 404, b"{}"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", served.port + 1, timeout=WAIT)
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, body)
        connection.close()
