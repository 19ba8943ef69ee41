"""``qdo work``: its start, its end, and the format of its log."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuey.client import Client
from queuey.runtime.logs import LineFormatter
from tests.commands import Run
from tests.qdo.cli.conftest import Group, ServiceGroup
from tests.qdo.cli.workers import Hire, WorkerProcess
from tests.servers.processes import children, live_processes
from tests.waiting import until_async as until


@pytest.fixture
def group(service_group: ServiceGroup) -> ServiceGroup:
    """A group that other processes can reach."""
    return service_group


@pytest.fixture
def sent(client: Client, queue: str) -> list[str]:
    """Sends three messages to each partition; returns the ids of the last ones."""
    receipts = [
        [client.send(queue, f"{partition}.{number}", partition=partition) for number in range(3)]
        for partition in (1, 2, 3)
    ]
    return [mine[-1].id for mine in receipts]


PRINTING = """
import sys, threading
from qdo.cli.work import print_whole_lines
print_whole_lines()
sys.setswitchinterval(1e-6)
def handle(name):
    for number in range(300):
        print(name, number, "x" * 1000, "end")
threads = [threading.Thread(target=handle, args=[name]) for name in range(4)]
for each in (*threads, threading.Thread(target=print, args=["without end"], kwargs={"end": ""})):
    each.start()
"""


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    """Lines printed by several threads of two workers stay whole; text without a line end is printed at the end."""
    path = tmp_path / "printed"
    with path.open("a") as printed:
        writers = [subprocess.Popen([sys.executable, "-c", PRINTING], stdout=printed) for _ in range(2)]
        assert [writer.wait(60) for writer in writers] == [0, 0]
    text = path.read_text()
    assert text.count("without end") == 2
    expected = [f"{name} {number} {'x' * 1000} end" for name in range(4) for number in range(300)]
    assert sorted(text.replace("without end", "").splitlines()) == sorted(expected * 2)


@pytest.mark.parametrize("mode", [["--threads", "2"], ["--processes", "1"]], ids=" ".join)
def test_a_printed_line_appears_at_once(hire: Hire, queue: str, sent: list[str], mode: list[str]) -> None:
    """Text printed by a handler is in a pipe before the worker ends."""
    with hire("handlers:printing", "--queue", queue, *mode) as worker:
        lines = worker.read_lines(9)
        assert worker.end() == 0
    assert sorted(line.split() for line in lines) == [
        ["printed", f"{n}.{index}"] for n in (1, 2, 3) for index in range(3)
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["--queue", "q"], "module:function"),
        (["handlers:handle"], "--queue"),
        (["handlers:handel", "--queue", "q"], "did you mean 'handle'?"),
        (["handlers:handle", "--queue", "q", "--context", "handlers:no"], "no"),
        (["handlers:handle", "--queue", "q", "--time-limit", "1"], "thread"),
        (["handlers:handle", "--queue", "q", "--group", ""], "group"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_what_cannot_work_refuses_to_start(
    hire: Hire, run: Run, command: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that could never handle a message exits with code 2 and one line with the reason."""
    monkeypatch.chdir(hire.directory)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    if "--group" in command:
        monkeypatch.delenv("QDO_GROUP")
    ended = run("work", *[part for part in command if part])
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_what_may_pass_is_another_failure(hire: Hire, queue: str, sent: list[str]) -> None:
    """A failing context, or a coordination service that is away, may be temporary, so the code is 1."""
    with hire("handlers:handle", "--queue", queue, "--context", "handlers:broken") as worker:
        assert worker.wait_for_end() == 1
        assert "no database" in worker.log[-1]
    away = "zookeeper://127.0.0.1:9?connect_timeout=0.5"
    with hire("handlers:handle", "--queue", queue, "--coordination", away) as worker:
        assert worker.wait_for_end() == 1
        assert worker.log[-1].startswith("qdo: ")
        assert not any("Traceback" in line for line in worker.log)


def test_log_and_metrics(hire: Hire, queue: str, sent: list[str]) -> None:
    """With ``--log json`` every line is an object; the metrics count the handled messages."""
    with hire("handlers:handle", "--queue", queue, "--log", "json", "--metrics", "127.0.0.1:0") as worker:
        worker.read_lines(9)
        address = worker.wait_for_log(r"http://127.0.0.1:\d+/metrics")
        with urllib.request.urlopen(address) as answer:
            families = answer.read().decode()
        assert worker.end() == 0
    lines = [json.loads(line) for line in worker.log]
    assert {"time", "level", "logger", "process", "message"} <= set.intersection(*map(set, lines))
    assert {line["level"] for line in lines} == {"info"}
    joined = next(line for line in lines if "joined the group" in line["message"])
    assert joined["member"] in joined["message"]
    assert "qdo_partitions_owned 3.0" in families
    assert "process_cpu_seconds_total" in families


def test_a_worker_whose_queues_do_not_exist_ends(hire: Hire, queue: str) -> None:
    """After the waiting time it exits with the code of failures, and names a similar queue."""
    wrong = f"{queue[:-1]}~"
    with hire("handlers:handle", "--queue", wrong, "--queue", "no", "--wait-for-queue", "0.2") as worker:
        assert worker.wait_for_end() == 1
        assert f"qdo: there is no queue {wrong}, no, after 0.2 s; did you mean {queue}?" in "".join(worker.log)


@pytest.mark.parametrize("how", ["for ever", "one is there", "a pattern"])
def test_a_worker_waits_for_a_queue(hire: Hire, client: Client, queue: str, how: str) -> None:
    """It waits if told to wait forever, if another of its queues exists, or if others may match a pattern."""
    later = f"{queue}-later"
    options = {
        "for ever": ["--wait-for-queue", "0"],
        "one is there": ["--wait-for-queue", "0.1", "--queue", queue],
        "a pattern": ["--wait-for-queue", "0.1", "--pattern", f"{later}-*"],
    }[how]
    with hire("handlers:handle", "--queue", later, "--discover", "0.1", *options) as worker:
        worker.wait_for_log(f"queues that do not exist: {later}")
        client.create_queue(later, partitions=1)
        client.send(later, "here")
        assert worker.read_lines(1) == ["handled 1 here"]
        assert worker.end() == 0


def record(message: str, *arguments: object, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, error.__traceback__)
    return logging.getLogger("qdo.worker").makeRecord(
        "qdo.worker", logging.WARNING, __file__, 1, message, arguments, trace, extra=extra
    )


@pytest.mark.parametrize("form", [("configuring:handle",), ("handlers:handle", "--context", "configuring:context")])
def test_a_program_that_configures_logging(hire: Hire, queue: str, form: tuple[str, ...]) -> None:
    """Our records are written however the modules of handler and context configure logging."""
    text = """
import logging.config
logging.config.dictConfig({"version": 1})
def handle(message, context): ...
def context(): ...
"""
    (hire.directory / "configuring.py").write_text(text)
    with hire(*form, "--queue", queue) as worker:
        worker.wait_for_log("joined the group")
        assert worker.end() == 0


def test_lines_for_programs() -> None:
    """Each line is one JSON object with all fields of the record, of any type, and the traceback as text."""
    fields = json.loads(LineFormatter("json").format(record("a\nb", partitions=["a/1"], place=Path("x"), code=3)))
    assert fields.pop("time").endswith("Z")
    assert fields.pop("process") > 0
    assert fields == {
        "level": "warning",
        "logger": "qdo.worker",
        "message": "a\nb",
        "partitions": ["a/1"],
        "place": "x",
        "code": 3,
    }
    try:
        raise ValueError("x")  # noqa: TRY301 - for its traceback
    except ValueError:
        fields = json.loads(LineFormatter("json").format(record("failed", error=sys.exc_info()[1])))
    assert fields["exception"].endswith("ValueError: x")


@pytest.mark.parametrize("handler", ["blocking", "holding"])
async def test_a_worker_that_hangs_as_a_whole_ends(hire: Hire, client: Client, queue: str, handler: str) -> None:
    """If a handler blocks the event loop or holds the interpreter, the code is 1, and the log shows where."""
    client.send(queue, handler)
    options = ("--stalled-after", "2", "--session-timeout", "3")
    with hire(f"handlers:{handler}", "--queue", queue, *options) as worker:
        worker.read_lines(1)
        assert worker.wait_for_end() == 1
    assert f"in {handler}" in "".join(worker.log)


async def test_a_child_that_holds_its_interpreter_does_not_outlive_its_worker(
    hire: Hire, client: Client, queue: str
) -> None:
    """A child that holds its interpreter cannot notice that its parent was killed, and still ends some time later."""
    client.send(queue, "holding")
    with hire("handlers:holding", "--queue", queue, "--processes", "1", "--stalled-after", "2") as worker:
        worker.read_lines(1)
        (child,) = children(worker.process.pid)
        worker.process.kill()
        await until(lambda: not live_processes(child))


@pytest.fixture
def begun(
    request: pytest.FixtureRequest, hire: Hire, client: Client, queue: str
) -> Iterator[tuple[WorkerProcess, str]]:
    """A worker with a message in hand, and the message's id."""
    handler, *options = request.param
    receipt = client.send(queue, handler)
    with hire(f"handlers:{handler}", "--queue", queue, *options) as worker:
        worker.read_lines(1)
        yield worker, receipt.id


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        (
            ("stubborn", "--drain", "0.2"),
            ["the process ends without them", "a handler has not finished message {id} of"],
        ),
        (("in_thread", "--drain", "0.2"), ["the process ends without them"]),
    ],
    indirect=["begun"],
    ids=["task that swallows its cancellation", "thread of a task"],
)
def test_a_handler_that_goes_on_does_not_keep_a_worker(
    begun: tuple[WorkerProcess, str], group: Group, said: list[str]
) -> None:
    """The process ends without waiting for the handler, with its own code; the log has the id of the message."""
    worker, message = begun
    assert worker.end() == 4
    assert [text for text in said if text.format(id=message) not in "".join(worker.log)] == []
    assert group.offsets() == {}


@pytest.mark.parametrize("begun", [("blocking",), ("background",)], indirect=True)
def test_a_second_signal_ends_it_whatever_a_handler_does(begun: tuple[WorkerProcess, str]) -> None:
    """It ends even if a handler blocks the event loop, or a thread of a handler outlasts the worker."""
    worker, _ = begun
    for _ in range(100):
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
    assert worker.wait_for_end() == 1
