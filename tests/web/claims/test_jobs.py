"""Jobs by id over HTTP: their states and results."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from queuey.web.parts import App
from tests.waiting import until
from tests.web.caller import Caller, Reply


@pytest.fixture
def queue(owner: Caller) -> str:
    return owner.create("q", result_ttl=3600, partitions=2)


def post(caller: Caller, *bodies: str) -> list[str]:
    posted = [caller.post("q", body) for body in bodies]
    return [f"{each['partition']}:{each['key']}" for each in posted]


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


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"results": [1]}, "results"),
        ({"results": {f"r{number}": 1 for number in range(101)}}, "results"),
        ({"too_large": {"r": "much"}}, "too_large"),
        ({"too_large": {"r": 0}}, "too_large"),
    ],
)
def test_bad_results(owner: Caller, queue: str, more: dict[str, Any], field: str) -> None:
    """Bad results are refused by name, and nothing is acknowledged."""
    [place] = post(owner, "a")
    [claim] = owner.claim(ttl=60)
    reply = acknowledge(owner, claim["receipt"], **more)
    assert (reply.status, list(reply.json["error_msg"])) == (400, [field])
    assert jobs(owner, place)[0]["status"] == "claimed"


def test_too_deep(owner: Caller, queue: str) -> None:
    """A result is nested as deeply as a state may be."""
    post(owner, "a")
    [claim] = owner.claim(ttl=60)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert "results.0" in acknowledge(owner, claim["receipt"], results={claim["receipt"]: deep}).json["error_msg"]


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
    assert app.service.claims._watch.watched == {}


def test_a_wait_that_ends_in_vain(owner: Caller, queue: str) -> None:
    """A wait that times out shows the present state; there is no wait for a job that has already ended."""
    places = post(owner, "a", "b")
    assert [each["status"] for each in jobs(owner, *places, wait=0.1)] == ["waiting", "waiting"]
    [claim] = owner.claim(ttl=60, limit=1)
    acknowledge(owner, claim["receipt"])
    assert "done" in [each["status"] for each in jobs(owner, *places, wait=20)]


def test_ids(owner: Caller, queue: str) -> None:
    """Bad ids and too many are refused; ids of another partition were never seen."""
    assert owner.get("q/jobs/1:xyz").status == 400
    assert owner.get(f"q/jobs/3:{'0' * 12}1{'0' * 3}8{'0' * 15}").status == 400
    [place] = post(owner, "a")
    assert owner.get(f"q/jobs/{','.join([place] * 101)}").status == 400
    assert jobs(owner, f"{3 - int(place[0])}{place[1:]}")[0]["status"] == "never_seen"
