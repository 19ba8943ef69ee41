"""What the workers of one service tell each other."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from queuey.metrics import Snapshot
from queuey.web.gateway.workers import Told, WorkerIdentity
from tests.contract.samples import eventually


def counting(received: int) -> Callable[[], Snapshot]:
    """What a worker says that has taken in so many messages."""
    return lambda: Snapshot([("r", 200, [1.0] * 17)], received, 0, {})


def received(told: Told) -> dict[str, int | None]:
    """How many messages each worker says that it has taken in."""
    return {name: None if found is None else found.received for name, found in told.all().items()}


def test_one_alone() -> None:
    """Who has no others beside it speaks for itself, without a name."""
    told = Told(counting(5))
    assert received(told) == {"": 5}
    told.join(WorkerIdentity("alone", 1, 1))
    assert received(told) == {"": 5}


def test_any_of_several_knows_all() -> None:
    """Whichever worker is asked, the answer has all of them, and says which one is missing."""
    service = WorkerIdentity.of_service(3)
    told = [Told(counting(number)) for number in (1, 2, 3)]
    for number in (1, 2):
        told[number - 1].join(service._replace(number=number))
    expected = {"1": 1, "2": 2, "3": None}
    assert eventually(lambda: [received(one) for one in told[:2]] == [expected] * 2, 60)
    told[2].join(service._replace(number=3))
    assert eventually(lambda: [received(one) for one in told] == [expected | {"3": 3}] * 3, 60)
    other = Told(counting(9))
    other.join(WorkerIdentity.of_service(2)._replace(number=1))
    assert received(other) == {"1": 9, "2": None}


def test_a_worker_that_says_nothing_or_nonsense() -> None:
    """What is no answer of a worker counts as none."""
    service = WorkerIdentity.of_service(2)
    told = Told(counting(1))
    told.join(service._replace(number=1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(service.address(2))
        listener.listen()

        def response() -> None:
            for text in (b"", b"nonsense", b"\x81"):
                peer, _ = listener.accept()
                with peer, contextlib.suppress(BrokenPipeError):  # who asked has not waited
                    peer.sendall(text)

        thread = threading.Thread(target=response)
        thread.start()
        assert [received(told) for _ in range(3)] == [{"1": 1, "2": None}] * 3
        thread.join()
