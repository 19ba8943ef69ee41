"""``queuey claim``, ``ack`` and ``release`` on a real service."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuey.cli.claiming import SAME_SIGNAL_SECONDS, STOP_SIGNALS
from queuey.client import Backoff, Client
from queuey.client.calls.claim_calls import name_this_process
from queuey.client.claims.claiming import MAX_WAIT
from tests.commands import Run
from tests.contract.samples import eventually
from tests.servers.served import Served


@pytest.fixture
def jobs(client: Client, queue: str) -> str:
    client.send_many(queue, ["a", "b", "c"], after=None)
    return queue


@pytest.fixture(autouse=True)
def _hangups_count() -> Iterator[None]:
    """Resets SIGHUP, so that commands do not ignore it if ``nohup`` runs these tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def reason_of(client: Client, queue: str, message: str) -> str:
    [attempt] = [one.text for one in client.explain(queue, message).reasons if one.code == "attempt"]
    return attempt.partition("ProgramFailed: ")[2]


def test_claim_and_acknowledge(run: Run, client: Client, jobs: str) -> None:
    """A line has the receipt, the deliveries and the body; the receipt acknowledges."""
    ended = run("claim", jobs)
    receipt, deliveries, body = ended.text.split()
    assert (ended.code, ended.err, deliveries) == (0, "", "1")
    assert body in "abc"
    ended = run("ack", jobs, receipt)
    assert (ended.code, ended.text) == (0, "1 message acknowledged.\n")
    assert client.job_queue(jobs).size().size == 2


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


def test_bad_receipts_are_named(run: Run, jobs: str) -> None:
    """A text that is not a receipt is a failure that shows it."""
    ended = run("ack", jobs, "nonsense")
    assert ended.code == 1
    assert "nonsense" in ended.err


def test_a_program_handles_jobs(run: Run, client: Client, jobs: str, tmp_path: Path) -> None:
    """Each message is a program's standard input; what fails is handed out again later, the rest is acknowledged."""
    script = tmp_path / "job"
    output = "$body $JOB_DELIVERIES $JOB_PARTITION $JOB_ID"
    work = f'read body\necho "{output}" >> {tmp_path / "done"}\n[ "$body" != b ] || {{ echo no b >&2; exit 1; }}'
    script.write_text(f"#!/bin/sh\n{work}\n")
    script.chmod(0o700)
    ended = run("claim", jobs, "--wait", "0", "--retry", "600", "--", str(script))
    assert ended.code == 1
    assert "ended with 1 for" in ended.err
    assert ", delivery 1; the message is delivered again, or becomes a dead letter" in ended.err
    handled = [line.split() for line in (tmp_path / "done").read_text().splitlines()]
    assert sorted(words[0] for words in handled) == ["a", "b", "c"]
    assert {words[1] for words in handled} == {"1"}
    (job,) = client.job_queue(jobs).peek()
    assert reason_of(client, jobs, job.id) == "it ended with 1: no b"
    assert (job.body, str(job.partition), job.id) in [(words[0], words[2], words[3]) for words in handled]


def test_what_is_to_be_done(run: Run, client: Client, jobs: str) -> None:
    """``queuey jobs`` shows the backlog, and which worker has had which job for how long."""
    assert run("jobs", jobs).text.startswith(
        "3 waiting (0 failed before), 0 delayed, 0 claimed, 0 retrying, 0 dead letters; the oldest is "
    )
    [claimed] = client.job_queue(jobs).receive(1, ttl=600)
    [again] = client.job_queue(jobs).receive(1, ttl=600)
    client.job_queue(jobs).release(again)
    ended = run("jobs", jobs)
    assert ended.text.startswith("2 waiting (1 failed before), 0 delayed, 1 claimed, ")
    table = ended.text.splitlines()[1:]
    assert any(again.message.id in line and "waiting" in line for line in table)
    assert any(claimed.message.id in line and name_this_process() in line for line in table)
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
    assert line.split()[1:7] == ["2", "0", "1", "0", "1", "0"]
    [listed] = [one for one in run("queue", "list", "--backlog", "--json").json_lines if one["queue_name"] == jobs]
    assert (listed["backlog"]["waiting"], listed["backlog"]["claimed"]) == (2, 1)


def test_a_job_that_retries(run: Run, client: Client, queue: str) -> None:
    """A job that failed is shown as retrying until its time has come, with its task, its arguments and its error."""
    client.send(queue, json={"task": "thumb", "args": ["beach.jpg"], "kwargs": {"size": 4, "note": "\u202e"}})
    [claimed] = client.job_queue(queue).receive(1)
    client.job_queue(queue).release(claimed, 600, reason=ValueError("no\nstack"))
    text = run("jobs", queue).text
    assert text.startswith("0 waiting (0 failed before), 0 delayed, 0 claimed, 1 retrying, 0 dead letters; ")
    assert all(part in text for part in ('thumb("beach.jpg", size=4, note="\\u202e")', " retrying "))
    assert "ValueError: no\\nstack" in text
    assert "0 waiting (0 failed before), 0 delayed, 0 claimed, 1 retrying" in run("explain", queue).text
    [job] = run("jobs", queue, "--json").json["jobs"]
    assert (job["status"], job["task"], job["failure"]["error"]) == ("retrying", "thumb", "ValueError")


def test_another_queue_when_there_is_nothing(run: Run, client: Client, jobs: str) -> None:
    """``--then`` names queues to claim from when those before them have nothing; each line says which it was."""
    other = client.create_queue().name
    client.send(other, "from there")
    claim = ["claim", jobs, "--then", other, "--limit", "9"]
    bodies = [line.split()[0] for _ in range(4) for line in run(*claim).text.splitlines()]
    assert sorted(bodies) == sorted([jobs] * 3 + [other])
    assert bodies[-1] == other


def test_a_reason_has_the_backoff_of_the_queue(run: Run, client: Client, jobs: str) -> None:
    """``release --reason`` without a delay leaves the delay to the queue, which shows its own."""
    name = client.create_queue(backoff="first=500,most=600").name
    assert "8 min to 10 min, 2 times as long each time, up to 10% less" in run("queue", "info", name).text
    client.send(name, "x")
    [claimed] = client.job_queue(name).receive(1)
    assert run("release", name, claimed.receipt, "--reason", "no egg").code == 0
    [job] = client.job_queue(name).outstanding()
    assert job.expires is not None
    assert 440 < job.expires - time.time() < 510
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


ENDINGS = {
    "0": ("exit 0", 0, None),
    "killed": ("kill -KILL $$", 1, "it was ended by SIGKILL"),
    "closes its outputs": ("exec >&- 2>&-; exit 4", 1, "it ended with 4"),
    "closes its input": ("exec <&-; exit 0", 0, None),
    "leaves a child with its outputs": ("sleep 3 & exit 0", 0, None),
    "leaves a child, and fails": ("echo no egg >&2; sleep 3 & exit 5", 1, "it ended with 5: no egg"),
}
"""Shell programs: the exit code of ``queuey claim``, and the reason why the message was released, if it was."""


@pytest.mark.parametrize(("program", "code", "reason"), ENDINGS.values(), ids=ENDINGS)
def test_ends_of_a_program(run: Run, client: Client, queue: str, program: str, code: int, reason: str | None) -> None:
    """What ended with 0 is acknowledged, whatever it did with its streams; all else is released, with how it ended."""
    client.send(queue, "x" * 200_000)  # more than a pipe holds
    ended = run("claim", queue, "--limit", "1", "--retry", "600", "--", "sh", "-c", program)
    assert ended.code == code
    assert client.job_queue(queue).size().size == (reason is not None)
    if reason is not None:
        [released] = client.job_queue(queue).outstanding()
        assert reason_of(client, queue, released.message_id) == reason
        assert f"sh {reason.removeprefix('it ').partition(':')[0]} for" in ended.err


@pytest.mark.parametrize("kind", ["missing", "missing in $PATH", "not executable", "a directory"])
def test_a_program_that_cannot_be_run(run: Run, client: Client, jobs: str, tmp_path: Path, kind: str) -> None:
    """A missing program is wrong usage, reported before anything is claimed: no message loses a delivery."""
    name = str(tmp_path) if kind == "a directory" else "no-such-program" if "PATH" in kind else str(tmp_path / "job")
    if kind == "not executable":
        Path(name).write_text("#!/bin/sh\n")
    ended = run("claim", jobs, "--wait", "0", "--", name)
    assert ended.code == 2
    assert name in "".join(ended.err.replace("│", "").split())
    assert client.job_queue(jobs).outstanding() == []


def test_a_file_that_is_no_program(run: Run, client: Client, queue: str, tmp_path: Path) -> None:
    """Only the attempt to start it shows that: it is wrong usage, and the message comes again at once, unattempted."""
    program = tmp_path / "job"
    program.write_bytes(b"\x00")
    program.chmod(0o700)
    client.send(queue, "a")
    ended = run("claim", queue, "--ttl", "600", "--", str(program))
    assert ended.code == 2
    assert "Exec format error" in ended.err
    assert [(job.deliveries, job.handed_out) for job in client.job_queue(queue).receive()] == [(1, 2)]


LOOP = "echo begun; while :; do sleep 0.05; done"
STOPS = {
    "ends with 0": (f"trap 'exit 0' TERM; {LOOP}", [signal.SIGTERM], 143, None),
    "ends by SIGHUP": ("echo begun; exec sleep 600", [signal.SIGHUP], 129, "it was ended by SIGHUP"),
    "Ctrl-C": ("trap 'exit 0' INT; " + LOOP, [signal.SIGINT], 130, None),
    "a child of it goes on": ("echo begun; sleep 600; exit 0", [signal.SIGTERM], 143, "it was ended by SIGTERM"),
    "ignores the first": (f"trap '' TERM; {LOOP}", [signal.SIGTERM] * 2, 143, "it was ended by SIGKILL"),
}
"""Shell programs: signals to ``queuey claim``, its exit code, and why the message was released, if it was."""


@pytest.mark.parametrize(("program", "signals", "code", "reason"), STOPS.values(), ids=STOPS)
def test_stopped_while_a_program_runs(
    served: Served, client: Client, queue: str, program: str, signals: list[int], code: int, reason: str | None
) -> None:
    """The program gets the signal and is waited for, then its message is settled; the next message is not begun."""
    client.send_many(queue, ["a", "b"], after=None)
    claim = ["claim", queue, "--ttl", "600", "--retry", "600", "--", "sh", "-c", program]
    with served.command(*claim) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signals[0])
        for number in signals[1:]:
            time.sleep(2 * SAME_SIGNAL_SECONDS)
            process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == code
    assert client.job_queue(queue).counts().claimed == 0
    assert client.job_queue(queue).size().size == 1 + (reason is not None)
    if reason is not None:
        [released] = client.job_queue(queue).outstanding()
        assert reason_of(client, queue, released.message_id).startswith(reason)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stopped_while_it_waits_for_messages(served: Served, client: Client, queue: str, number: int) -> None:
    """A signal ends the command at once while it waits for messages."""
    client.send(queue, "a")
    with served.command("claim", queue, "--ttl", "600", "--", "true") as process:
        assert eventually(lambda: not client.job_queue(queue).size().size)
        begun = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=60)
        assert (process.returncode, time.monotonic() - begun < MAX_WAIT / 2) == (128 + number, True)


def test_cancel_and_retry(run: Run, client: Client, queue: str) -> None:
    """Each job has a line with its new state; the ids are those of the list, and at least one is required."""
    later = client.send(queue, "later", delay=600)
    place = f"{later.partition}:{later.id}"
    ended = run("jobs", queue, "retry", later.id)
    assert (ended.code, ended.text) == (0, f"{later.id} can be claimed now.\n")
    [job] = client.job_queue(queue).receive()
    assert run("jobs", queue, "retry", place, "--json").json == {"message": place, "job": "claimed"}
    ended = run("jobs", queue, "cancel", place, later.id)
    assert [line.partition(" is claimed: its worker ")[0] for line in ended.text.splitlines()] == [place, later.id]
    client.job_queue(queue).release(job)
    assert run("jobs", queue, "cancel", place).text == f"{place} was done before.\n"
    assert client.job_queue(queue).receive() == []
    assert run("jobs", queue, "cancel", "0123456789ab11e88000000000000001").code == 1
    ended = run("jobs", queue, "cancel")
    assert (ended.code, "no job to cancel" in ended.err) == (2, True)


@pytest.mark.parametrize("act", ["cancel", "retry"])
def test_a_dead_letter_is_neither_cancelled_nor_retried(run: Run, client: Client, act: str) -> None:
    """The command says that it is a dead letter, and which command sends it back."""
    queue = client.create_queue(max_deliveries=1).name
    sent = client.send(queue, "a")
    client.job_queue(queue).release(client.job_queue(queue).receive(), retry=False)
    assert eventually(lambda: client.job_queue(queue).status(sent)[0].status == "failed")
    command = f"qdo deadletter redrive --queue {queue}"
    ended = run("jobs", queue, act, f"1:{sent.id}")
    assert ended.text == f"1:{sent.id} is a dead letter. To send those of the queue back: {command}\n"
