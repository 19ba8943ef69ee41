"""Opens the store that the settings name. No other module chooses between the stores.

A store's package is imported only when that store is opened, so that neither needs the other's driver.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import asdict

from queuey.model.errors import SettingsError, StoreUnavailable
from queuey.model.extras import require
from queuey.model.messages import Finding
from queuey.settings import AUTO, DEFAULT_SOURCE, Loaded, Settings, is_of_cassandra, select_settings
from queuey.storage import Store

if TYPE_CHECKING:
    from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget, Level
    from queuey.storage.sqlite.connection import SqliteOptions

T = TypeVar("T")

RETRY_INTERVAL = 0.1
LOCK_SHARE = 1 / 3
"""Ratio of the wait for another process's SQLite lock to the deadline. After that wait a call fails as busy."""


def is_cassandra(settings: Settings) -> bool:
    return settings.store.startswith("cassandra:")


def store_file_exists(settings: Settings) -> bool:
    return store_path(settings).is_file()


def store_path(settings: Settings) -> Path:
    from queuey.storage.sqlite import connection  # noqa: PLC0415 - only needed if it is used

    return connection.file_of(settings.data)


def open_store(settings: Settings, *, jobs: bool = True) -> Store:
    """Opens the store that the settings name.

    A Cassandra store is returned even if Cassandra cannot be reached: its calls then raise ``StoreUnavailable``.

    Args:
        jobs: Run the jobs that remove expired and deleted messages. Short-lived commands do not run them.

    Raises:
        StoreUnavailable: The SQLite store cannot be used now; the message says why.
        StoreIncompatible: A newer version of this program has written the store.
    """
    if is_cassandra(settings):
        cassandra_target(settings)
        from queuey.storage import cassandra  # noqa: PLC0415 - needs its driver, which may not be installed

        options = cassandra_options(settings, jobs=jobs)
        return cassandra.open_store(settings.store, options=options)
    from queuey.storage import sqlite  # noqa: PLC0415 - only needed if it is used

    try:
        return sqlite.open_store(settings.data, options=sqlite_options(settings, jobs=jobs))
    except OSError as error:
        raise StoreUnavailable(f"the data directory {settings.data} cannot be used: {error.strerror}") from error


def check_store_settings(loaded: Loaded) -> None:
    """Checks that the chosen store can work with the settings. Reads the secrets and certificates that they name."""
    settings = loaded.settings
    if not is_cassandra(settings):
        return
    try:
        cassandra_target(settings)
        options = cassandra_options(settings)
        _check_files(options)
        _check_max_body(settings)
    except SettingsError as error:
        sources = [
            f"{name} from {source}"
            for name, source in loaded.sources.items()
            if source != DEFAULT_SOURCE and (is_of_cassandra(name) or name in {"store", "max_body"})
        ]
        raise SettingsError(f"{error} ({', '.join(sources)})") from error


def sqlite_options(settings: Settings, *, jobs: bool = True) -> SqliteOptions:
    from queuey.storage.sqlite.connection import SqliteOptions  # noqa: PLC0415 - only needed if it is used

    busy_timeout = settings.deadline * LOCK_SHARE
    options = SqliteOptions(**select_settings(settings, SqliteOptions.__dataclass_fields__), busy_timeout=busy_timeout)
    return options if jobs else replace(options, sweep_interval=None)


def cassandra_target(settings: Settings) -> DataCentreTarget:
    """Returns the address of the Cassandra store.

    Raises:
        SettingsError: ``store`` is not a valid URL, or the driver is not installed.
    """
    require("cassandra", "The store on Cassandra", SettingsError)
    from queuey.storage.cassandra.cluster.options import parse_url  # noqa: PLC0415 - an extra

    return parse_url(settings.store)


def cassandra_options(
    settings: Settings, *, jobs: bool = True, environ: Mapping[str, str] | None = None
) -> CassandraOptions:
    """Returns the options of the Cassandra store, including the password.

    Args:
        environ: Source of ``env:`` secrets; by default this process's environment.

    Raises:
        SettingsError: Values contradict each other, or the password cannot be read.
    """
    from queuey.storage.cassandra.cluster.options import CassandraOptions  # noqa: PLC0415 - needs the driver

    names = {name: f"cassandra_{name}" for name in CassandraOptions.__dataclass_fields__}
    values = {name: getattr(settings, setting) for name, setting in names.items() if hasattr(settings, setting)}
    password = settings.cassandra_password
    values["password"] = None if password is None else password.read(os.environ if environ is None else environ)
    options = CassandraOptions(
        **values,
        levels=_make_levels(settings),
        follow=True,
        **{f"catalogue_{name}": level for name, level in asdict(settings.consistency_catalogue).items()},
        deadline=settings.deadline,
        default_ttl=settings.default_ttl,
    )
    return options if jobs else replace(options, reap_interval=None)


def make_examiner(settings: Settings, *, whole: bool = True) -> Callable[[], list[Finding]]:
    """Returns a blocking function that checks the store that the settings name. Secrets are read before it returns.

    Args:
        whole: Include checks whose duration grows with the size of the store.
    """
    if is_cassandra(settings):
        from queuey.storage.cassandra.admin import doctor as cassandra  # noqa: PLC0415 - needs the driver

        return partial(cassandra.examine, cassandra_target(settings), cassandra_options(settings))
    from queuey.storage.sqlite import doctor as sqlite  # noqa: PLC0415 - only needed if it is used

    return partial(sqlite.examine, settings.data, sqlite_options(settings), whole=whole)


def retry_until_available(call: Callable[[], T], seconds: float) -> T:
    """Repeats a read until the store answers, because a Cassandra store connects in the background.

    Raises:
        StoreUnavailable: The store did not answer within ``seconds``; the message says why.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreUnavailable:
            if time.monotonic() + RETRY_INTERVAL > until:
                raise
        time.sleep(RETRY_INTERVAL)


def _make_levels(settings: Settings) -> dict[str, Level]:
    from queuey.storage.cassandra.cluster.options import STRONG, VERY_STRONG, WEAK  # noqa: PLC0415 - needs the driver

    levels = {}
    for name, level in {"weak": WEAK, "strong": STRONG, "very_strong": VERY_STRONG}.items():
        chosen = asdict(getattr(settings, f"consistency_{name}"))
        values: dict[str, Any] = {field: None if value == AUTO else value for field, value in chosen.items()}
        levels[name] = replace(level, **values)
    return levels


def _check_files(options: CassandraOptions) -> None:
    """Loads the certificates like the driver, which would only log the failure every second.

    Raises SettingsError if a file cannot be used, or the key needs a password.
    """
    try:
        context = ssl.create_default_context(cafile=None if options.tls_ca is None else str(options.tls_ca))
        if options.tls_cert is not None and options.tls_key is not None:
            context.load_cert_chain(options.tls_cert, options.tls_key, password=refuse_password)
    except OSError as error:
        raise SettingsError(f"The TLS files for Cassandra cannot be used: {error.strerror or error}.") from error


def _check_max_body(settings: Settings) -> None:
    from queuey.storage.cassandra.cluster.options import MAX_BODY_BYTES  # noqa: PLC0415 - needs the driver

    if settings.max_body > MAX_BODY_BYTES:
        raise SettingsError(f"Setting max_body can be at most {MAX_BODY_BYTES} with Cassandra.")


def refuse_password() -> str:
    """Refuses a key with a password, because OpenSSL would prompt for it and block the start of the service."""
    raise ssl.SSLError("the key is encrypted with a password, which is not supported")
