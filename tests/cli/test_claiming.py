"""``queuey claim``, ``ack`` and ``release`` on a real service."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Timer

import pytest

from queuey.client import Backoff, Client
from queuey.client.calls.claim_calls import this_process
from queuey.client.claims import claiming
from queuey.client.claims.claiming import LONGEST_WAIT
from tests.commands import Run
from tests.replacing import replace_in
from tests.servers.served import Served


@pytest.fixture
def jobs(client: Client, queue: str) -> str:
    """A queue with the jobs a, b and c."""
    client.send_many(queue, ["a", "b", "c"], after=None)
    return queue


def all_come(client: Client, jobs: str) -> bool:
    """Returns whether each of the three jobs is delivered, without a wait for claims that last ten minutes."""
    found = set()
    for job in client.job_queue(jobs).claim(idle=60):
        found.add(job.body)
        job.ack()
        if len(found) == len("abc"):
            return True
    return False


def test_a_long_wait_takes_several_requests(run: Run, client: Client, queue: str) -> None:
    """A wait may be longer than one request may wait, and ends with the first message."""
    assert run("claim", queue, "--wait", "0.2").err == "There is nothing to claim now.\n"
    sending = Timer(1.5, client.send, (queue, "late"))
    sending.start()
    with replace_in(claiming, LONGEST_WAIT, 0.5):
        ended = run("claim", queue, "--wait", "60", "--json")
    sending.join(60)
    assert (ended.code, [line["body"] for line in ended.json_lines]) == (0, ["late"])


def test_claim_and_acknowledge(run: Run, client: Client, jobs: str) -> None:
    """A line has the receipt, the deliveries and the body; the receipt acknowledges."""
    ended = run("claim", jobs)
    receipt, deliveries, body = ended.text.split()
    assert (ended.code, ended.err, deliveries) == (0, "", "1")
    assert body in "abc"
    ended = run("ack", jobs, receipt)
    assert (ended.code, ended.text) == (0, "1 message acknowledged.\n")
    assert client.job_queue(jobs).size().size == 2


def test_receipts_are_piped(run: Run, client: Client, jobs: str) -> None:
    """What --json prints can be given to ack on standard input."""
    claimed = [line for _ in range(3) for line in run("claim", jobs, "--limit", "3", "--json").json_lines]
    assert sorted(line["body"] for line in claimed) == ["a", "b", "c"]
    assert all(line["deliveries"] == 1 and line["expires"] > 0 and line["message_id"] for line in claimed)
    receipts = "\n".join(line["receipt"] for line in claimed)
    ended = run("ack", jobs, "--json", stdin=receipts.encode())
    assert (ended.code, ended.json) == (0, {"acknowledged": 3, "refused": []})
    ended = run("claim", jobs)
    assert (ended.code, ended.text, ended.err) == (0, "", "There is nothing to claim now.\n")


def test_released_jobs_come_again(run: Run, jobs: str) -> None:
    """A released message is handed out again; its old receipt is refused with exit code 1 and named."""
    (first,) = run("claim", jobs, "--json").json_lines
    assert run("release", jobs, first["receipt"]).text == "1 message released.\n"
    partition = str(first["partition"])
    (second,) = run("claim", jobs, "--json", "--partitions", partition).json_lines
    assert (second["message_id"], second["deliveries"]) == (first["message_id"], 2)
    ended = run("ack", jobs, first["receipt"], second["receipt"])
    assert (ended.code, ended.text) == (1, "1 message acknowledged.\n")
    assert ended.err.startswith(f"{first['receipt']}: ")


@pytest.mark.parametrize("arguments", [["ack"], ["release"]])
def test_no_receipts_are_wrong_usage(run: Run, jobs: str, arguments: list[str]) -> None:
    """Nothing to acknowledge is wrong usage."""
    assert run(*arguments, jobs).code == 2


def test_bad_receipts_are_named(run: Run, jobs: str) -> None:
    """A text that is no receipt is a failure that shows it."""
    ended = run("ack", jobs, "nonsense")
    assert ended.code == 1
    assert "nonsense" in ended.err


def test_a_program_handles_jobs(run: Run, client: Client, jobs: str, tmp_path: Path) -> None:
    """Each message is a program's standard input; what fails is handed out again later, the rest is acknowledged."""
    script = tmp_path / "job"
    told = "$body $JOB_DELIVERIES $JOB_PARTITION $JOB_ID"
    work = f'read body\necho "{told}" >> {tmp_path / "done"}\n[ "$body" != b ] || {{ echo no b >&2; exit 1; }}'
    script.write_text(f"#!/bin/sh\n{work}\n")
    script.chmod(0o700)
    ended = run("claim", jobs, "--wait", "0", "--retry", "600", "--", str(script))
    assert ended.code == 1
    assert "ended with 1 for" in ended.err
    assert ", delivery 1; the message is delivered again, or becomes a dead letter" in ended.err
    found = [line.split() for line in (tmp_path / "done").read_text().splitlines()]
    assert sorted(words[0] for words in found) == ["a", "b", "c"]
    assert {words[1] for words in found} == {"1"}
    (left,) = client.job_queue(jobs).peek()
    reasons = [one.text for one in client.explain(jobs, left.id).reasons if one.code == "attempt"]
    assert [text.partition(": ")[2] for text in reasons] == ["queuey.cli.claiming.ProgramFailed: it ended with 1: no b"]
    assert (left.body, str(left.partition), left.id) in [(words[0], words[2], words[3]) for words in found]


def test_what_is_to_be_done(run: Run, client: Client, jobs: str) -> None:
    """``queuey jobs`` shows the backlog, and who has which job for how long."""
    assert run("jobs", jobs).text.startswith(
        "3 waiting (0 failed before), 0 delayed, 0 claimed, 0 dead letters; the oldest is "
    )
    [claimed] = client.job_queue(jobs).receive(1, ttl=600)
    [again] = client.job_queue(jobs).receive(1, ttl=600)
    client.job_queue(jobs).release(again)
    ended = run("jobs", jobs)
    assert ended.text.startswith("2 waiting (1 failed before), 0 delayed, 1 claimed, ")
    table = ended.text.splitlines()[1:]
    assert any(again.message.id in line and "waits" in line for line in table)
    assert any(claimed.message.id in line and this_process() in line for line in table)
    assert "state" not in table[0]
    client.job_queue(jobs).set_states([(claimed, {"done": 3, "text": "x" * 99})])
    table = run("jobs", jobs).text.splitlines()[1:]
    assert table[0].split()[-1] == "state"
    assert any(claimed.message.id in line and '{"done":3,"text":"xxx' in line and "x…" in line for line in table)
    shown = run("jobs", jobs, "--json", "--limit", "1").json
    assert (shown["waiting"], shown["claimed"], [one["deliveries"] for one in shown["jobs"]]) == (2, 1, [1])
    assert run("jobs", "nowhere").code != 0
    assert "2 waiting (1 failed before), 0 delayed, 1 claimed" in run("queue", "info", jobs).text
    assert "For claims: 2 waiting (1 failed before)" in run("explain", jobs).text
    [line] = [line for line in run("queue", "list", "--backlog").text.splitlines() if line.startswith(jobs)]
    assert line.split()[1:6] == ["2", "0", "1", "1", "0"]
    [listed] = [one for one in run("queue", "list", "--backlog", "--json").json_lines if one["queue_name"] == jobs]
    assert (listed["backlog"]["waiting"], listed["backlog"]["claimed"]) == (2, 1)


def test_another_queue_when_there_is_nothing(run: Run, client: Client, jobs: str) -> None:
    """``--then`` names queues to claim from when those before them have nothing; each line says which it was."""
    other = client.create_queue().name
    client.send(other, "from there")
    claim = ["claim", jobs, "--then", other, "--limit", "9"]
    found = [line.split()[0] for _ in range(4) for line in run(*claim).text.splitlines()]
    assert sorted(found) == sorted([jobs] * 3 + [other])
    assert found[-1] == other


def test_a_reason_has_the_backoff_of_the_queue(run: Run, client: Client, jobs: str) -> None:
    """``release --reason`` without a delay leaves the delay to the queue, which shows its own."""
    name = client.create_queue(backoff="first=500,most=600").name
    assert "8 min to 10 min, 2 times as long each time, up to 10% less" in run("queue", "info", name).text
    client.send(name, "x")
    [claimed] = client.job_queue(name).receive(1)
    assert run("release", name, claimed.receipt, "--reason", "no egg").code == 0
    [left] = client.job_queue(name).outstanding()
    assert left.expires is not None
    assert 440 < left.expires - time.time() < 510
    assert run("queue", "update", name, "--reset", "backoff").code == 0
    assert client.info(name).backoff == Backoff()


def test_what_failed_comes_again_after_the_delay(run: Run, jobs: str) -> None:
    """A program's failure or `release` with a delay brings a message back then, however long its claim would last."""
    assert run("claim", jobs, "--limit", "1", "--ttl", "600", "--retry", "1", "--", "false").code == 1
    claim = ["claim", jobs, "--ttl", "600", "--wait", "20", "--json"]
    claimed = [line for _ in range(3) for line in run(*claim).json_lines]
    assert sorted(line["deliveries"] for line in claimed) == [1, 1, 2]
    assert run("release", jobs, "--delay", "1", claimed[0]["receipt"]).text == "1 message released.\n"
    (again,) = run(*claim).json_lines
    assert (again["message_id"], again["deliveries"]) == (claimed[0]["message_id"], claimed[0]["deliveries"] + 1)


def test_the_limit_ends_it(run: Run, client: Client, jobs: str) -> None:
    """With a program, a limit is how many messages are handled."""
    assert run("claim", jobs, "--limit", "2", "--", "true").code == 0
    assert client.job_queue(jobs).size().size == 1


def test_a_program_that_is_not_there(run: Run, client: Client, jobs: str) -> None:
    """A program that cannot be run is wrong usage, and its message is delivered again after a second."""
    ended = run("claim", jobs, "--ttl", "600", "--", "/nowhere/program")
    assert ended.code == 2
    assert "/nowhere/program" in ended.err
    assert all_come(client, jobs)


def test_a_purge_does_not_end_the_work(served: Served, client: Client, jobs: str, tmp_path: Path) -> None:
    """A job whose queue is purged while its program runs is lost, which is said; the next one is worked on."""
    program = f"cat; echo busy >&2; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    with served.command("claim", jobs, "--limit", "2", "--wait", "20", "--", "sh", "-c", program) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) in {"a", "b", "c"}
        client.purge_queue(jobs)
        client.send(jobs, "after")
        (tmp_path / "go").touch()
        rest, said = process.communicate(timeout=100)
    assert (process.returncode, rest) == (0, "after")
    assert "the queue was purged" in said
    assert "busy\n" in said


def test_ctrl_c_releases(served: Served, client: Client, jobs: str) -> None:
    """Ctrl-C ends the program, and its message is delivered again after a second."""
    with served.command("claim", jobs, "--ttl", "600", "--", "sh", "-c", "echo begun; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert client.job_queue(jobs).counts().claimed == 1
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=100)
        assert process.returncode == 130
    assert all_come(client, jobs)


@pytest.mark.needs_programs
@pytest.mark.parametrize("code", [0, 1])
def test_a_service_that_is_away_when_a_program_ends(code: int, tmp_path: Path) -> None:
    """What is done is acknowledged once the service is back; what failed is delivered again, and never acknowledged."""
    go, script = tmp_path / "go", tmp_path / "job"
    script.write_text(f"#!/bin/sh\necho begun\nuntil [ -e {go} ]; do sleep 0.1; done\nexit {code}\n")
    script.chmod(0o700)
    with Served(tmp_path) as first, first.client() as client:
        client.create_queue("jobs")
        client.send("jobs", "a")
        with first.command("claim", "jobs", "--limit", "1", "--ttl", "60", "--", str(script)) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "begun\n"
            first.kill()
            go.touch()
            said = process.stderr.readline()
            if code:
                said += process.stderr.readline()
                assert process.wait(60) == 1
            with Served(tmp_path, port=first.port) as second, second.client() as again:
                if not code:
                    assert process.wait(60) == 0
                found = again.job_queue("jobs").size().size
    assert said.startswith(f"{script} ended with 1" if code else "The service is away")
    assert ("The release failed" in said, found) == (bool(code), code)
