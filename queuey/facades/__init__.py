"""Facades: protocols of other systems, spoken so that their clients work unchanged.

A facade translates. It has no queue logic of its own: it calls the use cases that version 1 of the API calls, with the
same authorization, and its queues are ordinary queues of an application. :mod:`.facade` has what all of them share.
"""

from __future__ import annotations

from typing import Any

from queuey.errors import SettingsError
from queuey.extras import install_command
from queuey.facades.emodb.views import EmodbFacade
from queuey.facades.facade import Facade
from queuey.facades.mq import MqFacade
from queuey.facades.rqms import RqmsFacade
from queuey.web.parts import App

KINDS: dict[str, type[Facade]] = {"emodb": EmodbFacade, "mq": MqFacade, "rqms": RqmsFacade}
"""Those that need nothing but the service."""


def kind_of(name: str) -> type[Facade]:
    """Returns what serves a protocol.

    Raises:
        SettingsError: A library is not installed.
    """
    if name in KINDS:
        return KINDS[name]
    try:
        from queuey.facades.sqs.views import SqsFacade  # noqa: PLC0415 - an extra
    except ImportError as error:
        text = f"The facade sqs needs a library that is not installed ({error}). Install it: {install_command('sqs')}"
        raise SettingsError(text) from error
    return SqsFacade


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    """Adds the facades that are to be served."""
    app: App = config.registry.app
    for name, prefix in app.served.prefixes().items():
        facade = kind_of(name)(app, prefix)
        facade.include(config)
        app.facades.append(facade)
