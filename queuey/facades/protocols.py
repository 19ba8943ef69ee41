"""The table of protocols, and the include that serves them."""

from __future__ import annotations

from typing import Any

from queuey.app.service import App
from queuey.facades.emodb.views import EmodbFacade
from queuey.facades.facade import AccessKeyCredentials, Facade, FacadeCredentials, Setup
from queuey.facades.mq import MqFacade
from queuey.facades.rqms import RqmsFacade
from queuey.facades.settings import Facades
from queuey.model.errors import SettingsError
from queuey.model.extras import require
from queuey.settings import Include

BUILT_IN_FACADES: dict[str, type[Facade]] = {"emodb": EmodbFacade, "mq": MqFacade, "rqms": RqmsFacade}


def load_facade_class(name: str) -> type[Facade]:
    """Returns the class of a facade.

    Raises:
        SettingsError: A library for it is not installed.
    """
    if name in BUILT_IN_FACADES:
        return BUILT_IN_FACADES[name]
    require("sqs", "The facade sqs", SettingsError)
    from queuey.facades.sqs.views import SqsFacade  # noqa: PLC0415 - an extra

    return SqsFacade


def facades(settings: Facades, secret: bytes = b"") -> Include:
    """Returns the include of the facades that the settings enable, with the credentials that they issue.

    The include raises SettingsError if a library for a facade is not installed.

    Args:
        settings: Settings of the facades.
        secret: Secret from which those of access keys are derived; see :mod:`.sqs.access_keys`.
    """

    def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
        app: App = config.registry.app
        setup = Setup(app, settings, secret, FacadeCredentials(), AccessKeyCredentials(app.service.store.applications))
        app.authenticate.add(setup.callers)
        app.authenticate.add(setup.signed)
        for name, prefix in settings.prefixes().items():
            facade = load_facade_class(name)(setup, prefix)
            facade.include(config)
            app.facades.append(facade)

    return includeme
