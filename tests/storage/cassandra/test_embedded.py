"""Tests of an embedded service on Cassandra."""

from __future__ import annotations

from queuey import embedded
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore


def test_a_url_opens_the_cluster(contract_keyspace: str, store: CassandraStore, application: str) -> None:
    """The client of a Cassandra URL works as that of a file, on an existing application."""
    assert bridge.run(store.applications.has_application(application))
    with embedded.open(contract_keyspace, application=application) as client:
        client.heartbeat()
        client.create_queue("mails")
        client.send("mails", "hello")
        assert [job.body for job in client.job_queue("mails").claim(idle=5)] == ["hello"]
