"""``queuey claim``, ``ack``, ``release`` and ``jobs``: use a queue as a job queue from a shell."""

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
from queuey.cli.messages import Partitions, body_bytes, body_text, json_fields, report_outage
from queuey.cli.service_options import Queue, complete_queue_names, connected, on_existing
from queuey.model.task_calls import ShownCall
from queuey.model.texts import format_count, printable, shorten
from queuey.model.time_parsing import format_duration
from queuey.terminal import output, times
from queuey.terminal.signals import handle_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from queuey.client import Client, Job, JobQueue
    from queuey.client.results import OutstandingJob, Refused

_REDELIVERY_TEXT = (
    "the message is delivered again, or becomes a dead letter after the last of the queue's max_deliveries."
)
LOST_TEXT = "Another caller has the message by now, or the queue was purged."

MAX_REASON_BYTES = 2048
"""Max bytes, from the end of a program's standard error, that become the reason of a failure."""
MAX_STATES, MAX_SHOWN = 100, 60
"""Max jobs whose states the service shows in one call; max characters of a state or an error in a line."""
STDERR_TIMEOUT = 1.0
"""Timeout for standard error to close after the program has ended, in seconds."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 0.1
"""Max seconds between signals that count as one: a supervisor may signal both the command and its process group."""

Receipts = Annotated[
    list[str] | None,
    typer.Argument(help="Receipts. Without any, read one per line from standard input.", show_default=False),
]


@connected
def claim(
    client: Client,
    queue: Queue,
    command: Annotated[
        list[str] | None, typer.Argument(help="Program to run for each message, after --.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Max messages. Default: 1, or no limit with a program.")
    ] = None,
    ttl: Annotated[
        float, times.duration("Time until the claim expires and others may claim the messages.", show_default="30s")
    ] = 30.0,
    wait: Annotated[
        float | None, times.duration("Max time to wait for a message. Default: 0, or forever with a program.")
    ] = None,
    retry: Annotated[
        float | None,
        times.duration("Time until redelivery after the program failed.", show_default="the queue's backoff"),
    ] = None,
    partitions: Partitions = "*",
    then: Annotated[
        list[str] | None,
        typer.Option(
            help="Queue to claim from when those before it are empty; up to 9.", autocompletion=complete_queue_names
        ),
    ] = None,
) -> None:
    """Claim messages, so that no other caller gets them for a while; with --json one per line.

    Prints the receipt, the number of deliveries and the body of each message. Acknowledge finished messages with
    `queuey ack`. With a program, the message is its standard input, and exit code 0 acknowledges the message. Exits
    with 1 if the program failed for any message.
    """
    jobs = client.job_queue([queue, *(then or [])])
    if command:
        _run_program(jobs, command, limit=limit, ttl=ttl, idle=wait, retry=retry, partitions=partitions)
        return
    from queuey.client.claims.claiming import MAX_WAIT

    end = time.monotonic() + (wait or 0.0)
    while True:
        remaining = min(max(0.0, end - time.monotonic()), MAX_WAIT)
        claimed = jobs.receive(limit or 1, ttl=ttl, wait=remaining, partitions=partitions)
        if claimed or not remaining:
            break
    for job in claimed:
        about = {"receipt": job.receipt, "deliveries": job.deliveries, "expires": job.expires}
        text = f"{job.receipt}  {job.deliveries}  {printable(body_text(job.message.body))}"
        output.show(json_fields(job.message) | about, f"{job.queue}  {text}" if then else text)
    if not claimed:
        output.print_note("There are no messages to claim now.")


@on_existing
def ack(client: Client, queue: Queue, receipt: Receipts = None) -> None:
    """Acknowledge claimed messages: they are not delivered again."""
    _end_claims(client.job_queue(queue).ack, receipt, "acknowledged")


@on_existing
def release(
    client: Client,
    queue: Queue,
    receipt: Receipts = None,
    delay: Annotated[float | None, times.duration("Time until redelivery.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Reason of the failure. Without --delay, the queue's backoff sets the time.")
    ] = None,
    retry: Annotated[bool, typer.Option(help="Deliver them again, or make them dead letters now.")] = True,
    begun: Annotated[
        bool, typer.Option(help="Count the attempts. Those that did not begin need not count, up to 10 of a message.")
    ] = True,
) -> None:
    """Release claimed messages: they are delivered again, at once or after a delay."""
    release = partial(client.job_queue(queue).release, delay=delay, reason=reason, retry=retry, begun=begun)
    _end_claims(release, receipt, "released")


@on_existing
def jobs(
    client: Client,
    queue: Queue,
    act: Annotated[Literal["cancel", "retry"] | None, typer.Argument(help="Cancel jobs, or retry them now.")] = None,
    message: Annotated[list[str] | None, typer.Argument(help="Ids of the jobs: [PARTITION:]ID.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Max jobs to list.")] = 20,
) -> None:
    """Show the backlog of a job queue, and its delivered jobs with status, worker and remaining time.

    With a --limit of up to 100, also show each job's task with arguments, the state set by its worker, and the last
    error.
    """
    from queuey.client.results import OutstandingJob

    if act is not None:
        _cancel_or_retry(client.job_queue(queue), act, message or [])
        return
    backlog = client.job_queue(queue).backlog()
    outstanding = client.job_queue(queue).outstanding(limit, states=limit <= MAX_STATES)
    now = time.time()
    table = output.table(
        OutstandingJob,
        outstanding,
        ("message", lambda job: f"{job.partition}:{job.message_id}"),
        *([("task", _task_text)] if any(job.task for job in outstanding) else []),
        ("status", lambda job: job.status or ("claimed" if job.expires else "waiting")),
        "deliveries",
        ("worker", lambda job: job.worker or "-"),
        ("left", lambda job: _remaining_time(job, now)),
        *([("state", _state_text)] if any(job.state is not None for job in outstanding) else []),
        *([("last error", _error_text)] if any(job.failure is not None for job in outstanding) else []),
    )
    text = f"{backlog_text(backlog, now)}."
    output.show(msgspec.to_builtins(backlog) | {"jobs": outstanding}, (text, table) if outstanding else text)


def _cancel_or_retry(jobs: JobQueue, act: Literal["cancel", "retry"], messages: list[str]) -> None:
    if not messages:
        text = f"no job to {act} is given: name its id, as printed by queuey send, jobs and peek"
        raise typer.BadParameter(text, param_hint="MESSAGE")
    for message in messages:
        job = jobs.cancel(message) if act == "cancel" else jobs.retry(message)
        text = _ACT_RESULTS[act, job]
        if job == "done" and _is_dead_letter(jobs, message):
            text = f"is a dead letter. To send those of the queue back: qdo deadletter redrive --queue {jobs.name}"
        output.show({"message": message, "job": job}, f"{message} {text}")


def _is_dead_letter(jobs: JobQueue, message: str) -> bool:
    from queuey.client import NotAllowed

    with suppress(NotAllowed):
        return jobs.status(message)[0].status == "failed"
    return False


_ACT_RESULTS = {
    ("cancel", "removed"): "is removed.",
    ("cancel", "claimed"): "is claimed: its worker is asked to stop, and it is not tried again.",
    ("cancel", "done"): "was done before.",
    ("retry", "waiting"): "can be claimed now.",
    ("retry", "claimed"): "is claimed: a worker has it.",
    ("retry", "done"): "is done, or was removed.",
}


def _state_text(job: OutstandingJob) -> str:
    return shorten("" if job.state is None else msgspec.json.encode(job.state).decode(), MAX_SHOWN)


def _task_text(job: OutstandingJob) -> str:
    return str(ShownCall(job.task, job.arguments)) if job.task else "-"


def _error_text(job: OutstandingJob) -> str:
    failure = job.failure
    if failure is None:
        return "-"
    return shorten(f"{failure.error}: {failure.text}" if failure.text else failure.error, MAX_SHOWN)


def _remaining_time(job: OutstandingJob, now: float) -> str:
    if job.expires is None or job.expires <= now:
        return "-"
    return format_duration(math.ceil(job.expires - now))


def _run_program(
    jobs: JobQueue,
    command: list[str],
    *,
    limit: int | None,
    ttl: float,
    idle: float | None,
    retry: float | None,
    partitions: str,
) -> None:
    """Runs a program for each message, until the limit or until no message has come for ``idle`` seconds.

    A message is acknowledged on success, and released with the end of the program's error output on failure. After a
    stop signal, the process ends with the code of the signal instead.

    Raises:
        typer.Exit: The program failed for at least one message.
    """
    from queuey.client import ClientError

    program = JobProgram(command)
    remaining, failed = sys.maxsize if limit is None else limit, 0
    claimed = jobs.claim(ttl=ttl, idle=idle, partitions=partitions, notice=report_outage)
    with handle_signals(program.handle_signal, STOP_SIGNALS), closing(claimed):
        for job in program.yield_until_stopped(claimed):
            failure, error_output = program.run(job)
            if not failure:
                _acknowledge(job)
            else:
                failed += 1
                output.print_note(
                    f"{command[0]} {failure} for {job.receipt}, delivery {job.deliveries}; {_REDELIVERY_TEXT}"
                )
                try:
                    reason = ProgramFailed(failure, error_output)
                    job.release(delay=retry, reason=reason, begun=not program.stopped_by)
                except ClientError as error:
                    if not (error.temporary or job.lost):
                        raise
                    output.print_note(
                        LOST_TEXT if job.lost else f"The release failed, so its claim has to expire first: {error}"
                    )
            remaining -= 1
            if remaining <= 0:
                break
    program.exit_if_stopped()
    if failed:
        raise typer.Exit(1)


def _acknowledge(job: Job) -> None:
    """Acknowledges a finished job; retries while the service cannot be reached. Prints a note if the job is lost.

    Raises other permanent errors.
    """
    from queuey.client import ClientError, RetryPolicy, Timing
    from queuey.client.http.attempts import Patience

    patience = Patience(RetryPolicy(), None, Timing(), report_outage)
    while True:
        try:
            job.ack()
        except ClientError as error:
            if job.lost and not error.temporary:
                output.print_note(LOST_TEXT)
                return
            time.sleep(patience.pause_after(error))
        else:
            patience.record_success()
            return


class ProgramFailed(Exception):
    """A program ended with another exit code than 0, or by a signal.

    Args:
        failure: How the program ended.
        error_output: The end of its standard error.
    """

    def __init__(self, failure: str, error_output: bytes) -> None:
        text = error_output.decode(errors="replace").strip()
        super().__init__(f"it {failure}{f': {text}' if text else ''}")


class JobProgram:
    """A program that runs for one job after another, each time in its own process group.

    If the program runs, the first stop signal is sent to its group, and the command ends after that job. A second
    signal kills the group. While no program runs, a signal ends the command.

    Attributes:
        stopped_by: The first stop signal, or 0.

    Raises:
        typer.BadParameter: The program cannot be run.
    """

    def __init__(self, command: list[str]) -> None:
        if shutil.which(command[0]) is None:
            raise typer.BadParameter(f"{command[0]!r} is not an executable program", param_hint="command")
        self._command = command
        self._process: Popen[bytes] | None = None
        self._waits = True
        self.stopped_by = 0
        self._stopped_at = 0.0

    def handle_signal(self, number: int, _frame: object) -> None:
        """Passes the first stop signal on to the program; kills the program at a later second one.

        Without a program, ends the process if it waits for a job or this is the second signal; otherwise it ends before
        the next job. A second signal within :data:`SAME_SIGNAL_SECONDS` counts as the first.
        """
        now, again = time.monotonic(), bool(self.stopped_by)
        if again and now - self._stopped_at < SAME_SIGNAL_SECONDS:
            return
        if not again:
            self.stopped_by, self._stopped_at = number, now
        if self._process is not None:
            _send_signal(self._process, signal.SIGKILL if again else number)
        elif self._waits or again:
            self.exit_if_stopped()

    def exit_if_stopped(self) -> None:
        if self.stopped_by:
            raise SystemExit(128 + self.stopped_by)

    def yield_until_stopped(self, jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            self._waits = False
            yield job
            self._waits = True
            self.exit_if_stopped()

    def run(self, job: Job) -> tuple[str, bytes]:
        """Runs the program for a job, with the body as standard input and the job's place in ``JOB_…`` variables.

        Returns how it failed, or an empty text, and the end of its standard error. If the program is not started, the
        job is delivered again at once.
        """
        message, held = job.message, job.held_claim
        delay_if_left, held.delay_if_left, held.begun = held.delay_if_left, 0.0, False
        self.exit_if_stopped()
        about = {"JOB_QUEUE": job.queue, "JOB_ID": message.id, "JOB_PARTITION": str(message.partition)}
        env = os.environ | about | {"JOB_DELIVERIES": str(job.deliveries)}
        try:
            process = Popen(self._command, stdin=PIPE, stderr=PIPE, env=env, process_group=0)  # noqa: S603 - as typed
        except OSError as error:
            raise typer.BadParameter(f"it cannot be run: {error}", param_hint="command") from error
        held.delay_if_left, held.begun = delay_if_left, True
        self._process, error_output = process, bytearray()
        if self.stopped_by:
            _send_signal(process, self.stopped_by)
        feeding = threading.Thread(target=_write_body, args=(process, body_bytes(job.body)), daemon=True)
        copying = threading.Thread(target=_copy_stderr, args=(process, error_output), daemon=True)
        feeding.start()
        copying.start()
        code = process.wait()
        self._process = None
        copying.join(STDERR_TIMEOUT)  # A child of the program may keep its standard error open.
        return _failure_text(code), bytes(error_output)


def _send_signal(program: Popen[bytes], number: int) -> None:
    with suppress(OSError):  # The program has ended, or runs as another user.
        os.killpg(program.pid, number)


def _failure_text(code: int) -> str:
    if code >= 0:
        return f"ended with {code}" if code else ""
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def _write_body(program: Popen[bytes], body: bytes) -> None:
    if program.stdin is not None:
        with suppress(OSError), program.stdin:
            program.stdin.write(body)


def _copy_stderr(program: Popen[bytes], error_output: bytearray) -> None:
    if program.stderr is not None:
        with program.stderr as stream:
            while piece := os.read(stream.fileno(), 1 << 16):
                with suppress(OSError):
                    os.write(2, piece)
                error_output += piece
                del error_output[:-MAX_REASON_BYTES]


def _end_claims(call: Callable[[list[str]], list[Refused]], receipts: list[str] | None, what: str) -> None:
    requested = receipts or sys.stdin.read().split()
    if not requested:
        raise typer.BadParameter("give at least one receipt, as printed by queuey claim", param_hint="receipt")
    refused = call(requested)
    done = len(set(requested)) - len(refused)
    output.show(
        {what: done, "refused": [refusal.receipt for refusal in refused]}, f"{format_count(done, 'message')} {what}."
    )
    if refused:
        for refusal in refused:
            output.print_note(f"{refusal.receipt}: the claim had expired, and the message was delivered again.")
        raise typer.Exit(1)
