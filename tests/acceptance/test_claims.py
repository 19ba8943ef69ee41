"""Claims through real processes, on both stores: restarts, several services, and receipts that have become stale."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queuey.client import Client, JobQueue
from tests.servers import keyspaces
from tests.servers.served import Served, environment


class Site:
    """A store with the application ``queuey``, and services on it.

    Args:
        directory: Directory for their files.
        url: URL of a keyspace, or None for an embedded store in the directory.
    """

    def __init__(self, directory: Path, url: str | None) -> None:
        self._directory = directory
        self._url = url
        self._key = "" if url is None else self._make_key(url)

    def _make_key(self, url: str) -> str:
        command = [sys.executable, "-m", "queuey", "app", "create", "queuey", "--store", url, "--json"]
        made = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
        secret: str = json.loads(made.stdout)["secret"]
        return secret

    @contextlib.contextmanager
    def service(self) -> Iterator[tuple[Served, Client]]:
        with Served(self._directory, [] if self._url is None else ["--store", self._url]) as served:
            self._key = self._key or served.profile.key
            with Client(f"http://127.0.0.1:{served.port}", key=self._key, timeout=30) as client:
                yield served, client


@pytest.fixture(params=["sqlite", "cassandra"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    if request.param == "sqlite":
        return Site(tmp_path, None)
    url = request.getfixturevalue("contract_keyspace")
    keyspaces.empty(url)
    return Site(tmp_path, url)


def claim_all_bodies(jobs: JobQueue) -> list[str]:
    bodies: list[str] = []
    while claimed := jobs.receive(100, ttl=600):
        bodies += [each.message.body for each in claimed]
    return bodies


def test_claims_survive_a_kill_of_every_process(site: Site) -> None:
    """Claims outlast every process that knows of them, and their receipts still work."""
    with site.service() as (served, client):
        jobs = client.job_queue(client.create_queue("jobs", partitions=2).name)
        client.send_many("jobs", [f"{number}" for number in range(10)])
        done = jobs.receive(3, ttl=600)
        assert jobs.ack(done) == []
        held = jobs.receive(2, ttl=600)
        given_back = jobs.receive(1, ttl=600)
        assert jobs.release(given_back) == []
        served.kill()
    with site.service() as (served, client):
        jobs = client.job_queue("jobs")
        claimed_later = claim_all_bodies(jobs)
        mine = {each.message.body for each in (*done, *held)}
        assert sorted(claimed_later, key=int) == [f"{n}" for n in range(10) if f"{n}" not in mine]
        assert given_back[0].message.body in claimed_later
        assert jobs.renew(held, ttl=600) == []
        served.kill()
    with site.service() as (_, client):
        jobs = client.job_queue("jobs")
        assert jobs.ack(held) == []
        assert jobs.size().size == len(claimed_later)
        assert jobs.counts().claimed == len(claimed_later)


def test_two_services_share_one_queue(site: Site) -> None:
    """Workers of several services get different messages; a receipt works at each; a stale one is refused alone."""
    with site.service() as (_, one), site.service() as (_, two):
        one.create_queue("jobs", partitions=2)
        one.send_many("jobs", [f"{number}" for number in range(100)])

        def work(client: Client) -> list[str]:
            return [job.body for job in client.job_queue("jobs").claim(limit=5, idle=0.5)]

        with ThreadPoolExecutor(4) as pool:
            done = Counter(body for bodies in pool.map(work, (one, two, one, two)) for body in bodies)
        assert done == {f"{number}": 1 for number in range(100)}
        assert two.job_queue("jobs").size().size == 0

        first_jobs, second_jobs = one.job_queue("jobs"), two.job_queue("jobs")
        one.send_many("jobs", ["a", "b"], after=None)
        held = [each for _ in range(2) for each in first_jobs.receive(10, ttl=600)]
        assert sorted(each.message.body for each in held) == ["a", "b"]
        first = next(each for each in held if each.message.body == "a")
        assert second_jobs.release([first]) == []
        again = second_jobs.receive(10, wait=20)
        assert [(each.message.body, each.deliveries) for each in again] == [("a", 2)]
        assert [each.receipt for each in first_jobs.ack(held)] == [first.receipt]
        assert first_jobs.ack(again) == []
        assert second_jobs.size().size == 0
