"""The web package: HTTP in front of the use cases.

:func:`make_app` assembles it. It is imported on first use, so that the parent process of the service, which answers no
request, does not load the web framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuey.web.app import make_app

__all__ = ["make_app"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any attribute of the module
    if name == "make_app":
        from queuey.web.app import make_app  # noqa: PLC0415 - see above

        return make_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
