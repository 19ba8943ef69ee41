"""Which values contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from queuey.errors import SettingsError
from queuey.settings.definitions import GROUPS, SQLITE, Settings, is_of_cassandra
from queuey.settings.table import DEFAULT_SOURCE
from queuey.settings.users import DEV_ISSUER, is_loopback


def check(settings: Settings, sources: Mapping[str, str]) -> None:
    def refuse(message: str, *names: str) -> None:
        where = ", ".join(f"{name} from {sources[name]}" for name in names)
        raise SettingsError(f"{message} ({where})")

    _check_store(settings, sources, refuse)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        given = "tls_cert" if settings.tls_key is None else "tls_key"
        refuse(f"Setting {given} needs {missing} beside it.", given)
    for name, table in (("rates", settings.rates), ("metrics", settings.metrics)):
        for mistake in table.mistakes():
            refuse(f"Setting {name} has {mistake}.", name)
    for room in settings.rooms:
        for mistake, names in room.mistakes(settings.alone):
            refuse(mistake, *names)
    trusted = {issuer.issuer for issuers in settings.users.values() for issuer in issuers}
    if DEV_ISSUER in trusted and not is_loopback(settings.host):
        refuse(
            "Setting users trusts the issuer of `queuey dev`, so host must be an address of this machine alone.",
            "host",
            "users",
        )
    if settings.connections < settings.threads:
        refuse("Setting connections must not be below threads.", "connections", "threads")
    if settings.max_batch_bytes < settings.max_body:
        refuse("Setting max_batch_bytes must not be below max_body.", "max_batch_bytes", "max_body")


def _check_store(settings: Settings, sources: Mapping[str, str], refuse: Callable[..., None]) -> None:
    """Refuses settings that do not fit the kind of store, as far as that is known without opening it."""
    kind = settings.store.partition(":")[0]
    if settings.store != "sqlite" and kind != "cassandra":
        reason = "SQLite takes its directory from data" if kind == "sqlite" else f"{kind!r} is not known"
        refuse(f"Setting store can be 'sqlite' or 'cassandra://host1,host2/keyspace': {reason}.", "store")
    if "@" in settings.store:
        refuse("Setting store must not hold a user: see cassandra_user and cassandra_password.", "store")
    for name, source in sources.items():
        if source != DEFAULT_SOURCE and (is_of_cassandra(name) if kind == "sqlite" else name in GROUPS[SQLITE]):
            other = "a Cassandra" if kind == "sqlite" else "the SQLite"
            refuse(f"Setting {name} is one of {other} store, but store is {kind}.", name, "store")
    if kind == "sqlite":
        return
    _check_cassandra(settings, refuse)


def _check_cassandra(settings: Settings, refuse: Callable[..., None]) -> None:
    if (settings.cassandra_user is None) != (settings.cassandra_password is None):
        missing = "cassandra_user" if settings.cassandra_user is None else "cassandra_password"
        given = "cassandra_password" if settings.cassandra_user is None else "cassandra_user"
        refuse(f"Setting {given} needs {missing} beside it.", given)
    if settings.deadline <= settings.cassandra_timeout:
        refuse("Setting deadline must be above cassandra_timeout.", "deadline", "cassandra_timeout")
    for level in ("weak", "strong", "very_strong"):
        if settings.deadline <= (getattr(settings, f"consistency_{level}").deadline or 0.0):
            name = f"consistency.{level}"
            refuse(f"Setting deadline must be above the deadline of {name}.", "deadline", name)
