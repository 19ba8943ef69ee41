"""Reads the settings from command line, environment, file and defaults, and checks them for contradictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from queuey.model.errors import SettingsError
from queuey.model.extras import DISTRIBUTION
from queuey.settings.definitions import GROUPS, SQLITE, Settings, is_of_cassandra
from queuey.settings.extensions import OWN_EXTENSIONS, find_installed
from queuey.settings.setting_values import (
    Given,
    SecretName,
    Setting,
    as_text,
    check_known,
    convert,
    option_of,
    read_sources,
    variables_with_prefix,
)
from queuey.settings.table import DEFAULT_SOURCE, PREFIX, table, variable_of
from queuey.settings.users import DEV_ISSUER, Users, is_loopback, read_users

CONFIG_VARIABLE = PREFIX + "CONFIG"
OTHER_VARIABLES = frozenset(
    {CONFIG_VARIABLE, PREFIX + "URL", PREFIX + "KEY", PREFIX + "APP", PREFIX + "CA", PREFIX + "TOKEN_FILE"}
)
"""Variables that are not settings: they select the settings file, or the service that the command line uses."""


class Loaded(NamedTuple):
    """The settings, and the source of each by its name."""

    settings: Settings
    sources: dict[str, str]


def load(
    options: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    config: Path | None = None,
    source: Callable[[str], str] = option_of,
) -> Loaded:
    """Reads the settings. ``options`` override the environment, and that overrides the file, field by field in a table.

    Args:
        options: Values of the command line, or of a program, by setting name; None if not given.
        environ: The environment. Empty variables count as not given.
        config: The TOML file that the command line names. By default ``QUEUEY_CONFIG`` in ``environ`` names it.
        source: Returns the name of a setting's option in errors.

    Raises:
        SettingsError: A key is unknown, a value is invalid, or settings contradict each other; the text names the key,
            its source, and the reason.
    """
    lines = {line.name: line for line in table()}
    given = read_sources(lines, options, environ, config, config_variable=CONFIG_VARIABLE, option=source)
    for name, value in given:
        _check_known(name, lines, f"in {value.source}")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for line in lines.values():
        own = [value for name, value in given if name == line.name]
        if own and line.fields:
            values[line.attribute], sources[line.name] = _merge_table(line, own)
        elif own:
            values[line.attribute], sources[line.name] = _convert(line, own[-1]), own[-1].source
    secrets = {value.name for value in values.values() if isinstance(value, SecretName)}
    for variable in variables_with_prefix(environ, PREFIX):
        if variable not in OTHER_VARIABLES | secrets:
            _check_known(variable, [line.variable for line in lines.values()], "in the environment")
    sources = {name: sources.get(name, DEFAULT_SOURCE) for name in lines}
    extensions = tuple(
        extension(**{name: values.pop(name) for name in extension.__struct_fields__ if name in values})
        for extension in find_installed()
    )
    settings = Settings(**values, extensions=extensions)
    check(settings, sources)
    return Loaded(settings, sources)


def _check_known(key: str, known: Collection[str], where: str) -> None:
    for extension in OWN_EXTENSIONS:
        if key in {extension, variable_of(extension)} and key not in known:
            owner = f"it belongs to the extension {extension!r}, which is not installed"
            raise SettingsError(f"Unknown setting {key} {where}: {owner}. Install {DISTRIBUTION} again, or remove it.")
    check_known(key, known, where)


def _merge_table(setting: Setting, given: Iterable[Given]) -> tuple[msgspec.Struct, str]:
    merged = {key: value for source in given for key, value in _split_fields(setting, source)}
    fields = {field.name: field for field in setting.fields}
    values = {}
    for key, value in merged.items():
        check_known(key, fields, f"in {value.source}")
        values[key.rpartition(".")[2]] = _convert(fields[key], value)
    sources = dict.fromkeys(value.source for value in merged.values())
    return msgspec.structs.replace(setting.preset, **values), ", ".join(sources) or DEFAULT_SOURCE


def _split_fields(setting: Setting, given: Given) -> Iterator[tuple[str, Given]]:
    if isinstance(given.value, dict):
        pairs = list(given.value.items())
    else:
        pieces = [piece.partition("=") for piece in str(given.value).split(",")]
        if not all(equals for _, equals, _ in pieces):
            example = as_text(setting.preset)
            raise SettingsError(
                f"Setting {setting.name} (from {given.source}) is {given.value!r}. Expected fields as in {example}."
            )
        pairs = [(name.strip(), value.strip()) for name, _, value in pieces]
    for name, value in pairs:
        yield f"{setting.name}.{name}", given._replace(value=value)


def _convert(setting: Setting, given: Given) -> object:
    if setting.kind != Users:
        return convert(setting, given)
    try:
        return read_users(given.value, given.base)
    except ValueError as error:
        raise SettingsError(f"Setting {setting.name} (from {given.source}) cannot be used. {error}.") from error


def check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raises SettingsError for the first settings that contradict each other, with their names and sources."""

    def refuse(message: str, *names: str) -> None:
        where = ", ".join(f"{name} from {sources[name]}" for name in names)
        raise SettingsError(f"{message} ({where})")

    _check_store(settings, sources, refuse)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        present = "tls_cert" if settings.tls_key is None else "tls_key"
        refuse(f"Setting {present} needs {missing}.", present)
    for name, fields in (("rates", settings.rates), ("metrics", settings.metrics)):
        for mistake in fields.find_problems():
            refuse(f"Setting {name} has {mistake}.", name)
    for extension in settings.extensions:
        for mistake, names in extension.find_problems(settings.sole_api_setting):
            refuse(mistake, *names)
    trusted = {issuer.issuer for issuers in settings.users.values() for issuer in issuers}
    if DEV_ISSUER in trusted and not is_loopback(settings.host):
        refuse("Setting users trusts the issuer of `queuey dev`, so host must be a loopback address.", "host", "users")
    if settings.connections < settings.threads:
        refuse("Setting connections must not be below threads.", "connections", "threads")
    if settings.max_batch_bytes < settings.max_body:
        refuse("Setting max_batch_bytes must not be below max_body.", "max_batch_bytes", "max_body")


def _check_store(settings: Settings, sources: Mapping[str, str], refuse: Callable[..., None]) -> None:
    kind = settings.store.partition(":")[0]
    if settings.store != "sqlite" and kind != "cassandra":
        reason = "for SQLite, set the directory with data" if kind == "sqlite" else f"{kind!r} is not known"
        refuse(f"Setting store must be 'sqlite' or 'cassandra://host1,host2/keyspace': {reason}.", "store")
    if "@" in settings.store:
        refuse("Setting store must not contain a user: use cassandra_user and cassandra_password.", "store")
    for name, source in sources.items():
        if source != DEFAULT_SOURCE and (is_of_cassandra(name) if kind == "sqlite" else name in GROUPS[SQLITE]):
            other = "a Cassandra" if kind == "sqlite" else "the SQLite"
            refuse(f"Setting {name} is for {other} store, but store is {kind}.", name, "store")
    if kind == "sqlite":
        return
    _check_cassandra(settings, refuse)


def _check_cassandra(settings: Settings, refuse: Callable[..., None]) -> None:
    if (settings.cassandra_user is None) != (settings.cassandra_password is None):
        missing = "cassandra_user" if settings.cassandra_user is None else "cassandra_password"
        present = "cassandra_password" if settings.cassandra_user is None else "cassandra_user"
        refuse(f"Setting {present} needs {missing}.", present)
    if settings.deadline <= settings.cassandra_timeout:
        refuse("Setting deadline must be above cassandra_timeout.", "deadline", "cassandra_timeout")
    if settings.deadline <= settings.consistency_weak.deadline:
        refuse("Setting deadline must be above the deadline of consistency.weak.", "deadline", "consistency.weak")
