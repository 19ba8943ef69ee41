"""Changes by another process count immediately, also for requests that this process would have refused."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from queuey.app.application import make_app
from queuey.app.service import App
from queuey.operations.lag_metrics import COUNTS_TOPIC, Collection, WorkerCounts
from queuey.runtime.event_loop import Core
from queuey.runtime.metrics import Snapshot
from queuey.runtime.workers import Answer, WorkerIdentity, Workers
from queuey.storage import Store
from tests.contract.samples import eventually
from tests.tenants import KEY
from tests.web.caller import Caller

JSON = {"Content-Type": "application/json"}
ID = "0123456789ab11e88000000000000001"

pytestmark = pytest.mark.needs("processes")
Count = Callable[[], Coroutine[Any, Any, Snapshot]]


@pytest.fixture
def elsewhere(app: App, other: Store) -> Caller:
    return Caller(make_app(other), f"Application {KEY}")


def create_and_post(owner: Caller, name: str, **fields: object) -> None:
    owner.create(name, **fields)
    owner.post(name, "x")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "q", "x", {"X-Partition": "3"}, 201),
        ("POST", "q", '{"messages":[{"body":"x","partition":3}]}', JSON, 201),
        ("PUT", f"q/3:{ID}", "x", {}, 200),
        ("PUT", "q/offsets/g", '{"partitions":{"3":{"offset":"' + ID + '"}}}', JSON, 200),
    ],
    ids=["post", "batch", "put", "offsets"],
)
def test_new_partitions_are_not_refused(
    owner: Caller, elsewhere: Caller, method: str, path: str, body: str, headers: dict[str, str], status: int
) -> None:
    """A partition that another process has just added can be used here."""
    create_and_post(owner, "q")
    assert elsewhere.send_form("PUT", "q", partitions=3).status == 200
    assert owner(method, path, body, headers=headers).status == status


def test_new_permissions_are_not_refused(owner: Caller, guest: Caller, elsewhere: Caller) -> None:
    """A caller that another process has just let in may come in here, and is refused when the right is revoked."""
    create_and_post(owner, "q")
    assert guest.get("q").status == 403
    elsewhere.send_form("PUT", "q", principals="app:guest")
    assert guest.get("q").bodies == ["x"]
    elsewhere.send_json("PUT", "q", {"principals": None})
    assert guest.get("q").status == 403


def test_bad_requests_stay_bad(owner: Caller, elsewhere: Caller) -> None:
    """What is wrong with the row as it is now stays refused, and nothing is stored."""
    create_and_post(owner, "q")
    elsewhere.send_form("PUT", "q", partitions=3)
    assert list(owner("POST", "q", "y", headers={"X-Partition": "4"}).errors) == ["partition"]
    assert list(owner("PUT", f"q/4:{ID}", "y").errors) == ["partition"]
    assert owner.get("q", partitions="*").bodies == ["x"]


# Counts of all workers of one service together


@pytest.fixture(name="leaving")
def _leaving() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def join_worker(identity: WorkerIdentity, leaving: ExitStack, own: Count) -> WorkerCounts:
    workers = Workers()
    counts = WorkerCounts(own, workers, Core())
    workers.join(identity)
    leaving.callback(workers.leave, 1)
    return counts


def counting(received: int) -> Count:
    async def count() -> Snapshot:
        return Snapshot([("r", 200, [1.0] * 17)], received, 0, {})

    return count


def count_received(counts: WorkerCounts) -> dict[str, int | None]:
    return {name: None if found is None else found.received for name, found in Core().run(counts.collect_all()).items()}


def test_any_of_several_knows_all(leaving: ExitStack) -> None:
    """Whichever worker is asked, the answer has all of them, and says which one is missing; one alone has no name."""
    assert count_received(WorkerCounts(counting(5), Workers(), Core())) == {"": 5}
    assert count_received(join_worker(WorkerIdentity("alone", 1, 1), leaving, counting(5))) == {"": 5}
    service = WorkerIdentity.of_service(3)
    workers = [join_worker(WorkerIdentity(*service[:2], number), leaving, counting(number)) for number in (1, 2)]
    expected = {"1": 1, "2": 2, "3": None}
    assert eventually(lambda: [count_received(one) for one in workers] == [expected] * 2, 60)
    workers.append(join_worker(WorkerIdentity(*service[:2], 3), leaving, counting(3)))
    assert eventually(lambda: [count_received(one) for one in workers] == [expected | {"3": 3}] * 3, 60)
    other = join_worker(WorkerIdentity("another", 2, 1), leaving, counting(9))
    assert count_received(other) == {"1": 9, "2": None}


def test_a_worker_that_says_nothing(leaving: ExitStack) -> None:
    """A worker that does not answer in time is missing."""
    service = WorkerIdentity.of_service(2)
    worker = join_worker(WorkerIdentity(*service[:2], 1), leaving, counting(1))
    silent = Workers()
    kept: list[Answer[Snapshot]] = []
    silent.handle(COUNTS_TOPIC, lambda _question, answer: kept.append(answer))
    silent.join(WorkerIdentity(*service[:2], 2))
    leaving.callback(silent.leave, 0)
    assert count_received(worker) == {"1": 1, "2": None}


def test_counts_that_cannot_be_collected() -> None:
    """An error goes to all who asked for it; later callers start another attempt."""
    tries: list[int] = []

    async def collect() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("defect")
        return 7

    collection, core = Collection(collect, 1.0, lambda: float(len(tries))), Core()
    with pytest.raises(RuntimeError, match="defect"):
        core.run(collection.read())
    tries.append(1)
    assert core.run(collection.read()) == 7
