"""Every setting: its name, type, help, default and group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from queuey.model.messages import DEFAULT_TTL, MAX_TTL, MAX_WAIT
from queuey.settings.extensions import ServiceExtension
from queuey.settings.setting_values import NUMBER, SECONDS, SecretName
from queuey.settings.users import Users

R = TypeVar("R", bound=ServiceExtension)

AUTO: Literal["auto"] = "auto"
"""The consistency level QUORUM, or LOCAL_QUORUM with several data centres."""
MIN_RATE = 0.001
"""Min requests a second other than 0; a lower rate is taken for a typing error."""
WriteLevel = Literal["auto", "ONE", "TWO", "THREE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]
ReadLevel = Literal["auto", "ONE", "TWO", "THREE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "ALL"]


def data_directory() -> Path:
    import platformdirs  # noqa: PLC0415 - only a start without --data pays for it

    return Path(platformdirs.user_data_dir("queuey", appauthor=False))


class Consistency(msgspec.Struct, frozen=True, kw_only=True):
    """Cassandra's consistency levels for the messages of a queue.

    Attributes:
        write: Cassandra's consistency level for writes. `auto`: `QUORUM`, or `LOCAL_QUORUM` with several data centres.
        read: Cassandra's consistency level for reads. `auto`: the level of writes.
    """

    write: WriteLevel = AUTO
    read: ReadLevel = AUTO


class WeakConsistency(msgspec.Struct, frozen=True, kw_only=True):
    """Cassandra's consistency levels for the messages of a `weak` queue, and its times.

    Attributes:
        write: Cassandra's consistency level for writes. `auto`: `QUORUM`, or `LOCAL_QUORUM` with several data centres.
        read: Cassandra's consistency level for reads. `auto`: the level of writes.
        delay: Time that range reads stay behind the clock.
        deadline: Timeout of a write; a write that takes longer is not acknowledged.
    """

    write: WriteLevel = "ONE"
    read: ReadLevel = "ONE"
    delay: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    deadline: Annotated[float, Meta(ge=0.05, le=120)] = 3.0


class CatalogueConsistency(msgspec.Struct, frozen=True, kw_only=True):
    """Cassandra's consistency levels for queues, applications, keys and offsets.

    Attributes:
        write: Cassandra's consistency level for changes.
        read: Cassandra's consistency level for reads.
        serial: Serial consistency of changes. `LOCAL_SERIAL`: only if a single data centre makes changes.
    """

    write: Literal["QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"] = "QUORUM"
    read: Literal["QUORUM", "LOCAL_QUORUM", "ALL"] = "QUORUM"
    serial: Literal["SERIAL", "LOCAL_SERIAL"] = "SERIAL"


_RATE = Meta(ge=0, le=1_000_000, extra=NUMBER)
_BURST = Meta(ge=0, le=1_000_000)


class OwnRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one application. An unset field has the value for all applications."""

    application: Annotated[float, _RATE] | None = None
    application_burst: Annotated[int, _BURST] | None = None
    user: Annotated[float, _RATE] | None = None
    user_burst: Annotated[int, _BURST] | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Max requests a second of callers.

    Attributes:
        application: Max requests a second of an application with its users, in a worker; 0: no limit.
        application_burst: Max requests of the application at once after a pause; 0: one second's requests, at least 1.
        user: Max requests a second of each user, in a worker; 0: no limit.
        user_burst: Max requests of a user at once after a pause; 0: one second's requests, at least 1.
        applications (none): Only in a file: a table with these fields for each application that differs.
    """

    application: Annotated[float, _RATE] = 0.0
    application_burst: Annotated[int, _BURST] = 0
    user: Annotated[float, _RATE] = 0.0
    user_burst: Annotated[int, _BURST] = 0
    applications: dict[str, OwnRates] = {}

    def for_application(self, application: str) -> Rates:
        own = self.applications.get(application)
        if own is None:
            return self
        return msgspec.structs.replace(
            self, **{name: value for name, value in msgspec.structs.asdict(own).items() if value is not None}
        )

    def rate_and_burst(self, kind: Literal["application", "user"]) -> tuple[float, int]:
        """Returns rate and burst; a burst of 0 becomes the rate, at least 1. A rate of 0 means no limit."""
        rate, burst = (
            (self.application, self.application_burst) if kind == "application" else (self.user, self.user_burst)
        )
        return rate, burst or max(1, int(rate))

    @property
    def is_limited(self) -> bool:
        return any(rates.application or rates.user for rates in (self, *map(self.for_application, self.applications)))

    def find_problems(self) -> Iterator[str]:
        """Yields rates between 0 and :data:`MIN_RATE`, and bursts without a rate, each as the end of a sentence."""
        for where, rates in (
            ("", self),
            *((f"applications.{name}.", self.for_application(name)) for name in self.applications),
        ):
            for kind, rate, burst in (
                ("application", rates.application, rates.application_burst),
                ("user", rates.user, rates.user_burst),
            ):
                if 0 < rate < MIN_RATE:
                    yield f"{where}{kind} {rate}, which must be 0 or at least {MIN_RATE}"
                if burst and not rate:
                    yield f"{where}{kind}_burst, which needs {kind}"


class PublishedMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The series that ``/metrics`` publishes.

    Attributes:
        publish: Serve Prometheus metrics at `/metrics`.
        backlog (none): Queues whose job backlog is published: patterns such as `acme/thumb*`, separated by spaces. Max
            100 queues. Everybody who reaches `/metrics` sees their names.
        lag (none): Queues whose consumer groups' lag is published: patterns as in `backlog`. Max 100 queues, and 1,000
            partitions of their groups. Everybody who reaches `/metrics` sees their names.
    """

    publish: bool = True
    backlog: str = ""
    lag: str = ""

    def find_problems(self) -> Iterator[str]:
        for name, texts in (("backlog", self.backlog), ("lag", self.lag)):
            for (application, pattern), text in zip(patterns_of(texts), texts.split(), strict=True):
                if not application or not pattern or "*" in application:
                    yield f"{name}={text}: a pattern is application/queue, in which * stands for any text of the queue"


def patterns_of(texts: str) -> list[tuple[str, str]]:
    pairs = (text.partition("/") for text in texts.split())
    return [(application, pattern) for application, _, pattern in pairs]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of the service: name, type, help and default.

    Attributes:
        extensions: The installed extensions, which have their settings as attributes of their own.
        host: Address to listen on.
        port: TCP port; 0: any free port.
        tls_cert: Certificate chain (PEM). With `tls_key`, the service serves https.
        tls_key: Private key (PEM) of `tls_cert`.
        workers: Number of worker processes. Each opens the store for itself.
        shutdown_timeout: Timeout of a stop, within which running requests are finished.
        profile (`queuey/profile.toml` in the user's configuration directory): File with the URL and the key for the
            command line and the client; mode 0600.
        store: `sqlite`: a file in `data`; or `cassandra://host1,host2/keyspace`, `:9042` behind the hosts for a port.
        deadline: Timeout of a call to the store. SQLite waits a third of it for another process's write lock.
        data (`queuey` in the user's data directory): Directory of the SQLite store, or its file: `*.db`. The first
            start creates it.
        sync: `full`: an acknowledged message survives a power cut. `normal` is faster; a power cut may lose the last
            ones.
        readers: Read connections of a worker to SQLite. While all are in use, further reads wait.
        default_ttl: TTL of messages, if neither the message nor its queue has one.
        idempotency_ttl: Max time that the service remembers an `Idempotency-Key`.
        max_body: Max size of a message body in bytes.
        max_batch_bytes: Max size of a request with several messages in bytes.
        page_bytes: Size in bytes after which a page of messages ends.
        max_wait: Max duration of a long poll; 0 turns long polls off.
        threads: Max requests that a worker handles in threads at the same time; small posts need no thread.
        connections: Max open connections of a worker.
        memory: Max bytes of bodies and answers that a worker holds.
        claims_memory: Approximate max bytes of claims that a worker caches.
        wait_slots: Max long polls and streams of one application in a worker; further ones get 503.
        rates (no limits): Max requests a second of an application and of each user in a worker; further ones get 429.
        users (none): The issuers that each application trusts, and what their users may do.
        metrics (`publish=on`): Contents of `/metrics`, which needs no credential.
        log_level: The least severe log records to write.
        log_format: `text` for people; `json`: one object per line.
        cassandra_user: User name, if Cassandra requires a login. Needs `cassandra_password`.
        cassandra_password: Place of the password: `env:NAME` (a variable) or `file:PATH` (first line).
        cassandra_tls: Encrypt connections to Cassandra. Each of the next three settings turns it on, too.
        cassandra_tls_ca: CA certificates (PEM) for Cassandra's certificate, instead of the system's.
        cassandra_tls_cert: Client certificate (PEM), if Cassandra requires one.
        cassandra_tls_key: Private key (PEM) of `cassandra_tls_cert`.
        cassandra_tls_hostname: Check that a node's certificate names the address of the connection.
        cassandra_local_dc: Data centre of this machine; required if there are several.
        cassandra_timeout: Timeout of a request to Cassandra.
        cassandra_speculative: Time until a repeatable request also goes to a second node; 0: never.
        consistency_weak: Meaning of `weak`: levels for writes and reads of messages in `weak` queues.
        consistency_strong: Meaning of `strong`.
        consistency_very_strong: Meaning of `very_strong`.
        consistency_catalogue: Levels for changes and reads of queues, applications, keys and offsets.
    """

    extensions: tuple[ServiceExtension, ...] = ()

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 5000
    tls_cert: Path | None = None
    tls_key: Path | None = None
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    shutdown_timeout: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    profile: Path | None = None

    store: str = "sqlite"
    deadline: Annotated[float, Meta(ge=1, le=120)] = 15.0

    data: Path = msgspec.field(default_factory=data_directory)
    sync: Literal["full", "normal"] = "full"
    readers: Annotated[int, Meta(ge=1, le=64)] = 4

    default_ttl: Annotated[int, Meta(ge=1, le=MAX_TTL, extra=SECONDS)] = DEFAULT_TTL
    idempotency_ttl: Annotated[int, Meta(ge=60, le=604_800, extra=SECONDS)] = 86_400
    max_body: Annotated[int, Meta(ge=1, le=1 << 30)] = 262_144
    max_batch_bytes: Annotated[int, Meta(ge=1, le=1 << 30)] = 8_388_608
    page_bytes: Annotated[int, Meta(ge=1, le=1 << 30)] = 8_388_608
    max_wait: Annotated[float, Meta(ge=0, le=MAX_WAIT)] = 20.0

    threads: Annotated[int, Meta(ge=1, le=1024)] = 8
    connections: Annotated[int, Meta(ge=1, le=65536)] = 4096
    memory: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 256 << 20
    claims_memory: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 64 << 20
    wait_slots: Annotated[int, Meta(ge=0, le=32_768)] = 2048
    rates: Rates = Rates()

    users: Users = msgspec.field(default_factory=dict)

    metrics: PublishedMetrics = PublishedMetrics()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    cassandra_user: Annotated[str | None, Meta(min_length=1)] = None
    cassandra_password: SecretName | None = None
    cassandra_tls: bool = False
    cassandra_tls_ca: Path | None = None
    cassandra_tls_cert: Path | None = None
    cassandra_tls_key: Path | None = None
    cassandra_tls_hostname: bool = True
    cassandra_local_dc: Annotated[str | None, Meta(min_length=1)] = None
    cassandra_timeout: Annotated[float, Meta(ge=0.1, le=60)] = 4.0
    cassandra_speculative: Annotated[float, Meta(ge=0, le=60)] = 0.1

    consistency_weak: WeakConsistency = msgspec.field(name="consistency.weak", default=WeakConsistency())
    consistency_strong: Consistency = msgspec.field(name="consistency.strong", default=Consistency())
    consistency_very_strong: Consistency = msgspec.field(
        name="consistency.very_strong", default=Consistency(write="EACH_QUORUM")
    )
    consistency_catalogue: CatalogueConsistency = msgspec.field(
        name="consistency.catalogue", default=CatalogueConsistency()
    )

    def of(self, extension: type[R]) -> R:
        """Returns the settings of an extension, or its defaults if it is not installed."""
        return (
            next((installed for installed in self.extensions if isinstance(installed, extension)), None) or extension()
        )

    @property
    def sole_api_setting(self) -> str | None:
        """The setting by which an extension replaces the service's API on all paths; None if none does."""
        return next(
            (extension.sole_api_setting for extension in self.extensions if extension.sole_api_setting is not None),
            None,
        )

    def longest_body(self, otherwise: int) -> int:
        return max((extension.longest_body(otherwise) for extension in self.extensions), default=otherwise)


SQLITE, CASSANDRA, CONSISTENCY = "SQLite store", "Cassandra store", "Consistency levels on Cassandra"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Service": ("host", "port", "tls_cert", "tls_key", "workers", "shutdown_timeout", "profile"),
    "Store": ("store", "deadline"),
    SQLITE: ("data", "sync", "readers"),
    "Messages and requests": (
        *("default_ttl", "idempotency_ttl", "max_body", "max_batch_bytes", "page_bytes", "max_wait"),
    ),
    "Capacity of a worker": ("threads", "connections", "memory", "claims_memory", "wait_slots", "rates"),
    "Users of applications": ("users",),
    "Clients of other systems": (),
    "Logs and metrics": ("metrics", "log_level", "log_format"),
    CASSANDRA: (
        *("cassandra_user", "cassandra_password", "cassandra_tls", "cassandra_tls_ca", "cassandra_tls_cert"),
        *("cassandra_tls_key", "cassandra_tls_hostname", "cassandra_local_dc", "cassandra_timeout"),
        "cassandra_speculative",
    ),
    CONSISTENCY: ("consistency.weak", "consistency.strong", "consistency.very_strong", "consistency.catalogue"),
}
"""The names of all settings by group, in the order shown. An extension's settings come last in their group."""


def is_of_cassandra(name: str) -> bool:
    return name in GROUPS[CASSANDRA] or name in GROUPS[CONSISTENCY]


def select_settings(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in names if name in settings.__struct_fields__}
