"""``qdo work`` whose handlers keep it from ending: it ends all the same, so that a supervisor can start it again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuey.client import Client
from tests.qdo.cli.conftest import Group
from tests.qdo.cli.workers import Hire, Working
from tests.qdo.contract.local import LocalService
from tests.qdo.worker.conftest import until
from tests.qdo.worker.test_processes import living
from tests.qdo.worker.test_signals import children


@pytest.fixture
def service(tmp_path: Path) -> LocalService:
    """Where the group meets."""
    return LocalService(tmp_path / "coordination" / "file.sqlite3")


@pytest.mark.parametrize("handler", ["blocking", "holding"])
async def test_a_worker_that_hangs_as_a_whole_ends(
    hire: Hire, client: Client, queue: str, service: LocalService, handler: str
) -> None:
    """A handler blocks the event loop, or holds the interpreter: the code is 1, and the log shows where it hangs."""
    client.send(queue, handler)
    options = ("--stalled-after", "2", "--coordination", service.url, "--session-timeout", str(service.short))
    with hire(f"handlers:{handler}", "--queue", queue, *options) as worker:
        worker.said(1)
        assert worker.ended() == 1
    assert f"in {handler}" in "".join(worker.log)


async def test_a_child_that_holds_its_interpreter_does_not_outlive_its_worker(
    hire: Hire, client: Client, queue: str
) -> None:
    """It cannot hear that its parent was killed, and ends some time later."""
    client.send(queue, "holding")
    with hire("handlers:holding", "--queue", queue, "--processes", "1", "--stalled-after", "2") as worker:
        worker.said(1)
        (child,) = children(worker.process.pid)
        worker.process.kill()
        await until(lambda: not living(child))


@pytest.fixture
def begun(request: pytest.FixtureRequest, hire: Hire, client: Client, queue: str) -> Iterator[tuple[Working, str]]:
    """A worker that has begun a message, and the message's id."""
    handler, *options = request.param
    receipt = client.send(queue, handler)
    with hire(f"handlers:{handler}", "--queue", queue, *options) as worker:
        worker.said(1)
        yield worker, receipt.id


LEFT, UNFINISHED = "the process ends without them", "a handler has not finished message {message} of"


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        (("stubborn", "--drain", "0.2"), [LEFT, UNFINISHED]),
        (("in_thread", "--drain", "0.2"), [LEFT]),
        (("never", "--drain", "0.2"), [UNFINISHED]),
    ],
    indirect=["begun"],
    ids=["task that swallows its cancellation", "thread of a task", "thread"],
)
def test_a_handler_that_goes_on_does_not_keep_a_worker(
    begun: tuple[Working, str], group: Group, said: list[str]
) -> None:
    """The process ends without it and says so with its code; the log has the id of its message."""
    worker, message = begun
    assert worker.end() == 4
    assert [text for text in said if text.format(message=message) not in "".join(worker.log)] == []
    assert group.offsets() == {}


@pytest.mark.parametrize("begun", [("stubborn",), ("blocking",), ("background",)], indirect=True)
def test_a_second_signal_ends_it_whatever_a_handler_does(begun: tuple[Working, str]) -> None:
    """While a handler blocks the event loop, and while a thread of a handler goes on after the worker."""
    worker, _ = begun
    for _ in range(100):
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
    assert worker.ended() == 1
