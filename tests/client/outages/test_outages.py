"""Every kind of call, and every loop of the clients, against a service that fails for a while or for good.

A call that may be repeated goes on for the policy's deadline, one with its own timeout until then, and a loop until it
is ended. What may have been done and must not be repeated fails at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from queuey.client import ClientError, NotAuthenticated, Receipt, ResultTimeout, RetryPolicy, TokenError, TransportError
from queuey.client.calls.live_reads import Streaming
from tests.client.conftest import Connect
from tests.client.outages.service import FAULTS, FIRST, BrokenStream, Outage
from tests.client.scripted import KEY, ONE, TWO, Script

Call = Callable[[Any], Any]
RECEIPT = Receipt(FIRST, "1.0", 1)
DEADLINE = 30


def first(iterator: Any) -> Any:  # noqa: ANN401 - of any loop
    return next(iter(iterator))


def result(client: Any, timeout: float | None) -> Any:  # noqa: ANN401 - either client, any result
    if not hasattr(client, "_wait"):
        return client._jobs.result("q", RECEIPT, timeout)
    return client._wait(client._client._jobs.result("q", RECEIPT, timeout))


CALLS: dict[str, Call] = {
    "read": lambda client: client.read("q"),
    "read_queues": lambda client: client.read_queues(["q"]),
    "get": lambda client: client.get("q", FIRST),
    "send": lambda client: client.send("q", "body"),
    "send with a key": lambda client: client.send("q", "body", idempotency_key="order 4711"),
    "send_many": lambda client: client.send_many("q", ["body"]),
    "put": lambda client: client.put("q", FIRST, "body"),
    "delete": lambda client: client.delete("q", FIRST),
    "mark_read": lambda client: client.mark_read("q", FIRST),
    "unread": lambda client: client.unread(),
    "groups": lambda client: client.groups("q"),
    "heartbeat": lambda client: client.heartbeat(),
    "receive": lambda client: client.job_queue("q").receive(),
    "ack": lambda client: client.job_queue("q").ack("r1"),
    "renew": lambda client: client.job_queue("q").renew("r1"),
    "release": lambda client: client.job_queue("q").release("r1"),
    "status": lambda client: client.job_queue("q").status(RECEIPT),
    "show a move": lambda client: client.moving("0" * 16).show(),
    "result": lambda client: result(client, None),
}
"""Calls that may be repeated."""
TRIED = [*itertools.product(("read", "send", "result"), FAULTS), *((name, "accepts and breaks") for name in CALLS)]
"""Calls with faults: three with every fault, and each with one after which a call may have been done."""
ONCE: dict[str, Call] = {
    "create_queue": lambda client: client.create_queue("q"),
    "update_queue": lambda client: client.update_queue("q"),
    "delete_group": lambda client: client.delete_group("q", "g"),
    "purge_queue": lambda client: client.purge_queue("q"),
    "delete_queue": lambda client: client.delete_queue("q"),
    "commit": lambda client: client.commit("q", "g", {1: FIRST}),
}
"""Calls that may be repeated only if they certainly did nothing."""
LOOPS: dict[str, Call] = {
    "tail": lambda client: first(client.tail("q", since=0)),
    "tail of new messages": lambda client: first(client.tail("q")),
    "stream": lambda client: first(client.stream("q")),
    "claim": lambda client: first(client.job_queue("q").claim()),
    "result with a timeout": lambda client: result(client, 60),
    "wait for a move": lambda client: client.moving("0" * 16).wait(60),
}
"""What goes on until its own timeout, or without an end."""


def wait_of(name: str) -> float:
    """Returns the seconds that a call asks the service to wait. They are added to the deadline."""
    return 20 if name == "result" else 0


@pytest.mark.parametrize(("name", "fault"), dict.fromkeys(TRIED))
def test_a_service_that_is_back_after_twenty_seconds(connect: Connect, name: str, fault: str) -> None:
    """A call that may be repeated succeeds once the service works again, after a few attempts only."""
    service = Outage(fault, 20)
    CALLS[name](connect(service))
    assert 20 <= service.elapsed <= DEADLINE + wait_of(name)
    assert len(service.requests) <= 12


@pytest.mark.parametrize(("name", "fault"), dict.fromkeys(TRIED))
def test_a_service_that_stays_away(connect: Connect, name: str, fault: str) -> None:
    """A call that may be repeated ends with an error at the deadline, neither much earlier nor later."""
    service = Outage(fault)
    with pytest.raises(ClientError) as caught:
        CALLS[name](connect(service))
    assert DEADLINE - 1.1 <= service.elapsed - wait_of(name) <= DEADLINE + 0.1
    assert caught.value.temporary
    if name == "send":
        outcome = "none" if fault in {"refuses", "is busy"} else "unknown"
        assert caught.value.outcome == outcome  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "fault"),
    dict.fromkeys([*((name, "is silent") for name in ONCE), *(("commit", fault) for fault in FAULTS)]),
)
def test_what_may_have_been_done_fails_at_once(connect: Connect, name: str, fault: str) -> None:
    """A call that must not be repeated says ``unknown`` at once if it may have been done, else it is repeated."""
    service = Outage(fault)
    with pytest.raises(ClientError) as caught:
        ONCE[name](connect(service))
    if fault in {"refuses", "is busy"}:
        assert service.elapsed >= DEADLINE - 1.1
    else:
        assert (len(service.requests), service.slept) == (1, [])
        assert isinstance(caught.value, TransportError)
        assert caught.value.outcome == "unknown"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_outlasts_an_outage(connect: Connect, name: str, fault: str) -> None:
    """What follows, claims or waits goes on when the service works again after longer than the deadline."""
    service = Outage(fault, 50)
    LOOPS[name](connect(service))
    assert 50 <= service.elapsed <= 50 + 20 + 10 + 6  # A request that is held, its timeout, and a pause.
    assert len(service.requests) <= 20


@pytest.mark.parametrize("fault", FAULTS)
def test_patience_is_a_time(connect: Connect, fault: str) -> None:
    """A loop gives up after ``patience`` seconds of failure, not after a number of attempts."""
    loops: tuple[Call, ...] = (
        lambda client: client.tail("q", since=0, wait=5, patience=100),
        lambda client: client.stream("q", patience=100),
        lambda client: client.job_queue("q").claim(patience=100),
    )
    for loop in loops:
        service = Outage(fault)
        with pytest.raises(ClientError):
            first(loop(connect(service)))
        # A silent service is known to fail when the first request has timed out, which is up to 60 s for a stream.
        began = service.times[0] if fault != "is silent" else service.times[1]
        assert 99.9 - 6 * (fault == "is silent") <= service.elapsed - began <= 100 + 61 * (fault == "is silent")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_result_ends_at_its_timeout(connect: Connect, fault: str) -> None:
    """``result`` with a timeout ends then, with the reason, however the service fails; so does ``wait`` of a move."""
    for timeout in (3, 12, 75):
        service = Outage(fault)
        with pytest.raises(ResultTimeout, match="has not ended in time: ") as caught:
            result(connect(service), timeout)
        assert isinstance(caught.value.__cause__, ClientError)
        assert timeout <= service.elapsed <= timeout + 2.1
        service = Outage(fault)
        with pytest.raises(ClientError):
            connect(service).moving("0" * 16).wait(timeout)
        assert timeout <= service.elapsed <= timeout + 2


def test_without_a_deadline_nothing_waits(connect: Connect) -> None:
    """A policy with a deadline of 0 sends a call once, to each server that is not known to fail."""
    for urls, requests in ((ONE, 1), (f"{ONE},{TWO}", 2)):
        service = Outage("refuses")
        with pytest.raises(TransportError):
            connect(service, urls, retry=RetryPolicy(deadline=0)).read("q")
        assert (len(service.requests), service.slept) == (requests, [])


def test_another_policy_over_the_same_connections(connect: Connect) -> None:
    """``with_retry`` changes how long calls go on, and nothing else: the first client keeps its policy and its key."""
    service = Outage("refuses")
    patient = connect(service, retry=RetryPolicy(deadline=100))
    hasty = patient.with_retry(RetryPolicy(deadline=0))
    for client, least, most in ((hasty, 0, 0), (patient, 98, 100), (hasty, 98, 100)):
        with pytest.raises(TransportError):
            client.send("q", "body")
        assert least <= service.elapsed <= most
    first_sent, *_, last_sent = service.requests
    assert {request.headers["authorization"] for request in service.requests} == {f"Application {KEY}"}
    assert ["idempotency-key" in request.headers for request in (first_sent, last_sent)] == [False, False]
    assert all("idempotency-key" in request.headers for request in service.requests[1:-1])


# Streams

BEGIN = b"retry: 4000\n\n"
EVENTS = {
    "no byte": b"",
    "no event": BEGIN,
    "the start": BEGIN + b"id: c0\n\n",
    "a keep-alive": BEGIN + b"id: c0\n\n:\n\n",
    "a reason": b'event: bye\ndata: {"detail": "The service ends."}\n\n',
    "an error": b'event: bye\ndata: {"status": 503, "detail": "busy"}\n\n',
}


class Cutting(Script):
    """A service whose streams end after these events, properly or not."""

    def __init__(self, events: bytes, *, properly: bool, limit: float) -> None:
        super().__init__()
        self._events, self._properly, self._end = events, properly, self.now + limit
        self.times: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.times.append(self.now - 1000)
        if self.now >= self._end:
            return httpx2.Response(403)
        content = {"content": self._events} if self._properly else {"stream": BrokenStream(self._events)}
        return httpx2.Response(200, **content)


@pytest.mark.parametrize("properly", [True, False], ids=["ends", "breaks"])
@pytest.mark.parametrize("events", EVENTS)
def test_a_stream_that_is_cut_again_and_again(connect: Connect, events: str, properly: bool) -> None:  # noqa: FBT001 - a parameter
    """It connects again after the time that the service asks for; without an event its pauses also grow."""
    service = Cutting(EVENTS[events], properly=properly, limit=60)
    with pytest.raises(ClientError):
        first(connect(service).stream("q"))
    pauses = [round(later - sooner, 6) for sooner, later in itertools.pairwise(service.times)]
    asked = 4 if EVENTS[events].startswith(BEGIN) else 1
    assert min(pauses) >= asked
    assert max(pauses) <= max(1.5 * asked, 5)
    grows = events in {"no byte", "no event", "a reason", "an error"}
    assert (pauses[-1] == max(1.5 * asked, 5)) is (grows or asked == 4)


def test_streams_of_a_service_that_ends_do_not_return_at_once() -> None:
    """Forty streams that are cut at one moment come back after the time asked for, spread over half of it."""
    pauses = [state.spread_retry(number / 40) for number in range(40) for state in [make_streaming(b"retry: 4000\n\n")]]
    assert min(pauses) >= 4
    assert max(pauses) - min(pauses) > 1
    assert max(sum(at <= pause < at + 1 for pause in pauses) for at in (4, 4.5, 5)) <= 21


def make_streaming(events: bytes) -> Any:  # noqa: ANN401 - of the client
    state = Streaming("q", None, "*", None, None, begun=lambda: None)
    list(state.read(events))
    return state


@pytest.mark.parametrize("retry", [b"99999999999", b"30000"])
def test_a_long_time_to_reconnect_is_bounded(retry: bytes) -> None:
    """A service, or a proxy, cannot keep a client away for more than 45 seconds."""
    assert make_streaming(b"retry: " + retry + b"\n\n").spread_retry(1.0) == 45


@pytest.mark.parametrize("retry", [b"-1", b"soon", b"", "²".encode()])
def test_a_time_to_reconnect_that_is_none(retry: bytes) -> None:
    """What is not a number of milliseconds changes nothing."""
    assert make_streaming(b"retry: " + retry + b"\n\n").spread_retry(0.0) == 1


def test_a_stream_notices_when_it_works_again(connect: Connect) -> None:
    """The notice that the service works again comes with the first event, not with the first byte."""
    notices: list[str] = []
    service = Outage("accepts and breaks", 30)
    streaming = connect(service).stream("q", notice=lambda error: notices.append(type(error).__name__))
    next(streaming)
    assert notices == ["ConnectionLost", "NoneType"]


# Tokens


class Source:
    """A function that gives tokens: it fails, with what ``error`` returns, at the calls with these numbers."""

    def __init__(self, *failing: int, error: Callable[[], Exception] = lambda: OSError("away")) -> None:
        self._failing, self._error = failing, error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls in self._failing:
            raise self._error()
        return f"token-{self.calls}"


class Refusing(Outage):
    """A service that works, and refuses the first token."""

    def __init__(self) -> None:
        super().__init__("refuses", 0)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        refused = request.headers["authorization"] == "Bearer token-1"
        return httpx2.Response(401) if refused else super().answer(request)


TOKEN_LOOPS = {name: LOOPS[name] for name in ("tail", "stream", "claim")}


@pytest.mark.parametrize("failing", [(1,), (2,), (2, 3, 4, 5), tuple(range(2, 20))], ids=str)
@pytest.mark.parametrize("name", TOKEN_LOOPS)
def test_a_source_of_tokens_that_fails_for_a_while(connect: Connect, name: str, failing: tuple[int, ...]) -> None:
    """A loop asks a source that failed again, after growing pauses, whether it failed at first or after a 401."""
    service, source = Refusing(), Source(*failing)
    TOKEN_LOOPS[name](connect(service, token=source))
    assert source.calls == failing[-1] + 1
    assert service.elapsed >= sum(min(5, 0.2 * 2**number) for number in range(len(failing)))


@pytest.mark.parametrize("name", TOKEN_LOOPS)
def test_a_source_that_refuses_ends_a_loop(connect: Connect, name: str) -> None:
    """A TokenError of the function itself, or something else than a token, ends the loop, at first and later."""

    def refusal() -> Exception:
        return TokenError("logged out")

    for source in (Source(1, error=refusal), Source(2, error=refusal), lambda: "two words", lambda: 5):
        service = Refusing()
        with pytest.raises(TokenError):
            TOKEN_LOOPS[name](connect(service, token=source))
        assert service.slept == []


@pytest.mark.parametrize("name", TOKEN_LOOPS)
def test_tokens_that_are_refused_end_a_loop(connect: Connect, name: str) -> None:
    """When the service refuses a token and then the next one, that is the end."""
    service = Script(httpx2.Response(401))
    source = Source()
    with pytest.raises(NotAuthenticated):
        TOKEN_LOOPS[name](connect(service, token=source))
    assert (len(service.requests), source.calls) == (2, 2)


class Expiring(Script):
    """A service whose streams say at once that the token expires, and go on; after 100 s they are refused."""

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if self.now >= 1100:
            return httpx2.Response(403)
        end = b'event: bye\ndata: {"status": 401}\n\n'
        return httpx2.Response(200, content=b'id: c0\n\nevent: expiring\ndata: {"expires": 1}\n\n' + end)


def test_tokens_that_always_expire_soon(connect: Connect) -> None:
    """A token that expires soon is renewed at once; if the next one does, too, a stream neither spins nor ends."""
    service, source = Expiring(), Source()
    with pytest.raises(ClientError, match="403"):
        first(connect(service, token=source).stream("q"))
    assert len(service.requests) <= 100
    assert source.calls <= len(service.requests)
    assert service.slept[0] == 0


def test_a_source_is_asked_once_for_each_notice() -> None:
    """A source that gives the same token again is not asked with each part of a stream that expires soon."""
    state = make_streaming(b'id: c0\n\nevent: expiring\ndata: {"expires": 1}\n\n')
    assert [state.must_renew(now) for now in (1000, 1001, 1020)] == [True, False, False]
