"""``queuey claim``, ``queuey ack`` and ``queuey release``: a queue as a job queue, for shells."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import closing, suppress
from functools import partial
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from queuey.api.claims import backlog_text
from queuey.cli.messages import Partitions, body_bytes, body_text, json_fields, note_absence
from queuey.cli.service_options import Queue, on_existing, queue_names, waiting
from queuey.terminal import output, times
from queuey.terminal.signals import handled
from queuey.terminal.task_calls import ShownCall
from queuey.terminal.texts import plural, printable, shortened
from queuey.time_parsing import length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from queuey.client import Client, Job, JobQueue
    from queuey.client.results import OutstandingJob, Refused

_FATE = "the message is delivered again, or becomes a dead letter after the last of the queue's max_deliveries."
LOST = "Another caller has the message by now, or the queue was purged."

MAX_REASON_BYTES = 2048
"""Max bytes of a program's standard error, counted from its end, that become the reason of a failure."""
MAX_STATES, MAX_SHOWN = 100, 60
"""Max jobs whose states the service shows in one call; max characters of a state or an error in a line."""
STDERR_TIMEOUT = 1.0
"""Timeout for standard error to close after the program has ended, in seconds."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TOGETHER = 0.1
"""Max seconds between signals that count as one: a supervisor may send one to the command and one to its group."""

Receipts = Annotated[
    list[str] | None,
    typer.Argument(help="Receipts; none: one a line from standard input.", show_default=False),
]


@waiting
def claim(
    client: Client,
    queue: Queue,
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: a program to run for each message.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many messages. 1; with a program no limit.")
    ] = None,
    ttl: Annotated[
        float, times.duration("Time after which other callers may get the messages.", show_default="30s")
    ] = 30.0,
    wait: Annotated[
        float | None, times.duration("How long to wait for messages if there are none. 0; with a program for ever.")
    ] = None,
    retry: Annotated[
        float | None,
        times.duration(
            "Time until a message whose program failed is delivered again.", show_default="the queue's backoff"
        ),
    ] = None,
    partitions: Partitions = "*",
    then: Annotated[
        list[str] | None,
        typer.Option(help="Another queue, for when those before it have nothing; up to 9.", autocompletion=queue_names),
    ] = None,
) -> None:
    """Claim messages, so that no other caller gets them for a while; with --json one per line.

    A line has the receipt, the number of deliveries and the body. `queuey ack` says that a message is done. With a
    program, each message is its standard input; exit code 0 acknowledges the message. If it
    failed for any, this ends with 1.
    """
    jobs = client.job_queue([queue, *(then or [])])
    if command:
        _work(jobs, command, limit=limit, ttl=ttl, idle=wait, retry=retry, partitions=partitions)
        return
    from queuey.client.claims.claiming import LONGEST_WAIT

    end = time.monotonic() + (wait or 0.0)
    while True:
        left = min(max(0.0, end - time.monotonic()), LONGEST_WAIT)
        claimed = jobs.receive(limit or 1, ttl=ttl, wait=left, partitions=partitions)
        if claimed or not left:
            break
    for each in claimed:
        about = {"receipt": each.receipt, "deliveries": each.deliveries, "expires": each.expires}
        text = f"{each.receipt}  {each.deliveries}  {printable(body_text(each.message.body))}"
        output.show(json_fields(each.message) | about, f"{each.queue}  {text}" if then else text)
    if not claimed:
        output.note("There is nothing to claim now.")


@on_existing
def ack(client: Client, queue: Queue, receipt: Receipts = None) -> None:
    """Acknowledge claimed messages: they are not delivered again."""
    _settle(client.job_queue(queue).ack, receipt, "acknowledged")


@on_existing
def release(
    client: Client,
    queue: Queue,
    receipt: Receipts = None,
    delay: Annotated[float | None, times.duration("Time until they are delivered again.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why they failed. Without --delay the queue's backoff decides then.")
    ] = None,
    retry: Annotated[bool, typer.Option(help="Deliver them again; else they become dead letters now.")] = True,
) -> None:
    """Release claimed messages: they are delivered again, at once or after a time."""
    release = partial(client.job_queue(queue).release, delay=delay, reason=reason, retry=retry)
    _settle(release, receipt, "released")


@on_existing
def jobs(
    client: Client,
    queue: Queue,
    act: Annotated[Literal["cancel", "retry"] | None, typer.Argument(help="Cancel jobs, or retry them now.")] = None,
    message: Annotated[list[str] | None, typer.Argument(help="Their ids: [PARTITION:]ID.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many.")] = 20,
) -> None:
    """Show how much is to be done, and the messages that were delivered: by whom, for how long, why they failed last.

    With --limit up to 100 each has its task with the arguments, the state that its worker has set, and its last error.
    """
    from queuey.client.results import OutstandingJob

    if act is not None:
        _act(client.job_queue(queue), act, message or [])
        return
    backlog = client.job_queue(queue).backlog()
    found = client.job_queue(queue).outstanding(limit, states=limit <= MAX_STATES)
    now = time.time()
    table = output.table(
        OutstandingJob,
        found,
        ("message", lambda job: f"{job.partition}:{job.message_id}"),
        *([("task", _task)] if any(one.task for one in found) else []),
        ("status", lambda job: job.status or ("claimed" if job.expires else "waiting")),
        "deliveries",
        ("worker", lambda job: job.worker or "-"),
        ("left", lambda job: _left(job, now)),
        *([("state", _state)] if any(one.state is not None for one in found) else []),
        *([("last error", _error)] if any(one.failure is not None for one in found) else []),
    )
    text = f"{backlog_text(backlog, now)}."
    output.show(msgspec.to_builtins(backlog) | {"jobs": found}, (text, table) if found else text)


def _act(jobs: JobQueue, act: Literal["cancel", "retry"], messages: list[str]) -> None:
    """Cancels jobs, or retries them now; prints what each is then."""
    if not messages:
        text = f"there is no job to {act}: name its id, as queuey send, jobs and peek print it"
        raise typer.BadParameter(text, param_hint="MESSAGE")
    for message in messages:
        job = jobs.cancel(message) if act == "cancel" else jobs.retry(message)
        output.show({"message": message, "job": job}, f"{message} {_ACTS[act, job]}")


_ACTS = {
    ("cancel", "removed"): "is removed.",
    ("cancel", "claimed"): "is claimed: its worker is asked to stop, and it is not tried again.",
    ("cancel", "done"): "was done before.",
    ("retry", "waiting"): "can be claimed now.",
    ("retry", "claimed"): "is claimed: a worker has it.",
    ("retry", "done"): "is done, or was removed.",
}


def _state(job: OutstandingJob) -> str:
    """Returns the beginning of a job's state."""
    return shortened("" if job.state is None else msgspec.json.encode(job.state).decode(), MAX_SHOWN)


def _task(job: OutstandingJob) -> str:
    return str(ShownCall(job.task, job.arguments)) if job.task else "-"


def _error(job: OutstandingJob) -> str:
    failure = job.failure
    if failure is None:
        return "-"
    return shortened(f"{failure.error}: {failure.text}" if failure.text else failure.error, MAX_SHOWN)


def _left(job: OutstandingJob, now: float) -> str:
    """Returns how long a claim, or the delay of a release, still lasts."""
    if job.expires is None or job.expires <= now:
        return "-"
    return length(math.ceil(job.expires - now))


def _work(
    jobs: JobQueue,
    command: list[str],
    *,
    limit: int | None,
    ttl: float,
    idle: float | None,
    retry: float | None,
    partitions: str,
) -> None:
    """Runs a program for each message until the limit, or nothing has come for so long.

    Raises:
        typer.Exit: The program failed for some.
    """
    from queuey.client import ClientError

    program = JobProgram(command)
    left, failed = sys.maxsize if limit is None else limit, 0
    claimed = jobs.claim(ttl=ttl, idle=idle, partitions=partitions, notice=note_absence)
    with handled(program.signalled, STOP_SIGNALS), closing(claimed):
        for job in program.until_stopped(claimed):
            failure, said = program.run(job)
            if not failure:
                _acknowledge(job)
            else:
                failed += 1
                output.note(f"{command[0]} {failure} for {job.receipt}, delivery {job.deliveries}; {_FATE}")
                try:
                    job.release(delay=retry, reason=ProgramFailed(failure, said))
                except ClientError as error:
                    if not (error.temporary or job.lost):
                        raise
                    output.note(LOST if job.lost else f"The release failed, so its claim has to expire first: {error}")
            left -= 1
            if left <= 0:
                break
    program.end_if_stopped()
    if failed:
        raise typer.Exit(1)


def _acknowledge(job: Job) -> None:
    """Acknowledges a finished job; retries while the service is away."""
    from queuey.client import ClientError, RetryPolicy, Timing
    from queuey.client.http.attempts import Patience

    patience = Patience(RetryPolicy(), None, Timing(), note_absence)
    while True:
        try:
            job.ack()
        except ClientError as error:
            if job.lost and not error.temporary:
                output.note(LOST)
                return
            time.sleep(patience.pause_after(error))
        else:
            patience.restored()
            return


class ProgramFailed(Exception):
    """A program did not end with 0.

    Args:
        failure: How it ended.
        said: The end of what it wrote to standard error.
    """

    def __init__(self, failure: str, said: bytes) -> None:
        text = said.decode(errors="replace").strip()
        super().__init__(f"it {failure}{f': {text}' if text else ''}")


class JobProgram:
    """A program that is run for one job after another, each time in a process group of its own.

    The first signal to stop is sent to that group if the program runs, and the command ends after that job. A second
    signal kills the group. While no program runs, a signal ends the command.

    Attributes:
        stopped_by: The first signal to stop; 0 before one came.

    Raises:
        typer.BadParameter: It cannot be run.
    """

    def __init__(self, command: list[str]) -> None:
        if shutil.which(command[0]) is None:
            raise typer.BadParameter(f"no program {command[0]!r} may be run", param_hint="command")
        self._command = command
        self._process: Popen[bytes] | None = None
        self._waits = True
        self.stopped_by = 0
        self._stopped_at = 0.0

    def signalled(self, number: int, _frame: object) -> None:
        now, again = time.monotonic(), bool(self.stopped_by)
        if again and now - self._stopped_at < TOGETHER:
            return
        if not again:
            self.stopped_by, self._stopped_at = number, now
        if self._process is not None:
            _send(self._process, signal.SIGKILL if again else number)
        elif self._waits or again:
            self.end_if_stopped()

    def end_if_stopped(self) -> None:
        """Raises SystemExit, with the exit code of a shell, after a signal to stop."""
        if self.stopped_by:
            raise SystemExit(128 + self.stopped_by)

    def until_stopped(self, jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            self._waits = False
            yield job
            self._waits = True
            self.end_if_stopped()

    def run(self, job: Job) -> tuple[str, bytes]:
        """Runs the program for a job; returns how it failed, or an empty text, and the end of its standard error.

        A job for which it is not started comes again at once.
        """
        message, held = job.message, job.held_claim
        delay_if_left, held.delay_if_left = held.delay_if_left, 0.0
        self.end_if_stopped()
        about = {"JOB_QUEUE": job.queue, "JOB_ID": message.id, "JOB_PARTITION": str(message.partition)}
        env = os.environ | about | {"JOB_DELIVERIES": str(job.deliveries)}
        try:
            process = Popen(self._command, stdin=PIPE, stderr=PIPE, env=env, process_group=0)  # noqa: S603 - as typed
        except OSError as error:
            raise typer.BadParameter(f"it cannot be run: {error}", param_hint="command") from error
        held.delay_if_left, self._process, said = delay_if_left, process, bytearray()
        if self.stopped_by:
            _send(process, self.stopped_by)
        feeding = threading.Thread(target=_feed, args=(process, body_bytes(job.body)), daemon=True)
        hearing = threading.Thread(target=_pass_on, args=(process, said), daemon=True)
        feeding.start()
        hearing.start()
        code = process.wait()
        self._process = None
        hearing.join(STDERR_TIMEOUT)  # A child of the program may keep its standard error open.
        return _failure(code), bytes(said)


def _send(program: Popen[bytes], number: int) -> None:
    """Sends a signal to the process group of a program."""
    with suppress(OSError):  # It has ended, or is another user's.
        os.killpg(program.pid, number)


def _failure(code: int) -> str:
    """Returns how a program ended that did not end with 0, else an empty text."""
    if code >= 0:
        return f"ended with {code}" if code else ""
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _feed(program: Popen[bytes], body: bytes) -> None:
    """Writes to a program's standard input until the program closes it."""
    if program.stdin is not None:
        with suppress(OSError), program.stdin:
            program.stdin.write(body)


def _pass_on(program: Popen[bytes], said: bytearray) -> None:
    """Copies a program's standard error to ours and keeps its end in ``said``."""
    if program.stderr is not None:
        with program.stderr as stream:
            while piece := os.read(stream.fileno(), 1 << 16):
                with suppress(OSError):
                    os.write(2, piece)
                said += piece
                del said[:-MAX_REASON_BYTES]


def _settle(call: Callable[[list[str]], list[Refused]], receipts: list[str] | None, what: str) -> None:
    given = receipts or sys.stdin.read().split()
    if not given:
        raise typer.BadParameter("give one at least, as queuey claim prints them", param_hint="receipt")
    refused = call(given)
    done = len(set(given)) - len(refused)
    output.show({what: done, "refused": [each.receipt for each in refused]}, f"{plural(done, 'message')} {what}.")
    if refused:
        for each in refused:
            output.note(f"{each.receipt}: the claim had expired, and the message was delivered again.")
        raise typer.Exit(1)
