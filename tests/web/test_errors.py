"""The forms of errors: version 1's, RFC 9457's, and the answer to a defect."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from queuey.model import errors
from queuey.model.errors import StoreBusy, StoreClosed, StoreFull, StoreUnavailable
from queuey.storage import Messages
from queuey.web.errors import STATUSES, status_of
from queuey.web.requests import wants_events
from queuey.web.responses import accepts
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller
from tests.web.gateway_calls import blank_request

pytestmark = pytest.mark.one_app

PROBLEM = {"Accept": "text/html, application/problem+json;q=0.9"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "q", 400, "InvalidParameter"),
        ("GET", "q/zzz", 400, "InvalidMessageID"),
        ("GET", "missing", 404, "InvalidQueueName"),
        ("GET", "/v1/nobody", 404, "InvalidApplicationName"),
        ("GET", "/nowhere", 404, "NotFound"),
        ("PATCH", "q", 404, "NotFound"),
    ],
)
def test_problems_on_request(owner: Caller, method: str, path: str, status: int, code: str) -> None:
    """A client that accepts problem details gets them, with the stable code and the texts by field."""
    owner.create("q")
    plain = owner(method, path)
    reply = owner(method, path, headers=PROBLEM)
    assert reply.headers["Content-Type"] == "application/problem+json"
    content = reply.json
    assert (content["status"], content["code"], reply.status, plain.status) == (status, code, status, status)
    assert content["detail"]
    if plain.is_json:
        assert content["errors"] == plain.errors


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        *[
            (text, True)
            for text in ("text/a", "TEXT/A", "b/b, Text/A;x=1; q=0.001", "text/a;q=0,text/a", " text/a ;q=1")
        ],
        *[(text, False) for text in ("", "*/*", "text/ab", "text/a;q=0", "text/a; Q = 0.00", "b/b;x=text/a")],
    ],
)
def test_media_types_that_a_client_accepts(accept: str, expected: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """A type counts in any case, unless its weight is 0; the form of errors and streams of events depend on it."""
    assert accepts(accept, "text/a") is expected
    assert wants_events(blank_request(accept=accept.lower().replace("text/a", "Text/Event-Stream"))) is expected


@pytest.mark.parametrize(
    ("error", "outcome", "wait"),
    [
        (StoreUnavailable("gone", outcome="unknown", retry_after=7), "unknown", "7"),
        (StoreBusy("locked"), "none", "1"),
        (StoreFull("no space"), "none", "1"),
        (StoreClosed("closing"), "none", "1"),
        (errors.QueueChanged(), "none", "1"),
        (errors.StoreIncompatible("Update this program."), "unknown", "1"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("headers", [{}, PROBLEM], ids=["v1", "problem"])
def test_store_failures(
    owner: Caller, between: InterposedStore, error: StoreUnavailable, outcome: str, wait: str, headers: dict[str, str]
) -> None:
    """When the store fails, the answer is 503 with Retry-After and the outcome of the write."""
    owner.create("q")

    between.fail(Messages.append, error)
    reply = owner("POST", "q", "x", headers=headers)
    assert (reply.status, reply.headers["Retry-After"], reply.json["outcome"]) == (503, wait, outcome)


@pytest.mark.parametrize("headers", [{}, PROBLEM], ids=["v1", "problem"])
def test_outcomes_of_a_batch(owner: Caller, between: InterposedStore, headers: dict[str, str]) -> None:
    """A batch that the store could not take has an outcome for each message; a single message has one alone."""
    owner.create("q")

    between.fail(Messages.append, StoreUnavailable("gone", outcome="unknown"))
    kind = {"Content-Type": "application/json", **headers}
    reply = owner("POST", "q", '{"messages":[{"body":"a"},{"body":5},{"body":"c"}]}', headers=kind)
    assert (reply.status, reply.json["outcome"], reply.json["outcomes"]) == (503, "unknown", ["unknown"] * 3)
    assert "outcomes" not in owner("POST", "q", "x", headers=headers).json


@pytest.mark.parametrize("headers", [{}, PROBLEM], ids=["v1", "problem"])
def test_a_defect_tells_nothing_but_an_id(
    owner: Caller, between: InterposedStore, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    """An unexpected exception is a JSON 500 with an id, under which the log has everything."""
    owner.create("q")

    between.fail(Messages.append, ZeroDivisionError("the secret of the house"))
    with caplog.at_level(logging.ERROR, "queuey.web.errors"):
        reply = owner("POST", "q", "x", headers=headers)
    assert reply.status == 500
    texts: dict[str, Any] = reply.json["errors" if headers else "error_msg"]
    crash = texts["InternalError"].rpartition(" ")[2]
    assert "secret" not in reply.text
    assert crash in caplog.text
    assert "the secret of the house" in caplog.text


def test_every_error_has_a_status() -> None:
    """No error that a request can meet falls through the table."""

    def below(cls: type[Exception]) -> set[type[Exception]]:
        return {cls}.union(*(below(child) for child in cls.__subclasses__()))

    unmet = {errors.QueueyError, errors.SettingsError, errors.TooLate}
    met = below(errors.QueueyError) - unmet
    statuses = {cls: status_of(cls.__new__(cls)) for cls in met if cls.__module__.startswith("queuey")}
    # Errors of the client and of jobs on Spark are never raised by the service.
    elsewhere = ("queuey.client", "queuey.spark", "queuey.pipeline")
    ours = {cls: status for cls, status in statuses.items() if not cls.__module__.startswith(elsewhere)}
    assert {cls for cls, status in ours.items() if status == 500} == set()
    assert set(ours.values()) == set(STATUSES.values())
