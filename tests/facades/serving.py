"""Applications that serve facades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuey.app.application import make_app
from queuey.app.service import App
from queuey.facades.protocols import facades
from queuey.facades.settings import Facades
from queuey.settings import Include
from queuey.storage import Store


def facade_app(
    store: Store,
    served: Facades,
    *,
    secret: bytes = b"",
    includes: Sequence[Include] = (),
    **more: Any,  # noqa: ANN401 - what make_app takes
) -> App:
    """Returns an application made like that of a service with these facades.

    Args:
        store: Its store.
        served: Names of the facades.
        secret: Secret from which those of access keys are derived.
        includes: Includes of others.
        more: Further arguments of :func:`~queuey.app.application.make_app`.
    """
    return make_app(store, own_api=served.only is None, includes=[facades(served, secret), *includes], **more)
