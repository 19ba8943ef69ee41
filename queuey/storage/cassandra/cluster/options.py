"""Options of the Cassandra store, and the meaning of its consistency levels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

from queuey.model.errors import SettingsError
from queuey.storage.cassandra.cluster.timing import KeyspaceTiming, LevelTiming

WRITE_LEVELS = ("ONE", "TWO", "THREE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL")
READ_LEVELS = ("ONE", "TWO", "THREE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "ALL")
DEFAULT_PORT = 9042
MAX_BODY_BYTES = 4 << 20
"""Max bytes of a body that Cassandra accepts with its default settings: well under half a commit log segment."""

_URL = re.compile(r"cassandra://(?P<hosts>[^/?#]*)/?(?P<keyspace>[^?#]*)")
_KEYSPACE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


@dataclass(frozen=True)
class Level:
    """The meaning of a queue's consistency level.

    Attributes:
        write: Cassandra's consistency level of writes; QUORUM if None, or LOCAL_QUORUM with several data centres.
        read: Consistency level of reads, with the same default.
        delay: Delay in seconds of range reads behind the clock (D).
        deadline: Limit in seconds for a write to return and be acknowledged (W).
        safe: The level has the guarantees G1 and G2, so reads and writes must overlap; delay and deadline are part of
            the :class:`KeyspaceTiming`.
    """

    write: str | None
    read: str | None
    delay: float
    deadline: float = 3.0
    safe: bool = True


WEAK = Level("ONE", "ONE", delay=1.0, safe=False)
STRONG = Level(None, None, delay=1.0, deadline=0.4)
VERY_STRONG = Level("EACH_QUORUM", None, delay=1.0, deadline=0.4)


@dataclass(frozen=True)
class CassandraOptions:
    """How the Cassandra store works.

    Attributes:
        user, password: Credentials for Cassandra's own authentication; without authentication if None.
        tls: Encrypt connections; implied by the three files.
        tls_ca, tls_cert, tls_key: Trusted certificates, and the client's own certificate and key (PEM).
        tls_hostname: Check that a node's certificate names its address.
        local_dc: Data centre of this process; required if there are several.
        timeout: Timeout in seconds of one request to Cassandra (reads, catalogue).
        deadline: Seconds after which a call to the store gives up, whatever it waits for.
        speculative: Seconds after which an idempotent request also goes to a second node; a quarter of its timeout if
            that is less.
        clock_difference: Max difference in seconds between the clocks of two web processes (S).
        row_age: Max age in seconds of a queue's row and its bucket index when they are used (C). A change of a queue is
            answered after it.
        levels: Meaning of ``weak``, ``strong`` and ``very_strong``.
        follow: Use the timing of the keyspace instead of S, C and the values of the levels.
        default_ttl: TTL in seconds of a message if neither it nor its queue has one.
        cached_queues: Max queue rows in memory, and max partitions with a bucket index in memory.
        max_pending: Max messages that wait for Cassandra in this process; further ones are refused at once.
        catalogue_write: Consistency level at which changes of queues, applications, keys and offsets are committed.
        catalogue_read: Consistency level of reads of the catalogue. Every read must meet every commit (LOCAL_QUORUM:
            EACH_QUORUM).
        catalogue_serial: Serial consistency level of lightweight transactions: LOCAL_SERIAL only if one data centre
            writes. For idempotency keys it is SERIAL if there are several data centres.
        catalogue_deadline: Seconds for which a lightweight transaction in doubt is retried.
        heartbeat: Interval in seconds between rounds that ask all coordinators for their time.
        reap_interval: Interval in seconds between searches for remains of purges and deletes; only on demand if None.
        reap_after: Min age in seconds of remains before they are removed.

    Raises:
        SettingsError: A level or a time is not valid, a certificate lacks its key, or times break the guarantees.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_hostname: bool = True
    local_dc: str | None = None
    timeout: float = 4.0
    deadline: float = 15.0
    speculative: float = 0.1
    clock_difference: float = 0.25
    row_age: float = 0.75
    levels: Mapping[str, Level] = field(
        default_factory=lambda: MappingProxyType({"weak": WEAK, "strong": STRONG, "very_strong": VERY_STRONG})
    )
    follow: bool = False
    default_ttl: int = 259_200
    cached_queues: int = 100_000
    max_pending: int = 50_000
    catalogue_write: str = "QUORUM"
    catalogue_read: str = "QUORUM"
    catalogue_serial: str = "SERIAL"
    catalogue_deadline: float = 10.0
    heartbeat: float = 0.25
    reap_interval: float | None = 60.0
    reap_after: float = 600.0

    def __post_init__(self) -> None:
        if self.clock_difference <= 0 or self.row_age <= 0:
            raise SettingsError("clock_difference and the age of a queue row must be above 0.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("A client certificate and its key must be given together.")
        for name, level in self.levels.items():
            _check_level(name, level)
        self.timing.check()

    @property
    def timing(self) -> KeyspaceTiming:
        """S, C and the timing of the levels with guarantees.

        What remains of a level's delay after its deadline and S is left for undo writes.
        """
        levels = {
            name: LevelTiming(
                level.deadline, max(0.0, level.delay - level.deadline - self.clock_difference), level.delay
            )
            for name, level in self.levels.items()
            if level.safe
        }
        return KeyspaceTiming(self.clock_difference, self.row_age, levels)


def _check_level(name: str, level: Level) -> None:
    for operation, value, allowed in (("write", level.write, WRITE_LEVELS), ("read", level.read, READ_LEVELS)):
        if value is not None and value not in allowed:
            text = f"{name}: {value!r} is not a {operation} consistency level. Use one of {', '.join(allowed)}."
            raise SettingsError(text)


@dataclass(frozen=True)
class DataCentreTarget:
    hosts: tuple[str, ...]
    keyspace: str
    port: int = DEFAULT_PORT

    @property
    def url(self) -> str:
        hosts = ",".join(f"[{host}]" if ":" in host else host for host in self.hosts)
        return f"cassandra://{hosts}{'' if self.port == DEFAULT_PORT else f':{self.port}'}/{self.keyspace}"


def parse_url(text: str) -> DataCentreTarget:
    """Reads ``cassandra://host1,host2:9042/keyspace``; all hosts share one port. The keyspace is lowercased.

    Raises SettingsError if the URL is invalid, or has a user or a password.
    """
    parts = _URL.fullmatch(text)
    if parts is None:
        raise SettingsError(f"{_without_password(text)!r} is not a store URL: use cassandra://host1,host2/keyspace.")
    if "@" in parts["hosts"]:
        raise SettingsError("A store URL must not have a user or password: set cassandra_user and cassandra_password.")
    hosts, ports = [], set()
    for item in parts["hosts"].split(","):
        host, port = _host_and_port(item)
        hosts.append(host)
        if port is not None:
            ports.add(port)
    if len(ports) > 1:
        raise SettingsError(f"{text!r} names several ports: use one port for all nodes of a cluster.")
    keyspace = unquote(parts["keyspace"])
    if not _KEYSPACE_PATTERN.fullmatch(keyspace):
        raise SettingsError(
            f"{keyspace!r} is not a valid keyspace name: use a letter, then up to 47 letters, digits or underscores."
        )
    return DataCentreTarget(tuple(hosts), keyspace.lower(), ports.pop() if ports else DEFAULT_PORT)


def _host_and_port(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?", text)
    if match is None:
        raise SettingsError(f"{text!r} is not a valid host: use a name or an IP address, optionally with a port.")
    port = int(match[3]) if match[3] else None
    if port is not None and not 0 < port < 1 << 16:
        raise SettingsError(f"{port} is not a valid TCP port: use 1 to 65535.")
    return match[1] or match[2], port


def _without_password(text: str) -> str:
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:***@", text)
