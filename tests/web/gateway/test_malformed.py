"""Every malformed request gets a 400 or a 404 with the reason; the original answered many of these with 500."""

from __future__ import annotations

import itertools

import pytest

from tests.web.caller import Caller
from tests.web.gateway_calls import Request, serve

pytestmark = pytest.mark.one_app

JSON = {"Content-Type": "application/json"}
ID = "ab" * 6 + "1bcd8" + "0" * 15
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def queue(owner: Caller) -> str:
    return owner.create("q", partitions=2)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=1001", {"limit"}),
        ("limit=" + "9" * 5000, {"limit"}),
        ("partitions=-1", {"partitions"}),
        ("partitions=%D9%A3", {"partitions"}),
        ("partitions=*,1", {"partitions"}),
        ("wait=nan", {"wait"}),
        ("since=%FF", {"query"}),
        ("since=1e9&until=1:1517363399&after=%D9%A1", {"since", "until", "after"}),
        (f"since=1:{ID},&before={ID[:-1]}", {"since", "before"}),
        ("&".join(["a=1"] * 300), {"query"}),
        ("limit=0&order=x&since=y&wait=z&partitions=q", {"limit", "order", "since", "wait", "partitions"}),
    ],
)
def test_parameters_of_a_read(owner: Caller, queue: str, query: str, named: set[str]) -> None:
    """Every bad parameter is named, all at once."""
    reply = owner("GET", f"{queue}?{query}")
    assert (reply.status, set(reply.errors)) == (400, named)


@pytest.mark.parametrize(
    "ids",
    [
        ID + ",",
        f"1:2:{ID}",
        "ab" * 6 + "4bcd8" + "0" * 15,
        "ab" * 6 + "1bcd0" + "0" * 15,
        f"%D9%A3:{ID}",
        ",".join([ID] * 1001),
    ],
)
def test_ids(owner: Caller, queue: str, ids: str) -> None:
    """Malformed ids in the path are refused as such, for every method."""
    for method in ("GET", "PUT", "DELETE"):
        reply = owner(method, f"{queue}/{ids}", "x" if method == "PUT" else "")
        assert (reply.status, list(reply.errors)) == (400, ["InvalidMessageID"]), method


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "{}",
        '{"messages":[{"body":NaN}]}',
        '{"messages":[{"body":{"a":"\\udfff"}}]}',
        b'{"messages":[{"body":"\xff"}]}',
        '{"messages":[{"body":"a"}]} x',
        '{"messages":[{"body":"a\n"}]}',
        '{"messages":' + DEEP + "}",
        "messages=1",
    ],
    ids=lambda body: str(body[:40]),
)
def test_batches_that_are_not_json(owner: Caller, queue: str, body: str | bytes) -> None:
    """A body that is not a JSON object with messages is refused in the words of the original, and with the reason."""
    reply = owner("POST", queue, body, headers=JSON)
    assert reply.status == 400
    # From Python 3.14 on the stack, not a count, limits how deep JSON is read.
    assert reply.errors in ({"messages": "Is not a list"}, {"0": "Is not an object"}) or (
        reply.errors["InvalidParameter"].startswith("Unable to properly deserialize JSON body. ")
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "", '{"partitions":%s}', "partitions"),
        ("PUT", "q", '{"ttl":%s}', "ttl"),
        ("POST", "q", '{"messages":[{"body":"a","ttl":%s}]}', "0.ttl"),
        ("POST", "_read", '{"queues":[{"queue_name":"q","limit":%s}]}', "0.limit"),
        ("POST", "_read", '{"queues":[],"wait":%s}', "wait"),
    ],
)
def test_huge_integers(owner: Caller, queue: str, method: str, path: str, body: str, field: str) -> None:
    """A whole number of any length is refused by the name of its field, or as JSON that others could not read."""
    for sign, digits in itertools.product(("", "-"), (19, 310, 4300, 4301)):
        reply = owner(method, path, body % (sign + "9" * digits), headers=JSON)
        assert (reply.status, len(reply.body) < 300) == (400, True)
        assert list(reply.errors) in ([field], ["InvalidParameter"], ["0"])


@pytest.mark.parametrize(("method", "path"), [("POST", ""), ("PUT", "q"), ("POST", "q/claims/ack"), ("POST", "_read")])
def test_json_bodies(owner: Caller, queue: str, method: str, path: str) -> None:
    """A JSON body that is not an object is refused; an empty one has no fields, which some resources allow."""
    bodies: list[str | bytes] = ["{", "[]", "5", DEEP, '{"a":"\\ud800"}', b'{"a":"\xff"}', '{"a":NaN}']
    for body in bodies:
        reply = owner(method, path, body, headers=JSON)
        assert (reply.status, list(reply.errors)) == (400, ["InvalidParameter"]), body[:20]
    empty = owner(method, path, "", headers=JSON)
    if path in {"", "q"}:
        assert empty.status in {200, 201}
    else:
        assert (empty.status, list(empty.errors)) == (400, ["InvalidParameter"])


@pytest.mark.parametrize("length", ["abc", "-1", "1.5", "0x10", "٣", "9" * 40, "+5", " ", "5 5", "5,5", "5 ,", "5\x0b"])
def test_content_length(owner: Caller, queue: str, length: str) -> None:
    """A Content-Length that is not a number is refused."""
    reply = owner("POST", queue, "hello", headers={"Content-Length": length})
    assert (reply.status, [name.lower() for name in reply.errors]) == (400, ["content-length"])


@pytest.mark.parametrize(("before", "after"), [("", " "), (" ", ""), ("", "\t"), ("\t ", " \t")])
def test_white_space_around_a_value(owner: Caller, before: str, after: str) -> None:
    """White space around the value of a header is not part of it, whichever header it is (RFC 9110, 5.5)."""
    queue = owner.create("padded", partitions=2, kind="ordered")
    plain = {"Content-Length": "5", "Content-Type": "text/plain", "X-TTL": "60", "X-Message-Key": "a"}
    plain |= {"Idempotency-Key": "k", "X-Header-Note": "b"}
    padded = {name: f"{before}{value}{after}" for name, value in plain.items()}
    owner.authorization = f"{before}{owner.authorization}{after}"
    [first], [again] = [owner("POST", queue, "hello", headers=headers).messages for headers in (plain, padded)]
    assert first == again
    [stored] = owner("POST", f"{queue}/claims", b"").messages
    assert (stored["message_key"], stored["content_type"], stored["headers"]) == ("a", "text/plain", {"note": "b"})


def test_endless_body_is_not_read(owner: Caller, queue: str) -> None:
    """A body without a length is 413 as soon as it passes the limit."""
    pieces = [bytes(1000)] * 10_000
    request = Request(path=f"/v1/queuey/{queue}", body=pieces)
    assert serve(owner.app).reply_to(request).status == 413
    longest = owner.app.service.limits.max_batch_bytes
    assert 1000 * (len(pieces) - len(request.pieces)) <= longest + 1000


@pytest.mark.parametrize("path", ["/v1/queuey/q/1/2", "/v1/%FF", "/v1/queuey/q/offsets/a/b"])
def test_paths_that_lead_nowhere(owner: Caller, queue: str, path: str) -> None:
    """An unknown path is a 404 that says where to find the paths, also when it is not UTF-8."""
    reply = owner("GET", path)
    assert (reply.status, list(reply.errors)) == (404, ["NotFound"])
    assert reply.errors["NotFound"].startswith(path)
    assert "/v1/openapi.json" in reply.errors["NotFound"]


@pytest.mark.parametrize(
    ("path", "methods", "others"),
    [
        ("", "GET, POST", "HEAD PUT DELETE PATCH OPTIONS"),
        ("q", "DELETE, GET, POST, PUT", "HEAD PATCH OPTIONS"),
        ("q/", "DELETE, GET, POST, PUT", "HEAD"),
        (f"q/{ID}", "DELETE, GET, PUT", "HEAD POST PATCH OPTIONS"),
    ],
)
def test_methods_that_a_resource_of_the_originals_does_not_have(
    owner: Caller, queue: str, path: str, methods: str, others: str
) -> None:
    """What the original had answers 404 to every other method, HEAD included, and says which ones there are."""
    for method in [*others.split(), "BREW"]:
        reply = owner(method, path)
        assert (reply.status, reply.headers["Allow"]) == (404, methods), method


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("q/info", "GET, HEAD, OPTIONS"),
        ("q/messages", "DELETE, OPTIONS"),
        ("q/offsets/g", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("_read", "OPTIONS, POST"),
        ("/", "GET, HEAD, OPTIONS"),
    ],
)
def test_methods_that_other_resources_do_not_have(owner: Caller, queue: str, path: str, methods: str) -> None:
    """Other methods are 405, which lists the allowed ones, and so does OPTIONS; HEAD is GET without its body."""
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"} - set(methods.split(", ")):
        reply = owner(method, path)
        assert (reply.status, reply.headers["Allow"]) == (405, methods), method
        if method != "HEAD":
            assert list(reply.errors) == ["MethodNotAllowed"]
    options = owner("OPTIONS", path)
    assert (options.status, options.headers["Allow"], options.text) == (200, methods, methods)
    if "HEAD" in methods:
        put = owner.send_json("PUT", "q/offsets/g", {"partitions": {"1": {"offset": ID}}})
        assert put.status == 200
        got, head = owner("GET", path), owner("HEAD", path)
        assert (head.status, head.body, head.headers["Content-Type"]) == (200, b"", got.headers["Content-Type"])
        assert head.headers["Content-Length"] == str(len(got.body))


def test_long_names(owner: Caller) -> None:
    """A name longer than any queue's is 404."""
    assert owner.get("x" * 51).status == 404
    assert owner.get("x" * 100_000).status == 404
    assert owner.get("/v1/" + "x" * 100_000).status == 404
