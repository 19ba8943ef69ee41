"""The console: pages for operators at ``/console``, one include. The setting ``console`` turns it on.

It calls the same use cases as version 1 of the API, with the rights of the key or user that has logged in. Each change
is an act of :mod:`.acts`, and is recorded in the audit log. ``docs/console.md`` is for users of the console;
``docs/decisions/0040-console-sessions.md``, ``0041-console-parts.md`` and ``0042-console-login-by-provider.md`` explain
its design.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from queuey.settings import Include, ServiceExtension, Settings, is_loopback

LINK_HOSTS = ("127.0.0.1", "::1", "localhost")
"""Values of the setting ``host`` with which ``auto`` may serve :class:`LocalConsoleExtension`."""


class ConsoleExtension(ServiceExtension, frozen=True, kw_only=True):
    """The console, which is served if the setting ``console`` is ``on``, and needs the service's own API.

    At a terminal, ``auto`` becomes :class:`LocalConsoleExtension` if the service has its own API and listens on
    loopback alone; otherwise ``auto`` is not served. The check before the start makes the login providers of ``on``
    without asking them.

    Attributes:
        console: Serve the console at `/console`: pages for operators, with a login. `auto`: if the service listens on
            `127.0.0.1` or `::1` alone and starts at a terminal; for browsers on this machine only.
    """

    group = "Service"

    console: Literal["auto", "on", "off"] = "auto"

    def find_problems(self, sole_api_setting: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
        if self.console == "on" and sole_api_setting is not None:
            text = f"Setting console needs the service's own API, but {sole_api_setting} replaces it."
            yield text, ("console", sole_api_setting.partition(".")[0])

    def resolve(self, settings: Settings, address: str, *, terminal: bool) -> ConsoleExtension:
        is_local = settings.host in LINK_HOSTS and is_loopback(address)
        if self.console == "auto" and settings.sole_api_setting is None and is_local and terminal:
            return LocalConsoleExtension()
        return self

    def check(self, settings: Settings, readers: Sequence[object]) -> None:
        from queuey.access.credentials.users import make_providers  # noqa: PLC0415 - only where a service starts

        if self.console == "on":
            make_providers(settings.users, readers, os.environ, prefetch=False)

    def include(self, settings: Settings, readers: Sequence[object]) -> Include | None:
        if self.console != "on":
            return None
        from queuey.access.credentials.users import make_providers  # noqa: PLC0415 - as above
        from queuey.app.opening import make_examiner  # noqa: PLC0415 - as above
        from queuey.console.resources import make_console  # noqa: PLC0415 - only where it is served

        providers = make_providers(settings.users, readers, os.environ)
        return make_console(
            make_examiner(settings, whole=False), samples=True, users=settings.users, providers=providers
        )


class LocalConsoleExtension(ConsoleExtension, frozen=True, kw_only=True):
    """The console that ``auto`` serves: for browsers on this machine, with a link that logs in once.

    It has no logins by providers, because their redirect addresses are on other hosts. Without a
    link, the service prints only the console's address.
    """

    def welcome(self, url: str, link: Callable[[], str] | None) -> Sequence[str]:
        if link is None:
            return (f"Console: {url}/console",)
        return (
            f"Console: {url}/console/login/once/{link()}",
            "The link logs in once, within five minutes. Later: start again, or log in with the key in the profile.",
        )

    def include(self, settings: Settings, readers: Sequence[object]) -> Include:
        from queuey.app.opening import make_examiner  # noqa: PLC0415 - as above
        from queuey.console.resources import make_console  # noqa: PLC0415 - only where it is served

        return make_console(make_examiner(settings, whole=False), samples=True, users=settings.users, is_local=True)
