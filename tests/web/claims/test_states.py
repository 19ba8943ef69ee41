"""States that workers set on jobs, over HTTP."""

from __future__ import annotations

import time
from typing import Any

import pytest

from queuey.errors import StoreUnavailable
from queuey.service.core import Core
from queuey.storage import Ledger
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.web.caller import Caller, Reply


@pytest.fixture
def claim(owner: Caller) -> dict[str, Any]:
    """Claims the only message of the queue ``q`` for a minute, as the worker ``ann:1``."""
    owner.create("q")
    owner.post("q", "a")
    [claim] = owner.claim(ttl=60, worker="ann:1")
    return claim


def put(caller: Caller, states: object) -> Reply:
    return caller.send_json("POST", "q/claims/state", {"states": states})


def read_state(caller: Caller) -> object:
    [job] = caller.get("q/jobs", states="true").json["jobs"]
    return job["state"]


def test_a_state_is_shown(owner: Caller, claim: dict[str, Any]) -> None:
    """It is in the list of jobs if that is asked for, and in the explanation; any JSON will do."""
    reply = put(owner, {claim["receipt"]: {"done": 3, "of": [10, "ü"]}})
    assert (reply.status, reply.json["results"]) == (200, [{"receipt": claim["receipt"], "status": "ok"}])
    [job] = owner.get("q/jobs", states="true").json["jobs"]
    assert (job["state"], job["worker"]) == ({"done": 3, "of": [10, "ü"]}, "ann:1")
    assert job["state_at"] <= job["expires"]
    assert "state" not in owner.get("q/jobs").json["jobs"][0]
    [reason] = [one for one in owner.get(f"q/explain/{claim['message_id']}").json["reasons"] if one["code"] == "state"]
    assert reason["text"].endswith('its worker set the state: {"done":3,"of":[10,"ü"]}')
    put(owner, {claim["receipt"]: None})
    assert read_state(owner) is None


def claim_again(caller: Caller, claim: dict[str, Any], **more: str) -> dict[str, Any]:
    assert caller.send_json("POST", "q/claims/release", {"receipts": [claim["receipt"]]}).status == 200
    [claim] = caller.claim(ttl=60, **more)
    return claim


def test_the_next_delivery_has_the_last_state(owner: Caller, claim: dict[str, Any]) -> None:
    """A claim that asks for states gets what an earlier delivery has set, until a later one sets its own."""
    claim = claim_again(owner, claim, states="true")
    assert "state" not in claim
    put(owner, {claim["receipt"]: {"done": 3, "of": ["ü"]}})
    claim = claim_again(owner, claim)
    assert "state" not in claim
    claim = claim_again(owner, claim, states="true")
    assert (claim["state"], claim["deliveries"], claim["body"]) == ({"done": 3, "of": ["ü"]}, 4, "a")
    put(owner, {claim["receipt"]: None})
    assert claim_again(owner, claim, states="true")["state"] is None


def test_states_are_of_messages_that_are_claimed(owner: Caller, claim: dict[str, Any]) -> None:
    """Of several queues as of one, in a body as in a query; not where messages are only shown, or are new."""
    put(owner, {claim["receipt"]: 3})
    owner.post("q", "b")
    owner.send_json("POST", "q/claims/release", {"receipts": [claim["receipt"]]})
    shown = owner.claim(ttl=0, states="true")
    reply = owner.send_json("POST", "_claims", {"queues": ["q"], "states": True})
    assert [(one["body"], one.get("state")) for one in shown] == [("a", None), ("b", None)]
    assert [(one["body"], one.get("state")) for one in reply.messages] == [("a", 3), ("b", None)]


def test_a_state_that_cannot_be_read_fails_no_claim(
    owner: Caller, claim: dict[str, Any], between: InterposedStore
) -> None:
    """The message comes without it: the delivery is counted, and would be lost."""
    put(owner, {claim["receipt"]: 3})

    def fail(*_: object) -> None:
        raise StoreUnavailable("away")

    between.instead(Ledger.entry, fail)
    claim = claim_again(owner, claim, states="true")
    assert (claim["deliveries"], "state" in claim) == (2, False)


def test_a_claim_that_is_late_with_its_states_is_given_back(
    owner: Caller, claim: dict[str, Any], between: InterposedStore
) -> None:
    """Its caller would have no time left; the next claim gets the message and its state, as the same attempt."""
    put(owner, {claim["receipt"]: 3})
    owner.send_json("POST", "q/claims/release", {"receipts": [claim["receipt"]]})
    late: list[float] = []
    between.before(Ledger.entry, lambda: late.append(30))
    with replace(Core.boottime, lambda _self: time.clock_gettime(time.CLOCK_BOOTTIME) + sum(late)):
        reply = owner("POST", "q/claims", b"", headers=None, ttl=30, states="true")
    assert (reply.status, reply.json["outcome"]) == (503, "unknown")
    between.restore(Ledger.entry)
    [claim] = owner.claim(ttl=30, states="true")
    assert (claim["deliveries"], claim["handed_out"], claim["state"]) == (2, 3, 3)


def test_a_state_that_is_too_long(owner: Caller, claim: dict[str, Any]) -> None:
    """It is refused and nothing is lost: 4,096 bytes as JSON are the most, and the state before and the claim stay."""
    most = "x" * 4094
    assert put(owner, {claim["receipt"]: most}).status == 200
    reply = put(owner, {claim["receipt"]: most + "x"})
    assert reply.status == 400
    assert "4097 bytes" in reply.errors["states.0"]
    assert read_state(owner) == most
    assert put(owner, {claim["receipt"]: "ü" * 2048}).status == 400
    receipts = {"receipts": [claim["receipt"]]}
    assert owner.send_json("POST", "q/claims/renew", receipts).status == 200


@pytest.mark.parametrize(
    ("states", "field"),
    [
        (None, "states"),
        ([], "states"),
        ({f"r{number}": 1 for number in range(101)}, "states"),
        ({"r": 1}, "states.0"),
    ],
)
def test_bad_input(owner: Caller, claim: dict[str, Any], states: object, field: str) -> None:
    """A bad state is refused by the name of the field, and the good states beside it are not set."""
    if isinstance(states, dict) and len(states) == 1:
        states = {**states, claim["receipt"]: "good"}
    reply = put(owner, states)
    assert (reply.status, list(reply.errors)) == (400, [field])
    assert read_state(owner) is None


def test_a_state_that_is_nested_too_deeply(owner: Caller, claim: dict[str, Any]) -> None:
    """A state nested too deeply is refused, because some readers could not parse the list of jobs."""
    for levels, status in ((100, 200), (101, 400)):
        state: object = "x"
        for number in range(levels):
            state = [0, state] if number % 2 else {"a": state}
        reply = put(owner, {claim["receipt"]: state})
        assert reply.status == status
    assert reply.errors == {"states.0": "Is nested more than 100 levels deep"}


def test_states_are_shown_for_few_jobs(owner: Caller, claim: dict[str, Any]) -> None:
    """A list with states has at most 100, because each of them is read by itself."""
    assert owner.get("q/jobs", states="true", limit=100).status == 200
    assert owner.get("q/jobs", states="true", limit=101).status == 400
    assert owner.get("q/jobs", limit=1000).status == 200
