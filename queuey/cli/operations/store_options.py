"""Settings as options of commands: of ``queuey serve``, and of commands that open the store themselves."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuey.model.errors import SettingsError
from queuey.model.extras import require
from queuey.terminal import output
from queuey.terminal.commands import JSON, fill_first_argument, with_parameters
from queuey.terminal.struct_options import make_config_option, make_setting_option

if TYPE_CHECKING:
    from queuey.settings import Loaded, Settings
    from queuey.storage import Store

READY_TIMEOUT = 5.0
"""Timeout for a store to answer after it was opened, in seconds."""

_PANEL = "Which store"
_TOP_SETTINGS = frozenset({"host", "port", "tls_cert", "tls_key", "workers", "store", "data"})
"""Settings at the top of the help of ``queuey serve``."""
_SHOWN_SETTINGS = frozenset({"store", "data"})
_STORE_SETTINGS = frozenset({*_SHOWN_SETTINGS, "sync", "deadline", "readers", "profile", "default_ttl"})
_FILE_ONLY_SETTINGS = frozenset({"default_ttl"})
"""Settings of a store that are not options of the commands that open one."""


class ConfiguredStore:
    """The store that a command opens.

    Args:
        loaded: The settings, and the source of each.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.settings: Settings = loaded.settings
        self._sources = loaded.sources

    def given_settings(self) -> dict[str, str]:
        """Returns the given settings of the store by name, as texts that mean the same in any process.

        Secrets are given by their names. The directory of an embedded store is always included, because its default
        depends on the user.
        """
        from queuey.app import opening
        from queuey.settings import DEFAULT_SOURCE, attribute_of

        kept = (name for name, source in self._sources.items() if source != DEFAULT_SOURCE)
        names = [name for name in kept if _is_of_store(name) and name != "profile"]
        if not opening.is_cassandra(self.settings):
            names.append("data")
        return {name: _portable_text(getattr(self.settings, attribute_of(name))) for name in dict.fromkeys(names)}

    def require_existing(self) -> None:
        """Checks that an embedded store exists, so that a misspelled path does not create one.

        Raises:
            Failed: The store does not exist.
        """
        from queuey.app import opening

        if not opening.is_cassandra(self.settings) and not self.settings.data.exists():
            raise output.Failed(f"there is no store at {self.settings.data}; queuey serve creates one")

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Opens the store, which must exist. Waits up to :data:`READY_TIMEOUT` for a remote one. Silences logs.

        Raises:
            StoreUnavailable: The store cannot be used, or a remote one does not answer.
            Failed: The store does not exist.
        """
        from queuey.app import opening
        from queuey.storage import bridge

        settings = self.settings
        remote = opening.is_cassandra(settings)
        self.require_existing()
        silence_logs()
        store = opening.open_store(settings, jobs=False)
        try:
            if remote:
                opening.retry_until_available(lambda: bridge.run(store.applications.application_names()), READY_TIMEOUT)
            yield store
        finally:
            store.close()


def load(options: dict[str, str | None], config: Path | None, *, check: bool = True) -> Loaded:
    """Reads the settings.

    Args:
        options: Values of the command line by parameter name.
        config: The settings file that the command line names.
        check: Whether the store also checks the settings, which reads the secrets that they name.

    Raises:
        SettingsError: The settings cannot be used.
    """
    from queuey import settings as table
    from queuey.app import opening

    require("server", "This command", SettingsError)
    names = {line.attribute: line.name for line in table.table()}
    loaded = table.load({names.get(key, key): text for key, text in options.items()}, os.environ, config=config)
    if check:
        opening.check_store_settings(loaded)
    return loaded


def silence_logs() -> None:
    logging.getLogger().addHandler(logging.NullHandler())


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting to a command. Values stay texts; :func:`load` converts them."""
    from queuey import settings as table

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    _, *own = (parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)
    options = [make_setting_option(line, None if line.name in _TOP_SETTINGS else line.group) for line in table.table()]

    return with_parameters(command, command, [make_config_option("QUEUEY_CONFIG"), *options, *own])


def on_store(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--json`` and the settings of a store as options; the command receives a :class:`ConfiguredStore` first.

    ``--help`` shows only the settings that are commonly given as options.
    """
    from queuey import settings as table

    lines = [line for line in table.table() if _is_of_store(line.name) and line.name not in _FILE_ONLY_SETTINGS]
    options = [make_setting_option(line, _PANEL, hidden=line.name not in _SHOWN_SETTINGS) for line in lines]

    def fill(values: dict[str, Any]) -> ConfiguredStore:
        texts = {option.name: values.pop(option.name) for option in options}
        return ConfiguredStore(load(texts, values.pop("config")))

    return fill_first_argument(command, fill, [JSON, *options, make_config_option("QUEUEY_CONFIG", _PANEL)])


def _is_of_store(name: str) -> bool:
    from queuey.settings import is_of_cassandra

    return name in _STORE_SETTINGS or is_of_cassandra(name)


def _portable_text(value: object) -> str:
    from queuey.settings import SecretName, as_text

    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, SecretName) and value.kind == "file":
        return f"file:{Path(value.name).absolute()}"
    return as_text(value)
