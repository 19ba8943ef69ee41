"""Applications that serve facades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuey.facades.protocols import facades
from queuey.facades.settings import Facades
from queuey.settings import Include
from queuey.storage import Store
from queuey.web import make_app
from queuey.web.parts import App


def facade_app(
    store: Store,
    served: Facades,
    *,
    secret: bytes = b"",
    includes: Sequence[Include] = (),
    **more: Any,  # noqa: ANN401 - what make_app takes
) -> App:
    """Makes an application as a service with these facades does.

    Args:
        store: Its store.
        served: Which facades there are.
        secret: From which the secrets of access keys follow.
        includes: Of others.
        more: For :func:`~queuey.web.make_app`.
    """
    return make_app(store, own_api=served.only is None, includes=[facades(served, secret), *includes], **more)
