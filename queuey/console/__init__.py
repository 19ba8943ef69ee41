"""The console: pages on which operators see queues. One include, at ``/console``; the setting ``console`` turns it on.

It calls the use cases that version 1 of the API calls, with the rights of the key or user that has logged in. What
it changes is an act of :mod:`.acts`, which stands in the audit log. ``docs/console.md`` is for its users,
``docs/decisions/0040-console-sessions.md``, ``0041-console-parts.md`` and ``0042-console-login-by-provider.md`` say why
it is as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from queuey.settings import Include, Room, Settings


class ConsoleRoom(Room, frozen=True, kw_only=True):
    group = "Service"

    console: Annotated[
        bool,
        Meta(description="Serve the console at `/console`: pages for operators, with a login."),
    ] = False

    def mistakes(self, alone: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
        if self.console and alone is not None:
            text = f"Setting console needs the service's own API, but {alone} serves another one."
            yield text, ("console", alone.partition(".")[0])

    def check(self, settings: Settings, readers: Sequence[object]) -> None:
        from queuey.web.credentials.users import providers_of  # noqa: PLC0415 - only where a service starts

        if self.console:
            providers_of(settings.users, readers, os.environ, ask=False)

    def include(self, settings: Settings, readers: Sequence[object]) -> Include | None:
        if not self.console:
            return None
        from queuey.console.resources import console  # noqa: PLC0415 - only where it is served
        from queuey.storage.opening import examiner  # noqa: PLC0415 - as above
        from queuey.web.credentials.users import providers_of  # noqa: PLC0415 - as above

        providers = providers_of(settings.users, readers, os.environ)
        return console(examiner(settings, whole=False), samples=True, users=settings.users, providers=providers)
