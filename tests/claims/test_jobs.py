"""Jobs by id over HTTP: their states and results."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from queuey.app.service import App
from tests.claims.test_claims import bodies
from tests.waiting import until
from tests.web.caller import Caller, Reply

pytestmark = pytest.mark.one_app


def nested(levels: int) -> object:
    return json.loads("[" * levels + "]" * levels)


@pytest.fixture
def queue(owner: Caller) -> str:
    return owner.create("q", result_ttl=3600, partitions=2)


def post(caller: Caller, *bodies: str) -> list[str]:
    return [f"{each['partition']}:{each['key']}" for each in [caller.post("q", body) for body in bodies]]


def jobs(caller: Caller, *places: str, **query: object) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = caller.get(f"q/jobs/{','.join(places)}", **query).json["jobs"]
    assert [f"{each['partition']}:{each['message_id']}" for each in entries] == list(places)
    return entries


def acknowledge(caller: Caller, receipt: str, **more: object) -> Reply:
    return caller.send_json("POST", "q/claims/ack", {"receipts": [receipt], **more})


def test_results_by_either_way(owner: Caller, queue: str) -> None:
    """A result is sent with an acknowledgement, alone or with a claim of one queue or several; null is not a result."""
    places = dict(zip("abcd", post(owner, *"abcd"), strict=True))
    claimed = {each["body"]: each["receipt"] for each in owner.claim(ttl=60, limit=9)}
    claimed |= {each["body"]: each["receipt"] for each in owner.claim(ttl=60, limit=9)}
    assert acknowledge(owner, claimed["a"], results={claimed["a"]: {"x": [1, "ü"]}}).status == 200
    body = {"acknowledge": [claimed["b"]], "results": {claimed["b"]: 2, "of another": 1}}
    assert owner.send_json("POST", "q/claims", body).json["result_ttl"] == 3600
    body = {"queues": ["q"], "acknowledge": {"q": [claimed["c"]]}, "results": {claimed["c"]: "3"}}
    assert owner.send_json("POST", "_claims", body).status == 200
    acknowledge(owner, claimed["d"], results={claimed["d"]: None})
    entries = jobs(owner, *places.values())
    assert [(each["status"], each["result"]) for each in entries] == [
        ("done", {"x": [1, "ü"]}),
        ("done", 2),
        ("done", "3"),
        ("done", None),
    ]


def test_states(owner: Caller, queue: str) -> None:
    """An unfinished job is shown with its worker, and its state if that is asked for."""
    [place] = post(owner, "a")
    assert jobs(owner, place) == [{"status": "waiting", "message_id": place[2:], "partition": int(place[0])}]
    [claim] = owner.claim(ttl=60, worker="ann:1")
    owner.send_json("POST", "q/claims/state", {"states": {claim["receipt"]: {"done": 3}}})
    [job] = jobs(owner, place)
    assert (job["status"], job["worker"], job["deliveries"], "state" in job) == ("claimed", "ann:1", 1, False)
    assert jobs(owner, place, states="true")[0]["state"] == {"done": 3}


def test_too_large(owner: Caller, queue: str) -> None:
    """A result over 16 KiB is not kept, whether it or only its size was sent: the job is done, its size is shown."""
    places = post(owner, "a", "b")
    sizes = set()
    for _ in places:
        [claim] = owner.claim(ttl=60, limit=1)
        receipt = claim["receipt"]
        more = {"results": {receipt: "x" * 16_383}} if claim["body"] == "a" else {"too_large": {receipt: 20_000}}
        assert acknowledge(owner, receipt, **more).status == 200
    for job in jobs(owner, *places):
        assert (job["status"], "result" in job) == ("done", False)
        sizes.add(job["size"])
    assert sizes == {16_385, 20_000}


def test_a_wait_ends_with_a_job(app: App, owner: Caller, queue: str) -> None:
    """A request for several jobs waits until one of them has ended, and then shows all."""
    places = post(owner, "a", "b")
    [claim] = owner.claim(ttl=60, limit=1)
    answers: list[list[dict[str, Any]]] = []
    waiting = threading.Thread(target=lambda: answers.append(jobs(owner, *places, wait=20)))
    waiting.start()
    until(lambda: app.service.reader.watchers.count(for_all=True))
    acknowledge(owner, claim["receipt"], results={claim["receipt"]: 7})
    waiting.join(60)
    assert sorted(each["status"] for each in answers[0]) == ["done", "waiting"]
    [done] = [each for each in answers[0] if each["status"] == "done"]
    assert done["result"] == 7
    assert app.service.claims._job_watch.watched == {}


def test_ids(owner: Caller, queue: str) -> None:
    """Bad ids and too many are refused; ids of another partition were never seen."""
    assert owner.get("q/jobs/1:xyz").status == 400
    assert owner.get(f"q/jobs/3:{'0' * 12}1{'0' * 3}8{'0' * 15}").status == 400
    [place] = post(owner, "a")
    assert owner.get(f"q/jobs/{','.join([place] * 101)}").status == 400
    assert jobs(owner, f"{3 - int(place[0])}{place[1:]}")[0]["status"] == "never_seen"


# Jobs that operators cancel or retry over HTTP


def act(caller: Caller, what: str, place: str) -> Any:  # noqa: ANN401 - a word, or a refusal
    reply = caller.send_json("POST", f"q/jobs/{place}/{what}", {})
    return reply.json["job"] if reply.status == 200 else (reply.status, *reply.json["error_msg"])


def test_cancel(owner: Caller) -> None:
    """A waiting job is removed, the worker of a claimed one learns of it at its next renewal; a repeat does nothing."""
    owner.create("q", partitions=2)
    owner.post("q", "waits", X_Partition="2")
    owner.post("q", "runs", X_Partition="1")
    [job] = owner.claim(partitions="1", ttl=60)
    [waits] = owner.get("q", partitions="2").messages
    assert [act(owner, "cancel", f"2:{waits['message_id']}") for _ in range(2)] == ["removed", "done"]
    for place in (job["message_id"], f"1:{job['message_id']}"):
        assert act(owner, "cancel", place) == "claimed"
    renewal = owner.send_json("POST", "q/claims/renew", {"receipts": [job["receipt"]], "ttl": 60})
    assert renewal.json["results"][0]["cancelled"] is True
    owner.send_json("POST", "q/claims/release", {"receipts": [job["receipt"]]})
    assert owner.claim() == []


def test_retry(owner: Caller) -> None:
    """A job that was released with a delay, and a delayed one, can be claimed at once."""
    owner.create("q")
    later = str(owner.post("q", "later", X_Delay="600")["key"])
    owner.post("q", "rests")
    [job] = owner.claim(ttl=60)
    assert act(owner, "retry", job["message_id"]) == "claimed"
    owner.send_json("POST", "q/claims/release", {"receipts": [job["receipt"]], "delay": 600})
    assert owner.claim() == []
    assert [act(owner, "retry", place) for place in (job["message_id"], later)] == ["waiting"] * 2
    assert sorted(bodies(owner.claim(limit=9))) == ["later", "rests"]


def test_mistakes(owner: Caller) -> None:
    """An id that is not a job's is refused by name."""
    owner.create("q")
    missing = "0123456789ab11e88000000000000001"
    assert act(owner, "cancel", missing) == act(owner, "retry", f"1:{missing}") == (404, "InvalidMessageID")
    assert act(owner, "cancel", "7") == (400, "InvalidMessageID")
    assert act(owner, "retry", f"2:{missing}") == (400, "partitions")


# States that workers set on jobs, over HTTP


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


def test_states_are_of_messages_that_are_claimed(owner: Caller, claim: dict[str, Any]) -> None:
    """Of several queues as of one, in a body as in a query; not where messages are only shown, or are new."""
    put(owner, {claim["receipt"]: 3})
    owner.post("q", "b")
    owner.send_json("POST", "q/claims/release", {"receipts": [claim["receipt"]]})
    shown = owner.claim(ttl=0, states="true")
    reply = owner.send_json("POST", "_claims", {"queues": ["q"], "states": True})
    assert [(one["body"], one.get("state")) for one in shown] == [("a", None), ("b", None)]
    assert [(one["body"], one.get("state")) for one in reply.messages] == [("a", 3), ("b", None)]


def test_a_state_that_is_too_long(owner: Caller, claim: dict[str, Any]) -> None:
    """It is refused and nothing is lost: 4,096 bytes as JSON and 100 levels are the most; state and claim stay."""
    most = "x" * 4094
    assert put(owner, {claim["receipt"]: most}).status == 200
    reply = put(owner, {claim["receipt"]: most + "x"})
    assert reply.status == 400
    assert "4097 bytes" in reply.errors["states.0"]
    assert read_state(owner) == most
    assert put(owner, {claim["receipt"]: "ü" * 2048}).status == 400
    assert put(owner, {claim["receipt"]: nested(100)}).status == 200
    reply = put(owner, {claim["receipt"]: nested(101)})
    assert reply.errors == {"states.0": "Is nested more than 100 levels deep"}
    receipts = {"receipts": [claim["receipt"]]}
    assert owner.send_json("POST", "q/claims/renew", receipts).status == 200


def test_states_are_shown_for_few_jobs(owner: Caller, claim: dict[str, Any]) -> None:
    """A list with states has at most 100, because each of them is read by itself."""
    assert owner.get("q/jobs", states="true", limit=100).status == 200
    assert owner.get("q/jobs", states="true", limit=101).status == 400
    assert owner.get("q/jobs", limit=1000).status == 200
