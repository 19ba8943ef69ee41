"""Celery with its own transport for SQS, as it is released."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import boto3
import pytest

from tests.acceptance.sqs.conftest import REGION, Sqs
from tests.servers.processes import ending
from tests.servers.served import environment
from tests.waiting import PATIENCE_SECONDS, until

MODULE = "tests.acceptance.sqs.celery_app"
READY = 60.0
"""Seconds in which a worker starts, and a task ends."""


class Broker(NamedTuple):
    """The variables of :mod:`celery_app`, the application as this process uses it, and the facade's own client."""

    variables: dict[str, str]
    tasks: Any
    client: Any

    @property
    def records(self) -> list[list[str]]:
        return [line.split() for line in Path(self.variables["RECORDS"]).read_text().splitlines()]


@contextlib.contextmanager
def open_broker(sqs: Sqs, directory: Path, visibility: int) -> Iterator[Broker]:
    """Imports the application for a facade, with queues of its own whose messages are invisible for some seconds."""
    host = sqs.url.removeprefix("http://")
    variables = {
        "BROKER": f"sqs://{quote(sqs.access_key, safe='')}:{quote(sqs.secret, safe='')}@{host}//",
        "PREFIX": f"c{uuid.uuid4().hex[:8]}-",
        "VISIBILITY": str(visibility),
        "RECORDS": str(directory / "records"),
        "RESULTS": str(directory / "results"),
    }
    (directory / "records").touch()
    (directory / "results").mkdir()
    client = boto3.client(
        "sqs",
        endpoint_url=sqs.url,
        region_name=REGION,
        aws_access_key_id=sqs.access_key,
        aws_secret_access_key=sqs.secret,
    )
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        sys.modules.pop(MODULE, None)
        tasks = importlib.import_module(MODULE)
    try:
        yield Broker(variables, tasks, client)
    finally:
        tasks.app.close()
        client.close()


@contextlib.contextmanager
def worker(broker: Broker, name: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Yields a worker when it is ready or has ended; kills its process group afterwards."""
    line = [sys.executable, "-m", "celery", "-A", MODULE, "worker", "--hostname", f"{name}@here", "-l", "INFO"]
    log = Path(broker.variables["RECORDS"]).with_name(f"{name}.log")
    with log.open("w") as output:
        process = subprocess.Popen(
            [*line, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**broker.variables),
            start_new_session=True,
        )
    try:
        with ending(process):
            until(lambda: " ready." in log.read_text() or process.poll() is not None)
            yield process
    except BaseException as error:
        error.add_note(log.read_text())
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def broker(sqs: Sqs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a worker that has several threads."""
    directory = tmp_path_factory.mktemp("celery")
    with (
        open_broker(sqs, directory, 30) as opened,
        worker(opened, "threads", "--pool", "threads", "-c", "4", "-Q", "default"),
    ):
        yield opened


def results(sent: Sequence[Any]) -> list[Any]:
    return [each.get(timeout=READY, interval=0.05) for each in sent]


def test_results(broker: Broker) -> None:
    """Each task runs once and has its result; arguments arrive as they are."""
    tasks = broker.tasks
    assert results([tasks.add.delay(number, 1) for number in range(30)]) == list(range(1, 31))
    added = sorted(int(words[1]) for words in broker.records if words[0] == "add")
    assert added == list(range(30))
    values = ["äöü \U0001f600 <&>\n\0", {"a": [1, None, 2.5, "x" * 100_000]}]
    assert results([tasks.echo.delay(value) for value in values]) == values


def test_countdown(broker: Broker) -> None:
    """A task with a countdown or a time does not run before that, and soon after it."""
    task, now = broker.tasks.at, time.time()
    sent = [task.apply_async((now + 2,), countdown=2), task.apply_async((now + 1,), countdown=1)]
    sent.append(task.apply_async((now + 1.5,), eta=datetime.fromtimestamp(now + 1.5, UTC)))
    assert all(-0.1 < late < 10 for late in results(sent))


def test_no_remote_control(broker: Broker) -> None:
    """SQS has no broadcasts: no worker answers, and Celery creates only the queues for tasks."""
    assert broker.tasks.app.control.ping(timeout=0.5) == []
    prefix = broker.variables["PREFIX"]
    urls = broker.client.list_queues(QueueNamePrefix=prefix)["QueueUrls"]
    assert {url.rpartition("/")[2].removeprefix(prefix) for url in urls} <= {"default"}
    assert all("pidbox" not in url for url in broker.client.list_queues().get("QueueUrls", []))


@pytest.mark.parametrize("pool", ["prefork", pytest.param("solo", marks=pytest.mark.slow)])
def test_killed(pool: str, sqs: Sqs, tmp_path: Path) -> None:
    """A task that is acknowledged late is resumed by another worker once its message is visible again, not before.

    One that takes long, but not longer than a message is invisible, runs once.
    """
    visibility = 5
    with open_broker(sqs, tmp_path, visibility) as broker:
        with worker(broker, "first", "--pool", pool, "-c", "1") as process:
            lost = broker.tasks.long.delay("lost", 60)
            until(lambda: bool(broker.records))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
        assert len(broker.records) == 1
        with worker(broker, "second", "--pool", pool, "-c", "1"):
            kept = broker.tasks.long.delay("kept", 2)
            assert results([lost, kept]) == ["lost", "kept"]
        counted = Counter((what, name) for what, name, _ in broker.records)
        assert counted == {("begun", "lost"): 2, ("done", "lost"): 1, ("begun", "kept"): 1, ("done", "kept"): 1}
        first, second = (float(words[2]) for words in broker.records if words[:2] == ["begun", "lost"])
        # It began a little after its message became invisible.
        assert second - first > visibility - 2
