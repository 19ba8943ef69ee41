"""A storm: processes, clients and producers run under faults for a while, then without until nothing is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from queuey.claims.log.claim_search import PiggybackedAck
from queuey.claims.log.log_requests import ClaimDelivery, ClaimUndecided
from queuey.claims.rules.operator_acts import JobStanding, cancel, make_available_now
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome, ReceiptStatus
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import Position
from queuey.model.kinds import choose_partition, compute_body_digest
from queuey.model.messages import Backoff, Meta, Queue
from queuey.model.partitions import by_key
from queuey.runtime.limits import Limits
from queuey.runtime.waiters import Waiter
from queuey.runtime.workers import WorkerIdentity
from queuey.storage.deadlines import Done
from tests.harness.checking.claims import (
    FINAL_OUTCOMES,
    MAX_CLOCK_DIFFERENCE,
    SIMULATED,
    Acknowledgement,
    ClaimHistory,
    Delivery,
    Outcome,
    ReleaseAllRequest,
)
from tests.harness.checking.rules import check
from tests.sim.availability import EmptyAnswer
from tests.sim.playing import Play
from tests.sim.replicas import DELAY, Faults
from tests.sim.web import Setup, Web
from tests.sim.world import World, begin

QUEUE = Queue(application="acme", name="orders", uid=1, qid=1)
OUTCOMES: Mapping[ReceiptStatus, Outcome] = {
    ReceiptStatus.ACCEPTED: "done",
    ReceiptStatus.FINAL: "final",
    ReceiptStatus.SUPERSEDED: "superseded",
    ReceiptStatus.REFUSED: "none",
}
ONE_SERVICE_FRACTION = 0.5
"""Fraction of the histories whose web processes are workers of one service, on one machine with one clock."""
RARE_SEED_DIVISOR = 8
"""One in this many histories forgets each log as soon as it can, and another one has torn log reads."""
STORM = 12.0
"""Seconds of faults."""
CALM, LONGEST_CALM = 14.0, 150.0
"""Seconds after the faults until everything is usually given, and until it must be."""
UNFINISHED = {name: SIMULATED[name] for name in ("G6", "on_ack", "given up")}
"""The rules that hold only when nothing is left."""


class Poll(Waiter):
    """One claim of a client, which may wait.

    Args:
        web: The process it is sent to.
        done: Called with the result.
        limit, ttl, wait, queue, ack: The request.

    Attributes:
        tries: Number of attempts.
        empties: Attempts that found nothing.
    """

    def __init__(
        self,
        web: Web,
        done: Done,
        *,
        limit: int,
        ttl: float,
        wait: float,
        queue: Queue = QUEUE,
        ack: PiggybackedAck | None = None,
    ) -> None:
        super().__init__(web.watchers)
        self.tries = 0
        self.empties: list[EmptyAnswer] = []
        self._began = 0.0
        self._last: tuple[list[ClaimDelivery] | None, Exception | None] = ([], None)
        self._queue = queue
        self._web = web
        self._process = web.process
        self._done = done
        self._asked: dict[str, Any] = {"limit": limit, "ttl": ttl, "ack": ack}
        self._until = web.process.world.now + wait
        self._waiter = self if wait else None
        self._attempting = self._woken = self._waits = False
        if wait:
            self._process.soon(wait, self._expire)

    def attempt(self) -> None:
        self._attempting, self._woken, self._waits = True, False, False
        self.tries += 1
        self._began = self._process.world.now
        call = self._web.claims.claim(self._queue, **self._asked, waiter=self._waiter)
        begin(self._web.core, call, self._handle_answer)

    def _handle_answer(self, deliveries: list[ClaimDelivery] | None, error: Exception | None) -> None:
        """Ends the poll with messages, an error, or at the end of the wait.

        Otherwise it waits, or tries again if woken.
        """
        self._attempting = False
        if error is None and not deliveries:
            self.empties.append(EmptyAnswer(self._began, self._process.world.now, self._process.offset))
        self._last = (deliveries, error)
        if self._waiter is not None and not deliveries and (error is None or isinstance(error, ClaimUndecided)):
            self.attempt_failed()
            self._waits = True
        if not self._waits or self._process.world.now >= self._until:
            self._end(deliveries, error)
        elif self._woken:
            self.attempt()

    def wake(self, qid: int | None = None) -> None:
        self._woken = True
        self._process.soon(0.0, self._retry)

    def _retry(self) -> None:
        if self._woken and self._waits and not self._attempting:
            self.attempt()

    def _expire(self) -> None:
        """Ends a waiting poll with its last result; one that is being attempted ends with its answer."""
        if self._waits and not self._attempting and not self._woken:
            self._end(*self._last)

    def leave(self) -> None:
        self._waits = False
        self.close()

    def _end(self, found: list[ClaimDelivery] | None, error: Exception | None) -> None:
        self.leave()
        self._done(found, error)


class Client:
    """Claims messages from any process, works on them for a while, and acknowledges most of them."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._rng = storm.world.rng
        self._world = storm.world
        self._history = storm.history
        self._kept: list[tuple[Delivery, ClaimReceipt]] = []
        self._finished: list[tuple[Delivery, ClaimReceipt]] = []
        """The messages that the next claim acknowledges."""

    def start(self) -> None:
        self._world.after(self._world.random_time(1.0), self._poll)

    def _calm(self) -> bool:
        return self._world.now > self._history.calm

    def _poll(self) -> None:
        """Claims at a random process, and acknowledges finished messages with it.

        Polls again after 8 s without an answer.
        """
        web = self._rng.choice(self._storm.webs)
        asked, ttl = self._world.now, self._rng.choice((1.5, 3.0, 8.0))
        done_calls: list[bool] = []
        jobs, self._finished = self._finished, []
        ack = PiggybackedAck([receipt for _, receipt in jobs])
        settled = self._start_acknowledging(jobs, web)

        def done(found: list[ClaimDelivery] | None, error: Exception | None) -> None:
            if done_calls:
                return
            done_calls.append(True)
            if error is not None and ack.in_doubt:
                error = StoreUnavailable("as the service says it", outcome="unknown")
            if jobs:
                settled(None if error else ack.settled, error)
            self._plan_work(web, asked, found or [])
            self._world.after(
                self._world.random_time(0.3 if self._storm.world.now < self._history.calm else 1.0), self._poll
            )

        def give_up() -> None:
            # The process has crashed or does not answer.
            if not done_calls:
                done_calls.append(True)
                self._poll()

        self._world.after(8.0, give_up)
        wait = self._rng.choice((0, 0, 0, 1.0))
        poll = Poll(web, done, limit=self._rng.randint(1, 3), ttl=ttl, wait=wait, queue=self._storm.queue, ack=ack)
        if self._storm.queue.kind != "dedup":
            poll.empties = self._history.empties
        poll.attempt()

    def _plan_work(self, web: Web, asked: float, deliveries: Sequence[ClaimDelivery]) -> None:
        """Records deliveries, and plans what happens to them: acknowledge, renew, release, fail or nothing.

        By chance they are kept and handled with the next poll's deliveries, or all claims are released as well.
        """
        now = self._world.now
        jobs = []
        for delivery in deliveries:
            until = delivery.expires - web.process.offset
            if self._was_held_back(web, until):
                continue
            receipt = delivery.receipt
            job = Delivery(receipt.position, receipt.number, asked, now, [(now, until)], partition=receipt.partition)
            job.first = delivery.handed_out == 1
            self._history.deliveries.append(job)
            jobs.append((job, receipt))
        if not jobs:
            return
        # Messages of two polls may be acknowledged together; these are of several partitions.
        if self._rng.random() < 0.3:
            self._kept, jobs = ([], self._kept + jobs) if self._kept else (jobs, [])
        if not self._calm() and self._rng.random() < 0.05:
            self._storm.release_all()
        self._storm.act_on(jobs)
        draw = 1.0 if self._calm() else self._rng.random()
        if not self._calm() and self._storm.failing and self._rng.random() < self._storm.failing:
            self._world.after(self._world.random_time(1.0), partial(self._release, jobs))
        elif draw > 0.35:
            self._world.after(self._world.random_time(0.3 if self._calm() else 1.5), partial(self._acknowledge, jobs))
        elif draw > 0.2:
            self._world.after(self._world.random_time(1.5), partial(self._renew, jobs))
        elif draw > 0.1:
            self._world.after(self._world.random_time(1.0), partial(self._release, jobs))

    def _was_held_back(self, web: Web, until: float) -> bool:
        """Returns whether the process stood still before its answer. A client counts the TTL from its request."""
        return until <= self._world.now and abs(self._world.now - web.process.paused_until) < 1e-6

    def _renew(self, jobs: list[tuple[Delivery, ClaimReceipt]]) -> None:
        """Renews claims at a random process, then acknowledges the messages whatever the result."""
        web, asked = self._rng.choice(self._storm.webs), self._world.now

        def done(settled: list[ReceiptOutcome] | None, error: Exception | None) -> None:
            now = self._world.now
            for (job, _), one in zip(jobs, settled or [], strict=False):
                until = one.expires - web.process.offset
                if one.status is ReceiptStatus.ACCEPTED and not self._was_held_back(web, until):
                    job.lives.append((now, until))
                    job.renewals[now] = asked
            self._world.after(self._world.random_time(1.5), partial(self._acknowledge, jobs))

        receipts, ttl = [receipt for _, receipt in jobs], self._rng.choice((2.0, 6.0))
        begin(web.core, web.claims.renew(self._storm.queue, receipts, ttl), done)

    def _release(self, jobs: list[tuple[Delivery, ClaimReceipt]]) -> None:
        """Releases claims with or without a delay.

        In a storm with failures it reports them as failed or gives them up. With limits, claims released with a delay
        may be renewed later.
        """
        for job, _ in jobs:
            job.dropped = self._world.now
        web = self._rng.choice(self._storm.webs)
        delay = self._rng.choice((0.0, 0.0, 1.0, 4.0))
        receipts = [receipt for _, receipt in jobs]
        settle = partial(web.claims._settle, self._storm.queue)
        if not self._storm.failing:
            begun = not self._storm.unbegun or self._rng.random() >= self._storm.unbegun
            answers: list[list[ReceiptOutcome] | None] = []
            release = web.claims.release(self._storm.queue, receipts, delay, begun=begun)
            begin(web.core, release, lambda settled, _error: answers.append(settled))
            if delay and (self._storm.queue.max_claimed or self._storm.queue.max_claimed_per_key):
                self._world.after(self._world.random_time(1.0), partial(self._resume, jobs, answers))
        elif self._rng.random() < 0.5:
            begin(web.core, settle("fail", receipts))
        else:
            given_up = [Acknowledgement(job.position, self._world.now) for job, _ in jobs]
            self._history.given_up += given_up
            record = self._make_recorder(given_up, web)
            begin(web.core, settle("give_up", receipts), record)

    def _resume(self, jobs: list[tuple[Delivery, ClaimReceipt]], answers: list[list[ReceiptOutcome] | None]) -> None:
        """Renews claims that were released with a delay, if that is allowed and the release cannot come later."""
        if answers in ([], [None]):
            return
        web, asked = self._rng.choice(self._storm.webs), self._world.now

        def done(settled: list[ReceiptOutcome] | None, _error: Exception | None) -> None:
            now = self._world.now
            for (job, receipt), one in zip(jobs, settled or [], strict=False):
                if one.status is ReceiptStatus.ACCEPTED:
                    lives = [(now, one.expires - web.process.offset)]
                    resumed = Delivery(job.position, job.number, asked, now, lives, partition=job.partition)
                    self._history.deliveries.append(resumed)
                    self._world.after(self._world.random_time(1.5), partial(self._acknowledge, [(resumed, receipt)]))

        begin(web.core, web.claims.renew(self._storm.queue, [receipt for _, receipt in jobs], 6.0), done)

    def _acknowledge(self, jobs: list[tuple[Delivery, ClaimReceipt]]) -> None:
        """Acknowledges at a random web process, or keeps the jobs to acknowledge with its next claim."""
        if self._rng.random() < 0.4:
            self._finished += jobs
            return
        web = self._rng.choice(self._storm.webs)
        receipts = [receipt for _, receipt in jobs]
        begin(web.core, web.claims.acknowledge(self._storm.queue, receipts), self._start_acknowledging(jobs, web))

    def _start_acknowledging(self, jobs: list[tuple[Delivery, ClaimReceipt]], web: Web) -> Done:
        """Records that jobs are being acknowledged. Returns the callback for the result.

        The callback may later repeat an unanswered request, or use the ids of finished messages again.
        """
        now = self._world.now
        sent = [Acknowledgement(job.position, now) for job, _ in jobs]
        self._history.acknowledgements += sent
        for job, _ in jobs:
            job.dropped = now if job.dropped is None else job.dropped
        take_in = self._make_recorder(sent, web)

        def done(settled: list[ReceiptOutcome] | None, error: Exception | None) -> None:
            """Records the results. May repeat an unanswered request, or use the ids of finished messages again."""
            take_in(settled, error)
            if settled is None and self._rng.random() < 0.5:
                self._world.after(0.1, partial(self._acknowledge, jobs))
            elif settled is not None and self._rng.random() < 0.4:
                ended = [
                    ClaimReceipt(job.partition, *job.position)
                    for (job, _), one in zip(jobs, sent, strict=True)
                    if one.outcome in FINAL_OUTCOMES
                ]
                self._world.after(self._world.random_time(4.0), partial(self._use_old_receipts, ended))

        return done

    def _make_recorder(self, sent: list[Acknowledgement], web: Web) -> Done:
        """Returns a callback that records the results of a request about jobs, or of its failure.

        With other workers a final result counts as a repeated one.
        """

        def done(settled: list[ReceiptOutcome] | None, error: Exception | None) -> None:
            for number, acknowledgement in enumerate(sent):
                acknowledgement.answered = self._world.now
                if settled is None:
                    none = isinstance(error, StoreUnavailable) and error.outcome == "none"
                    acknowledgement.outcome = "none" if none else "unknown"
                else:
                    outcome = OUTCOMES[settled[number].status]
                    # A worker that gets no answer from another worker repeats the request.
                    acknowledgement.outcome = "again" if outcome == "final" and web.others else outcome

        return done

    def _use_old_receipts(self, receipts: Sequence[ClaimReceipt]) -> None:
        claims = self._rng.choice(self._storm.webs).claims
        if receipts and self._rng.random() < 0.7:
            begin(claims.core, claims.renew(self._storm.queue, receipts, 1.0))
        elif receipts:
            begin(claims.core, claims.acknowledge(self._storm.queue, receipts))


class Storm:
    """One simulated history.

    Args:
        seed: Seeds all random choices.
        setup: What is simulated.
    """

    def __init__(self, seed: int, setup: Setup | None = None) -> None:
        setup = setup or Setup()
        if seed % RARE_SEED_DIVISOR == 1:
            setup = dataclasses.replace(setup, limits=Limits(claims_memory=1))
        self.world = world = World(seed)
        rng = world.rng
        self.faults = Faults(
            lost=rng.choice((0, 0.05, 0.2)),
            stuck=rng.choice((0, 0.05, 0.2)),
            slow=rng.choice((0.003, 0.02, 0.1)),
            late=rng.choice((0, 0.1, 0.4)),
            failing=rng.choice((0, 0.3)),
            unread=rng.choice((0, 0, 0, 0.2)),
            torn=0.3 if seed % RARE_SEED_DIVISOR == 2 else 0,
        )
        self.queue = replace(
            QUEUE,
            partitions=rng.choice((1, 1, 1, 3)),
            max_deliveries=rng.choice((0, 0, 2)),
            on_ack=rng.choice(("keep", "keep", "delete")),
            kind=rng.choice(setup.kinds),
            backoff=Backoff(first=0.5, most=4.0) if setup.failing else None,
            max_claimed_per_key=setup.per_key,
        )
        if setup.share:
            most = setup.share * self.queue.partitions + (self.queue.partitions > 1)
            self.queue = replace(self.queue, max_claimed=most)
        self.failing, self.cancelling, self.unbegun = setup.failing, setup.cancelling, setup.unbegun
        self.replicas = setup.replicas(world, self.faults)
        self.replicas.hold(self.queue)
        self.webs = [
            Web(
                world,
                self.replicas,
                rng.choice((-setup.apart, 0, setup.apart)) / 2 * rng.choice((1, 1, rng.random())),
                setup,
            )
            for _ in range(rng.randint(1, 3))
        ]
        if rng.random() < ONE_SERVICE_FRACTION:
            for number, web in enumerate(self.webs, 1):
                web.process.offset = self.webs[0].process.offset
                web.identity, web.others = WorkerIdentity("", len(self.webs), number), self.webs
                web.workers.identity = web.identity
        stored = self.replicas.stored
        stored.partitions, stored.max_deliveries, stored.margin = (
            self.queue.partitions,
            self.queue.max_deliveries,
            MAX_CLOCK_DIFFERENCE,
        )
        stored.delay, stored.per_key = DELAY, setup.per_key
        stored.shares = {number: self.queue.share_of(number) for number in range(1, self.queue.partitions + 1)}
        self.history = ClaimHistory(calm=world.now + STORM, stored=stored)

    def run(self) -> ClaimHistory:
        world, rng = self.world, self.world.rng
        for _ in range(rng.randint(1, 3)):
            Client(self).start()
        for _ in range(rng.randint(2, 8)):
            world.after(rng.random() * STORM * 0.7, self._post)
        trouble = rng.choice((0, 1, 3))
        for _ in range(trouble):
            world.after(rng.random() * STORM, self._crash)
            world.after(rng.random() * STORM, self._pause)
        if rng.random() < 0.3:
            world.after(STORM - 1.5, self._claim_forever)
            world.after(STORM + 6.0, self.release_all)
        world.run(self.history.calm)
        self.faults = self.replicas.faults = Faults(slow=self.faults.slow)
        world.run(self.history.calm + CALM)
        while self._is_unfinished() and world.now < self.history.calm + LONGEST_CALM:
            world.run(world.now + 5.0)
        for (_, partition), log in self.replicas.logs.items():
            self.history.stored.entries[partition] = log.history
        world.end()
        return self.history

    def release_all(self) -> None:
        """Ends all claims: asks one process after another until one succeeds."""
        demand = ReleaseAllRequest(self.world.now)
        self.history.releases.append(demand)

        def done(_value: object, error: Exception | None) -> None:
            if error is None:
                demand.answered = self.world.now
            else:
                self.world.after(1.0, ask)

        def ask() -> None:
            claims = self.world.rng.choice(self.webs).claims
            begin(claims.core, claims.release_all(self.queue), done)

        ask()

    def act_on(self, jobs: Sequence[tuple[Delivery, ClaimReceipt]]) -> None:
        for job, _ in jobs if self.cancelling and self.world.now < self.history.calm else ():
            if self.world.rng.random() < self.cancelling:
                self.world.after(self.world.random_time(2.0), partial(self.act, job))

    def act(self, job: Delivery) -> None:
        """Cancels a message that a client has or had, or makes it due at once."""
        claims, place = self.world.rng.choice(self.webs).claims, (job.partition, job.position)
        act = partial(claims.jobs._act, self.queue, place)
        if self.world.rng.random() < 0.5:
            begin(claims.core, act(make_available_now))
            return
        demand = Acknowledgement(job.position, self.world.now)
        self.history.cancelled.append(demand)

        def done(answer: tuple[JobStanding, int] | None, error: Exception | None) -> None:
            if error is None and answer is not None and answer[0] != "refused":
                demand.answered, demand.outcome = self.world.now, "final" if answer[0] == "done" else "done"

        begin(claims.core, act(cancel), done)

    def _claim_forever(self) -> None:
        web = self.world.rng.choice(self.webs)
        asked = self.world.now

        def done(found: list[ClaimDelivery] | None, _error: Exception | None) -> None:
            now = self.world.now
            for one in found or []:
                lives = [(now, one.expires - web.process.offset)]
                kept = Delivery(one.receipt.position, one.receipt.number, asked, now, lives, kept=True)
                kept.partition = one.receipt.partition
                kept.first = one.handed_out == 1
                self.history.deliveries.append(kept)

        Poll(web, done, limit=3, ttl=10 * LONGEST_CALM, wait=0, queue=self.queue).attempt()

    def _is_unfinished(self) -> bool:
        """Returns whether a rule about the end of a history is still violated, after it has recorded what is stored."""
        self.history.letters, self.history.letter_places = dict(self.replicas.letters), self.replicas.letter_places
        if self.queue.on_ack == "delete":
            self.history.remaining = {place for places in self.replicas.messages.values() for place in places}
        return bool(check(self.history, UNFINISHED))

    def _post(self) -> None:
        """Posts one or three messages to a partition, with a delay or a key as the queue's kind needs."""
        process = self.world.rng.choice(self.webs).process
        partition = self.world.rng.randint(1, self.queue.partitions)
        # Shorter and longer than the max time of a write.
        delay = self.world.rng.choice((0.0, 0.0, 0.001, 0.5, 4.0))
        due = self.world.now + delay

        def done(position: Position | None) -> None:
            if position is not None:
                self.history.acknowledged.add(position)
                if delay:
                    self.history.due_times[position] = due

        def posted(keys: dict[Position, str], key: str, position: Position | None) -> None:
            if position is not None:
                keys[position] = key
            done(position)

        stored = self.history.stored
        for _ in range(self.world.rng.choice((1, 1, 3))):
            if self.queue.max_claimed_per_key and (key := self.world.rng.choice(("a", "a", "b", ""))):
                place, limited = by_key(key, self.queue.partitions), partial(posted, stored.limited, key)
                self.replicas.write(process, place, "x", limited, delay, Meta(key=key))
            elif self.queue.kind == "plain":
                self.replicas.write(process, partition, "x", done, delay)
            elif self.queue.kind == "ordered":
                key = self.world.rng.choice("ab")
                partition = by_key(key, self.queue.partitions)
                self.replicas.write(process, partition, "x", partial(posted, stored.keys, key), delay, Meta(key=key))
            else:
                body = self.world.rng.choice("abcd")
                partition = choose_partition(compute_body_digest(body, None), self.queue.partitions)
                position = self.replicas.write(process, partition, body, done, delay)
                self.history.bodies[position] = (
                    body,
                    max(self.world.now, due - MAX_CLOCK_DIFFERENCE),
                    due + MAX_CLOCK_DIFFERENCE,
                )

    def _crash(self) -> None:
        self.world.rng.choice(self.webs).crash()

    def _pause(self) -> None:
        self.world.rng.choice(self.webs).process.pause(self.world.rng.choice((0.5, 2.0, 4.0)))


def play(setup: Setup | None = None) -> Play:
    """Plays storms with a setup. A violation begins with its rule."""

    def play_one(seed: int) -> list[str]:
        storm = Storm(seed, setup)
        broken = [f"{rule}: {text}" for rule, text in check(storm.run(), SIMULATED)]
        return [*broken, *storm.replicas.wrong]

    return play_one
