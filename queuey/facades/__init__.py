"""Facades serve the protocols of other systems, so that their clients work unchanged.

A facade only translates. It calls the same use cases as version 1 of the API, with the same authorization, and its
queues are ordinary queues of an application. :mod:`.facade` has the shared parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from queuey.facades.settings import Facades
from queuey.model.messages import Acknowledgement
from queuey.settings import Include, ServiceExtension, Settings
from queuey.settings.extensions import ApplicationCreator


class FacadesExtension(ServiceExtension, frozen=True, kw_only=True):
    """The facades of the setting ``facades``. With ``facades.only``, that facade replaces the service's own API.

    Attributes:
        facades (none): The protocols of other systems that the service speaks.
    """

    group = "Clients of other systems"

    facades: Facades = Facades()

    @property
    def sole_api_setting(self) -> str | None:
        return None if self.facades.only is None else "facades.only"

    def longest_body(self, otherwise: int) -> int:
        return self.facades.longest_body(otherwise)

    def find_problems(self, sole_api_setting: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
        for mistake in self.facades.find_problems():
            yield f"Setting facades has {mistake}.", ("facades",)

    def prepare(self, settings: Settings, applications: ApplicationCreator) -> None:
        from queuey.facades import start  # noqa: PLC0415 - only where a service starts

        start.prepare_application(self.facades, settings.store, applications)

    def notes(self, settings: Settings, promise: Acknowledgement | None) -> list[str]:
        from queuey.facades import start  # noqa: PLC0415 - as above

        return start.make_notes(self.facades, settings, promise)

    def beside(self, settings: Settings, address: tuple[str, int]) -> AbstractContextManager[Callable[[], object]]:
        from queuey.facades import start  # noqa: PLC0415 - as above

        return start.serve_emodb_discovery(self.facades, settings, address)

    def include(self, settings: Settings, readers: Sequence[object]) -> Include:
        from queuey.facades.protocols import facades  # noqa: PLC0415 - not in the parent process
        from queuey.facades.sqs.access_keys import deployment_secret  # noqa: PLC0415 - as above

        secret = deployment_secret(self.facades.sqs, settings, os.environ) if "sqs" in self.facades.prefixes() else b""
        return facades(self.facades, secret)
