"""What a client does when servers fail: which calls it repeats, on which server, and after how long."""

from __future__ import annotations

import traceback
from typing import Any

import httpcore2
import httpx2
import pytest

from queuey import client as queuey_client
from queuey.client import (
    ApiError,
    ConnectionFailed,
    ConnectionLost,
    InvalidAnswer,
    QueueNotFound,
    RetryPolicy,
    ServerError,
    ServiceUnavailable,
)
from tests.client.conftest import Connect
from tests.client.scripted import (
    KEY,
    ONE,
    TWO,
    Reply,
    Script,
    break_connection,
    busy,
    in_use,
    message_id,
    page,
    receipts,
    refuse_connection,
    too_many,
)
from tests.client.scripted import time_out as no_answer

BOTH = f"{ONE},{TWO}"
ID = message_id(1)


def no_connection_in_time(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectTimeout("timed out", request=request)


SENDS = [("send", ("q", "body")), ("send_many", ("q", ["body"]))]


@pytest.mark.parametrize(
    "failure",
    [
        refuse_connection,
        break_connection,
        no_answer,
        busy(),
        busy(outcome="unknown"),
        httpx2.Response(502),
        too_many(1),
        in_use(1),
    ],
    ids=["refused", "broken", "silent", "503", "503 unknown", "502", "429", "in use"],
)
@pytest.mark.parametrize(("method", "args"), SENDS, ids=[name for name, _ in SENDS])
def test_a_send_is_repeated_under_its_key(
    connect: Connect, failure: Reply, method: str, args: tuple[object, ...]
) -> None:
    """A send is sent again after every kind of failure, to any server, unchanged and with the same key."""
    script = Script(failure, failure, receipts())
    client = connect(script, BOTH)
    getattr(client, method)(*args)
    first, *repeated = [(request.headers["idempotency-key"], request.content) for request in script.requests]
    assert repeated == [first, first]
    getattr(client, method)(*args)
    assert script.requests[-1].headers["idempotency-key"] > first[0]


@pytest.mark.parametrize(
    "options", [{"retry": RetryPolicy(deadline=0)}, {"key": KEY, "idempotent": False}], ids=["no deadline", "by choice"]
)
@pytest.mark.parametrize(("method", "args"), SENDS, ids=[name for name, _ in SENDS])
def test_a_send_without_a_key_is_not_repeated(
    connect: Connect, options: dict[str, Any], method: str, args: tuple[object, ...]
) -> None:
    """Where a send has no key it goes out once if it may have been carried out."""
    script = Script(break_connection)
    with pytest.raises(ConnectionLost):
        getattr(connect(script, BOTH, **options), method)(*args)
    (request,) = script.requests
    assert "idempotency-key" not in request.headers


def test_a_key_of_the_callers_own(connect: Connect) -> None:
    """The caller's key is sent in the same form each time, even where the client would make none, and is repeated."""
    script = Script(break_connection, receipts())
    client = connect(script, BOTH, idempotent=False)
    client.send("q", "body", idempotency_key='order "4711" \\ Koeln')
    assert [request.headers["idempotency-key"] for request in script.requests] == [r'"order \"4711\" \\ Koeln"'] * 2


@pytest.mark.parametrize("last", [refuse_connection, busy(outcome="none"), httpx2.Response(403, text="403 Forbidden")])
def test_a_send_in_doubt_stays_in_doubt(connect: Connect, last: Reply) -> None:
    """If an earlier attempt may have stored the message, the error of the last one says that the outcome is unknown."""
    with pytest.raises(queuey_client.ClientError) as caught:
        connect(Script(break_connection, last), retry=RetryPolicy(deadline=1)).send("q", "body")
    assert (caught.value.in_doubt, getattr(caught.value, "outcome", None)) == (True, "unknown")


def test_a_key_that_stays_in_use(connect: Connect) -> None:
    """The client waits as long as the server says, and gives up in the end."""
    script = Script(in_use(3))
    with pytest.raises(queuey_client.KeyInUse) as caught:
        connect(script, retry=RetryPolicy(deadline=8, base=0)).send("q", "body")
    assert script.slept == [3, 3]
    assert caught.value.temporary


def test_a_key_of_another_post(connect: Connect) -> None:
    """A key that is refused is not tried again."""
    answer = httpx2.Response(422, json={"status": "error", "error_msg": {"idempotency_key": "belongs to another post"}})
    script = Script(answer)
    with pytest.raises(queuey_client.KeyReused) as caught:
        connect(script).send("q", "body")
    assert (caught.value.code, len(script.requests)) == ("IdempotencyKeyReused", 1)


@pytest.mark.parametrize(
    "failure",
    [
        refuse_connection,
        no_connection_in_time,
        busy(outcome="none"),
        busy(outcome="none", outcomes=["none", "none"]),
        busy(error_msg={"TooManyWaiters": "full"}),
    ],
    ids=["refused", "no connection in time", "503 none", "503 all none", "too many waiters"],
)
def test_what_certainly_was_not_done_is_done_again(connect: Connect, failure: Reply) -> None:
    """A post is sent again when nothing was sent, or when the server vouches that nothing was stored."""
    script = Script(failure, receipts())
    assert connect(script).send("q", "body").id == ID
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    "failure", [busy(1, outcome="none", outcomes=["none", "unknown"]), httpx2.Response(502)], ids=["partly", "502"]
)
def test_what_may_have_been_done_is_not_done_again(connect: Connect, failure: Reply) -> None:
    """A call that changes something goes out once if it may have been carried out, however many servers there are."""
    script = Script(failure)
    with pytest.raises(ServerError):
        connect(script, BOTH).purge_queue("q")
    assert (len(script.requests), script.slept) == (1, [])


def test_a_server_error_is_not_repeated(connect: Connect) -> None:
    """A plain 500 means that this request fails here, so not even a read is repeated."""
    script = Script(httpx2.Response(500, json={"status": "error", "error_msg": {"InternalError": "crash id 1"}}))
    with pytest.raises(queuey_client.ServerError, match="crash id 1"):
        connect(script).read("q")
    assert len(script.requests) == 1


def test_pauses_grow_and_end(connect: Connect) -> None:
    """Pauses double up to the cap; the last attempt is a second before the deadline, and then the error is raised."""
    script = Script(refuse_connection)
    with pytest.raises(ConnectionFailed) as caught:
        connect(script, retry=RetryPolicy(base=1, cap=5)).read("q")
    assert script.slept == [1, 2, 4, 5, 5, 5, 5, 2]
    assert caught.value.outcome == "none"
    assert caught.value.server == "http://one.example:5000"


def test_retry_after_is_respected_with_a_cap(connect: Connect) -> None:
    """A client waits as long as it is asked to, jitter on top, but not beyond its cap."""
    script = Script(busy(7), busy(3600), page(1))
    connect(script, retry=RetryPolicy(base=1, retry_after_cap=20, deadline=60)).read("q")
    assert script.slept == [7 + 1, 20 + 2]


def test_too_many_requests_are_sent_again_when_the_server_says(connect: Connect) -> None:
    """A 429 that vouches that nothing was done delays a write and does not fail it; any other may have been done."""
    script = Script(too_many(9, outcome="none"), receipts())
    connect(script).send("q", "a")
    assert len(script.slept) == 1
    assert 9 <= script.slept[0] < 10
    with pytest.raises(ServerError):
        connect(script := Script(too_many(9))).purge_queue("q")
    assert len(script.requests) == 1


def test_retry_after_may_be_a_date(connect: Connect) -> None:
    """A date is measured against the server's own clock."""
    headers = {"date": "Thu, 01 Jan 2026 00:00:00 GMT", "retry-after": "Thu, 01 Jan 2026 00:00:09 GMT"}
    script = Script(httpx2.Response(503, headers=headers), page(1))
    connect(script, retry=RetryPolicy(base=0)).read("q")
    assert script.slept == [9]


@pytest.mark.parametrize("text", ["soon", "-1", "1e9", "²", "Thu, 99 Jan"])
def test_a_senseless_retry_after_is_ignored(connect: Connect, text: str) -> None:
    """What cannot be read as seconds or a date asks for nothing."""
    script = Script(httpx2.Response(503, headers=[(b"retry-after", text.encode())]), page(1))
    connect(script, retry=RetryPolicy(base=0)).read("q")
    assert sum(script.slept) == 0


def test_the_deadline_bounds_the_wait_for_an_answer(connect: Connect) -> None:
    """What is left until the deadline is all that a server gets to answer, time it was asked to wait aside."""
    script = Script(busy(25), page(1))
    connect(script, retry=RetryPolicy(base=0, deadline=30)).read("q")
    first, second = (request.extensions["timeout"]["read"] for request in script.requests)
    assert (first, second) == (10, 5)
    script = Script(page(1))
    connect(script).read("q", wait=20)
    assert script.requests[0].extensions["timeout"]["read"] == 30
    assert script.requests[0].extensions["timeout"]["connect"] == 5


@pytest.mark.parametrize("failure", [refuse_connection, break_connection, no_answer, no_connection_in_time])
def test_another_server_is_asked_at_once(connect: Connect, failure: Reply) -> None:
    """A read goes to the next server without a pause when one does not answer."""
    script = Script(failure, page(1))
    connect(script, BOTH).read("q")
    assert sorted(script.hosts) == ["one", "two"]
    assert script.slept == []


def test_a_busy_server_is_given_a_rest(connect: Connect) -> None:
    """After 503 another server is tried; Retry-After binds only the server that sent it."""
    script = Script(busy(20, outcome="none"), receipts())
    connect(script, BOTH, retry=RetryPolicy(base=1)).send("q", "body")
    assert sorted(script.hosts) == ["one", "two"]
    assert script.slept == [1]


def test_the_key_shows_nowhere(connect: Connect) -> None:
    """Neither reprs nor errors, causes included, show the key; it travels in its header only."""
    script = Script(break_connection)
    client = connect(script, retry=RetryPolicy(deadline=0))
    with pytest.raises(ConnectionLost) as caught:
        client.send("q", "body")
    shown = repr(client) + "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert KEY not in shown
    (request,) = script.requests
    assert request.headers["authorization"] == f"Application {KEY}"
    assert KEY not in str(request.url)


def test_transport_errors_of_the_library_never_leak(connect: Connect) -> None:
    """Whatever a transport raises arrives as an error of the client, with the cause kept."""
    names = ("WriteError", "ReadError", "PoolTimeout", "LocalProtocolError", "ProxyError")
    for kind in [getattr(library, name) for library in (httpx2, httpcore2) for name in names]:
        script = Script(kind("oops"))
        with pytest.raises(queuey_client.TransportError) as caught:
            connect(script, retry=RetryPolicy(deadline=0)).send("q", "body")
        assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, text="<html>hello</html>"),
        httpx2.Response(200, json=[]),
        httpx2.Response(200, json={"messages": 5}),
        httpx2.Response(200, content=b"[" * 100_000),
        httpx2.Response(200, content=b"\xff"),
        httpx2.Response(302, headers={"location": "http://elsewhere.example/"}),
        page(1, messages=[{"message_id": "x", "timestamp": "1", "partition": 1, "body": "?", "encoding": "base64"}]),
        page(1, messages=[{"message_id": "x", "timestamp": "1", "partition": 1, "body": "", "encoding": "rot13"}]),
        page(1, messages=[{"message_id": "g" * 32, "timestamp": "1.0000000", "partition": 1, "body": ""}]),
    ],
    ids=["html", "list", "shape", "deep", "bytes", "redirect", "not base64", "encoding", "id"],
)
def test_answers_of_something_else_are_refused(connect: Connect, answer: httpx2.Response) -> None:
    """An answer that no Queuey gives is an InvalidAnswer, asked for once; redirects are not followed."""
    script = Script(answer)
    with pytest.raises(InvalidAnswer):
        connect(script).read("q")
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "code", "fields"),
    [
        (
            httpx2.Response(400, json={"error_msg": {"1.partition": "too high", "0.ttl": "no"}}),
            queuey_client.InvalidRequest,
            "InvalidParameter",
            {"1.partition": "too high", "0.ttl": "no"},
        ),
        (
            httpx2.Response(404, json={"error_msg": {"InvalidQueueName": "gone"}}),
            QueueNotFound,
            "InvalidQueueName",
            {"InvalidQueueName": "gone"},
        ),
        (
            httpx2.Response(413, json={"code": "TooLarge", "errors": {"body": "too long"}}),
            queuey_client.TooLarge,
            "TooLarge",
            {"body": "too long"},
        ),
        (httpx2.Response(403, text="Access was denied"), queuey_client.NotAllowed, "Forbidden", {}),
        (httpx2.Response(404, text="no"), queuey_client.NotFound, "NotFound", {}),
        (httpx2.Response(401, json={"code": "InvalidApplicationKey"}), queuey_client.NotAuthenticated, None, {}),
        (httpx2.Response(409, json={"code": "QueueExists", "errors": {}}), queuey_client.QueueExists, None, {}),
        (httpx2.Response(404, json={"code": "InvalidGroupName"}), queuey_client.GroupNotFound, None, {}),
        (httpx2.Response(404, json={"code": "InvalidMessageID"}), queuey_client.MessageNotFound, None, {}),
        (httpx2.Response(404, json={"code": "InvalidApplicationName"}), queuey_client.ApplicationNotFound, None, {}),
        (httpx2.Response(418, json="teapot"), ApiError, "Error", {}),
        (httpx2.Response(400, json={"error_msg": "bare"}), queuey_client.InvalidRequest, None, {"": "bare"}),
    ],
)
def test_refusals_become_the_fitting_error(
    connect: Connect, answer: httpx2.Response, kind: type[ApiError], code: str | None, fields: dict[str, str]
) -> None:
    """Every form in which a server refuses gives an error of the fitting class with status, code and fields."""
    with pytest.raises(ApiError) as caught:
        connect(Script(answer)).send("q", "body")
    error = caught.value
    assert type(error) is kind
    assert error.status == answer.status_code
    assert code is None or error.code == code
    assert error.fields == fields
    assert str(answer.status_code) in str(error)


def test_a_batch_tells_the_outcome_of_each_message(connect: Connect) -> None:
    """A 503 for a batch has the outcome of each message, and how long to wait."""
    script = Script(busy(3, outcome="unknown", outcomes=["none", "unknown"]))
    with pytest.raises(ServiceUnavailable) as caught:
        connect(script, retry=RetryPolicy(deadline=0)).send_many("q", ["a", "b"])
    assert caught.value.outcome == "unknown"
    assert caught.value.outcomes == ("none", "unknown")
    assert caught.value.retry_after == 3


@pytest.mark.parametrize(("code", "same"), [("TooManyWaiters", True), ("StoreBusy", False)])
def test_only_a_failing_server_is_put_to_rest(connect: Connect, code: str, same: bool) -> None:  # noqa: FBT001 - a parameter
    """No room for another long poll says nothing about other calls to that server; a busy store does."""
    script = Script(httpx2.Response(503, json={"code": code}), page(1))
    client = connect(script, BOTH, retry=RetryPolicy(deadline=0))
    with pytest.raises(ServiceUnavailable):
        client.read("q", wait=5)
    client.read("q")
    assert (script.hosts[0] == script.hosts[1]) is same
