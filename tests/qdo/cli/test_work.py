"""``qdo work`` as a real process: what it handles, what it says, and how it ends."""

from __future__ import annotations

import json
import logging
import signal
import sys
import urllib.request

import pytest

from queuey.client import Client
from tests.commands import Run
from tests.qdo.cli.conftest import Group
from tests.qdo.cli.workers import Hire


@pytest.fixture
def sent(client: Client, queue: str) -> list[str]:
    """Three messages in each partition; returns the ids of the last ones."""
    receipts = [
        [client.send(queue, f"{partition}.{number}", partition=partition) for number in range(3)]
        for partition in (1, 2, 3)
    ]
    return [mine[-1].id for mine in receipts]


@pytest.mark.parametrize("mode", [["--threads", "1", "--by", "body:kind"], ["--processes", "2"]], ids=" ".join)
def test_handles_everything_and_drains(
    hire: Hire, run: Run, group: Group, queue: str, sent: list[str], mode: list[str]
) -> None:
    """All messages are handled, each partition in order; SIGTERM records that, leaves the group and ends with 0."""
    with hire("handlers:handle", "--queue", queue, *mode) as worker:
        lines = worker.said(9)
        assert run("status", "--json", "--no-lag").json["members"] != []
        assert worker.end() == 0
    bodies = [line.split()[-1] for line in lines]
    assert [[body for body in bodies if body[0] == str(number)] for number in (1, 2, 3)] == [
        [f"{number}.{index}" for index in range(3)] for number in (1, 2, 3)
    ]
    assert group.offsets() == {(queue, number): sent[number - 1] for number in (1, 2, 3)}
    assert run("status", "--json", "--no-lag").json["members"] == []


def test_settings_come_from_a_file(hire: Hire, group: Group, queue: str, sent: list[str]) -> None:
    """Everything may stand in a file, the handler and its context too; the context is made once."""
    config = hire.directory / "worker.toml"
    config.write_text(f'handler = "handlers:counted"\ncontext = "handlers:context"\nqueue = ["{queue}"]\nthreads = 1\n')
    with hire("--config", str(config)) as worker:
        assert worker.said(10) == ["entered", *(f"count {number}" for number in range(1, 10))]
        assert worker.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["--queue", "q"], "module:function"),
        (["handlers:handle"], "--queue"),
        (["handlers:handel", "--queue", "q"], "is 'handle' meant?"),
        (["handlers:handle", "--queue", "q", "--context", "handlers:no"], "no"),
        (["handlers:handle", "--queue", "q", "--threads", "2", "--processes", "2"], "processes"),
        (["handlers:handle", "--queue", "q", "--time-limit", "1"], "thread"),
        (["handlers:handle", "--queue", "_q"], "_q"),
        (["handlers:handle", "--queue", "q", "--coordination", "postgres://x"], "postgres"),
        (["handlers:handle", "--queue", "q", "--group", ""], "group"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_what_cannot_work_refuses_to_start(
    hire: Hire, run: Run, command: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that could never handle anything ends with 2 and one line that says why."""
    monkeypatch.chdir(hire.directory)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    if "--group" in command:
        monkeypatch.delenv("QDO_GROUP")
    ended = run("work", *[part for part in command if part])
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_what_may_pass_is_another_failure(hire: Hire, queue: str, sent: list[str]) -> None:
    """A context that cannot be made, or a coordination service that is away, may pass, so that the code is 1."""
    with hire("handlers:handle", "--queue", queue, "--context", "handlers:broken") as worker:
        assert worker.ended() == 1
        assert "no database" in worker.log[-1]
    with hire("handlers:handle", "--queue", queue, "--coordination", "local:///proc/nothing/here.db") as worker:
        assert worker.ended() == 1
        assert worker.log[-1].startswith("qdo: ")
        assert not any("Traceback" in line for line in worker.log)


def test_log_and_metrics(hire: Hire, queue: str, sent: list[str]) -> None:
    """With ``--log json`` every line is an object; the metrics say what was handled."""
    with hire("handlers:handle", "--queue", queue, "--log", "json", "--metrics", "127.0.0.1:0") as worker:
        worker.said(9)
        address = worker.logged(r"http://127.0.0.1:\d+/metrics")
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
    """After the time to wait, with the code of failures, and a name that is close to what was given."""
    wrong = f"{queue[:-1]}~"
    with hire("handlers:handle", "--queue", wrong, "--queue", "no", "--wait-for-queue", "0.2") as worker:
        assert worker.ended() == 1
        assert f"qdo: there is no queue {wrong}, no, after 0.2 s; did you mean {queue}?" in "".join(worker.log)


@pytest.mark.parametrize("how", ["for ever", "one is there", "a pattern"])
def test_a_worker_waits_for_a_queue(hire: Hire, client: Client, queue: str, how: str) -> None:
    """If it is told to wait for ever, if another one of its queues is there, if others may match a pattern."""
    later = f"{queue}-later"
    options = {
        "for ever": ["--wait-for-queue", "0"],
        "one is there": ["--wait-for-queue", "0.1", "--queue", queue],
        "a pattern": ["--wait-for-queue", "0.1", "--pattern", f"{later}-*"],
    }[how]
    with hire("handlers:handle", "--queue", later, "--discover", "0.1", *options) as worker:
        worker.logged(f"queues that do not exist: {later}")
        client.create_queue(later, partitions=1)
        client.send(later, "here")
        assert worker.said(1) == ["handled 1 here"]
        assert worker.end() == 0
