"""The lines for Cassandra's nodes: a real node runs with them, and they agree with what the store assumes."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import CassandraCluster, CassandraOptions, Tls, start_cassandra
from deploy.local.cql import ONE, SUPERUSER, Conversation, Refused
from queuey.app.opening import retry_until_available
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import NewMessage, QueueSpec
from queuey.storage import bridge, cassandra
from queuey.storage.cassandra.admin import migrations
from queuey.storage.cassandra.admin.doctor import examine
from queuey.storage.cassandra.cluster import Driver, Statement, options
from queuey.storage.cassandra.cluster.timing import MANY_CENTRES_TIMING
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.time import bucketing

ROOT = Path(__file__).parents[2]
LINES, SECURE = (ROOT / "deploy" / "cassandra" / name for name in ("queuey.yaml", "secure.yaml"))
PAGE = ROOT / "docs" / "operations-cassandra.md"
CERTIFICATES = ROOT / "tests" / "acceptance" / "tls"
SETTINGS = Statement("SELECT name, value FROM system_views.settings")

Connect = Callable[..., options.CassandraOptions]


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()  # type: ignore[union-attr] # it has that form
    return int(number) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[unit]


@pytest.fixture(scope="module")
def lines() -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(LINES.read_text())
    return settings


def behind(own: str) -> Callable[[str], str]:
    """Writes a node's settings as its installation has them, with our text at the end of the file."""
    return lambda rendered: str(yaml.safe_dump(json.loads(rendered))) + own


def credentials(directory: Path, *addresses: str) -> str:
    """Writes a key and certificates, new ones if addresses are given; returns the sample with paths to them."""
    if addresses:
        names = ",".join(f"IP:{address}" for address in addresses)
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node -keyout key.pem -out ca.pem -addext"
        made = [*command.split(), f"subjectAltName={names}"]
        subprocess.run(made, cwd=directory, capture_output=True, check=True)
    else:
        (directory / "key.pem").write_text((CERTIFICATES / "key.pem").read_text())
        (directory / "ca.pem").write_text((CERTIFICATES / "cert.pem").read_text())
    (directory / "node.pem").write_text((directory / "key.pem").read_text() + (directory / "ca.pem").read_text())
    return SECURE.read_text().replace("/etc/cassandra/tls", str(directory))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def node(servers: ExitStack, tls: Path) -> Iterator[CassandraCluster]:
    """One node with both samples at the end of its cassandra.yaml, which has other values before."""
    own = f"{LINES.read_text()}\n{credentials(tls)}"
    # The options for TLS here only tell the starter how to ask the node whether it is up.
    with start_cassandra(
        1, CassandraOptions(tls=Tls(tls / "node.pem"), restarts=False, rewrite=behind(own))
    ) as running:
        yield running


@pytest.fixture(scope="module")
def target(node: CassandraCluster) -> options.DataCentreTarget:
    """The keyspace that the page creates."""
    return options.DataCentreTarget(tuple(node.contact_points), "queuey", node.port)


@pytest.fixture(scope="module")
def connect(tls: Path) -> Connect:
    """Returns options for a user. The certificate is another machine's, so its name is not checked."""

    def by(user: str, password: str, **more: Any) -> options.CassandraOptions:  # noqa: ANN401 - further options
        return options.CassandraOptions(
            user=user, password=password, tls_ca=tls / "ca.pem", tls_hostname=False, reap_interval=None, **more
        )

    return by


def run_statements(
    target: options.DataCentreTarget, given: options.CassandraOptions, *statements: Statement
) -> list[Any]:
    """Returns the rows of the last statement."""
    with closing(Driver(target, given, keyspace=False)) as driver:
        assert driver.ready(100), driver.problem()
        rows: list[Any] = []
        for statement in statements:
            rows = list(driver.run(statement, timeout=20.0))
        return rows


def page_blocks() -> list[str]:
    section = PAGE.read_text().partition("\n## Passwords and TLS\n")[2].partition("\n## ")[0]
    return re.findall(r"^```cql\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def prepared(target: options.DataCentreTarget, connect: Connect) -> options.DataCentreTarget:
    """The cluster after the CQL of the page's section on passwords and TLS, adapted to one node, not migrated."""
    users = [connect(*SUPERUSER), connect("admin", "change-me-1")]
    for user, block in zip(users, page_blocks(), strict=True):
        adapted = block.replace("'dc1': 3", "'datacenter1': 1")
        assert adapted.count("datacenter1") == 1
        run_statements(
            target, user, *(Statement(one.strip(), idempotent=False) for one in adapted.split(";") if one.strip())
        )
    return target


def test_nodes_give_up_before_we_do(lines: dict[str, Any]) -> None:
    """Whatever a node does for us it has given up by the time at which we do, so that nothing is done in vain.

    New messages of one data centre are given up sooner: they are undone, and what comes late changes nothing.
    """
    ours = options.CassandraOptions()
    deadline = min(ours.timeout, *(level.deadline for level in MANY_CENTRES_TIMING.levels.values()))
    assert seconds(lines["write_request_timeout"]) < deadline
    assert seconds(lines["cas_contention_timeout"]) < ours.timeout
    assert seconds(lines["read_request_timeout"]) < ours.timeout
    assert seconds(lines["native_transport_timeout"]) <= deadline


def test_hints_are_not_kept_for_longer_than_deletes(lines: dict[str, Any]) -> None:
    """No hint is older than the shortest time for which a table remembers deletes."""
    tables = "".join(path.read_text() for path in sorted((ROOT / "cql").glob("*.cql")))
    grace = [int(value) for value in re.findall(r"gc_grace_seconds = (\d+)", tables)]
    assert len(grace) >= 4
    assert seconds(lines["max_hint_window"]) <= min(grace)


def test_a_full_bucket_may_expire(lines: dict[str, Any]) -> None:
    """A read may meet a bucket full of messages that expired early, each of which is as many dead cells as it has."""
    (columns,) = re.findall(r"\(qid, partition, bucket, id, (.*?)\)", message_codec.INSERT[0].cql)
    dead = bucketing.FULL_ROWS * len(columns.split(","))
    assert lines["tombstone_warn_threshold"] == dead
    assert lines["tombstone_failure_threshold"] == 10 * dead


def test_node_takes_the_lines(
    node: CassandraCluster, target: options.DataCentreTarget, connect: Connect, tls: Path
) -> None:
    """A node with the samples at the end of its settings runs by them, whatever the settings say before."""
    in_force = dict(run_statements(target, connect(*SUPERUSER), SETTINGS))
    expected = yaml.safe_load(LINES.read_text() + SECURE.read_text().replace("/etc/cassandra/tls", str(tls)))
    plain = {name: value for name, value in expected.items() if not isinstance(value, dict)}
    names = {"authenticator", "authorizer", "role_manager"}
    actual = {name: in_force[f"{name}.class_name" if name in names else name] for name in plain}
    assert {name: value.rpartition(".")[2] if name in names else value for name, value in actual.items()} == {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in plain.items()
    }
    assert in_force["client_encryption_options.enabled"] == "true"
    assert in_force["client_encryption_options.optional"] == "false"
    assert in_force["server_encryption_options.internode_encryption"] == "all"


def test_nobody_gets_in_without_a_password(node: CassandraCluster) -> None:
    """A client without encryption is disconnected, and one without a valid password is refused."""
    address = node.contact_points[0]
    with pytest.raises(OSError, match=r".*"), Conversation(address, node.port) as plain:
        plain.query("SELECT key FROM system.local", ONE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(Refused), Conversation(address, node.port, tls=context, user=("cassandra", "guess")) as wrong:
        wrong.query("SELECT key FROM system.local", ONE)


def test_the_page_makes_a_role_that_suffices(prepared: options.DataCentreTarget, connect: Connect) -> None:
    """With the role that the page makes, the tables are made, messages posted and read, and the promise is known."""
    ours = connect("queuey", "change-me-2", row_age=0.1)
    report = migrations.migrate(prepared, ours)
    assert report.replication is None
    assert len(report.migrations) == len(list((ROOT / "cql").glob("*.cql")))
    with closing(cassandra.open_store(prepared.url, options=ours)) as store:
        retry_until_available(lambda: bridge.run(store.ping()), 30)
        bridge.run(store.applications.create_application("app"))
        queue, _ = bridge.run(store.catalogue.create_queue("app", "q", QueueSpec()))
        places = bridge.run(
            store.messages.append(queue, [NewMessage(body=body, partition=1, ttl=60) for body in ("first", "second")])
        )
        messages = bridge.run(store.messages.fetch(queue, [(1, place) for place in places]))
        assert [message.body for message in messages] == ["first", "second"]
        assert bridge.run(store.acknowledgement()).level == "fsync"
        assert bridge.run(store.catalogue.purge_queue(queue)).qid != queue.qid


def test_the_role_may_do_no_more(prepared: options.DataCentreTarget, connect: Connect) -> None:
    """The service's role cannot create keyspaces or read passwords; the default superuser cannot log in."""
    ours = connect("queuey", "change-me-2")
    make = "CREATE KEYSPACE other WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    for forbidden in (make, "SELECT role FROM system_auth.roles", "DROP ROLE admin"):
        with pytest.raises(StoreUnavailable, match="does not let this user in"):
            run_statements(prepared, ours, Statement(forbidden, idempotent=False))
    for _ in range(200):  # Nodes cache for a while who may log in.
        with closing(Driver(prepared, connect(*SUPERUSER), keyspace=False)) as driver:
            refused = not driver.ready(2)
            problem = driver.problem() or ""
        if refused:
            break
    assert refused
    assert "not permitted to log in" in problem


def test_doctor_has_nothing_against_it(prepared: options.DataCentreTarget, connect: Connect) -> None:
    """The checks that depend on the samples pass: access, acknowledgement, Paxos, lifetime of deletes."""
    migrations.migrate(prepared, connect("queuey", "change-me-2"))
    findings = {one.check: one for one in examine(prepared, connect("queuey", "change-me-2"))}
    for check in ("nodes", "access", "clocks", "acknowledged", "paxos", "schema", "gc_grace", "read_repair"):
        assert findings[check].state == "ok", findings[check]


@pytest.mark.slow
def test_a_full_bucket_that_expired_is_read(prepared: options.DataCentreTarget, connect: Connect) -> None:
    """Behind a bucket full of messages that all expired early, a read finds the live one, and does not fail."""
    ours = connect("queuey", "change-me-2")
    migrations.migrate(prepared, ours)
    with closing(Driver(prepared, ours)) as driver:
        assert driver.ready(20)
        insert = message_codec.INSERT[1]
        for first in range(0, bucketing.FULL_ROWS, 100):
            ids = range(first, first + 100)
            call, *further = [(insert, (1, 1, 0, message_codec.uuid_of((at, 0)), b"b", at, b"m", 1, 1)) for at in ids]
            driver.run(*call, "ONE", further=further)
        alive = message_codec.uuid_of((bucketing.FULL_ROWS, 0))
        driver.run(insert, (1, 1, 0, alive, b"alive", 2, b"m", 1, 3600), consistency="ONE")
        lower, upper = message_codec.uuid_of((0, 0)), message_codec.uuid_of((bucketing.FULL_ROWS + 1, 0))
        rows: list[Any] = []
        while len(rows) != 1:  # The last ones expire a second after they were written.
            rows = list(
                driver.run(message_codec.SELECT_UP[1], (1, 1, 0, lower, upper, 10), consistency="ONE", timeout=20.0)
            )
        assert rows[0][1] == b"alive"
