"""The web package: HTTP on one side, the use cases on the other.

:func:`make_app` assembles it. It is imported when it is asked for, so that the parent process of the service, which
answers no request, does without the web framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuey.web.app import make_app

__all__ = ["make_app"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    if name == "make_app":
        from queuey.web.app import make_app  # noqa: PLC0415 - see above

        return make_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
