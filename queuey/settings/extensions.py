"""Extensions: optional parts of the service, such as the console and the facades.

An extension is a subclass of :class:`ServiceExtension` that a distribution registers as an entry point of the group
``queuey.extensions``. Its module is imported wherever settings are read, so it should import its views only when they
are served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from queuey.model.errors import SettingsError
from queuey.model.messages import Acknowledgement

if TYPE_CHECKING:
    from queuey.settings.definitions import Settings

ENTRY_POINTS = "queuey.extensions"
OWN_EXTENSIONS = ("console", "facades")
Include = Callable[[Any], None]
"""Adds resources to a Pyramid configuration. See ``docs/extending.md``."""


class ApplicationCreator(Protocol):
    """The operations of a store that an extension may use before the service starts."""

    async def has_application(self, name: str, /) -> bool: ...

    async def create_application(self, name: str, /) -> None: ...


class ServiceExtension(msgspec.Struct, frozen=True, kw_only=True):
    """An optional part of the service. Its fields are settings of the service; the service calls its methods.

    Attributes:
        group: The group in which its settings are shown.
    """

    group: ClassVar[str]

    @property
    def sole_api_setting(self) -> str | None:
        """The setting with which this extension replaces the service's own API on all paths; None if it does not."""
        return None

    def longest_body(self, otherwise: int) -> int:
        """Returns the max bytes of a body that the service must accept; without this extension it is ``otherwise``."""
        return otherwise

    def find_problems(self, sole_api_setting: str | None) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Yields conflicts between valid values, each with the names of the settings.

        Args:
            sole_api_setting: The setting with which an extension replaces the service's own API; None if none does.
        """
        return ()

    def check(self, settings: Settings, readers: Sequence[object]) -> None:
        """Checks the settings at a start, without a store.

        Args:
            settings: The settings of the service.
            readers: The readers of users' credentials.

        Raises:
            SettingsError: A library is not installed, or a secret or file cannot be used.
        """

    def prepare(self, settings: Settings, applications: ApplicationCreator) -> None:
        """Creates what this extension needs in the store, or checks that it exists.

        Raises:
            Failed: Something that the extension needs does not exist.
        """

    def notes(self, settings: Settings, promise: Acknowledgement | None) -> Sequence[str]:
        """Returns the lines that a start prints about this extension.

        Args:
            settings: The settings of the service.
            promise: What an acknowledgement of the store means; None if the store cannot be reached.

        Raises:
            Failed, SettingsError: The extension cannot be served.
        """
        return ()

    def resolve(self, settings: Settings, address: str, *, terminal: bool) -> ServiceExtension:
        """Returns the extension as this start serves it, depending on address and terminal.

        Args:
            settings: The settings of the service.
            address: The address on which the service listens, without the port.
            terminal: Whether the service starts at a terminal.
        """
        return self

    def welcome(self, url: str, link: Callable[[], str] | None) -> Sequence[str]:
        """Returns lines that only a terminal shows at a start. They may contain secrets, so they are not logged.

        Args:
            url: The URL of the service.
            link: Creates a token for one login with the key of the profile; None if there is no profile.
        """
        return ()

    def beside(self, settings: Settings, address: tuple[str, int]) -> AbstractContextManager[Callable[[], object]]:
        """Runs this extension's part of the parent process, beside the workers.

        Args:
            settings: The settings of the service.
            address: The address and port on which the service listens.

        Returns:
            A context manager, open while the service runs. It yields a function to call once the service answers.

        Raises:
            Failed: The part cannot run.
        """
        return nullcontext(lambda: None)

    def include(self, settings: Settings, readers: Sequence[object]) -> Include | None:
        """Returns a function that adds this extension to the application of a worker, or None if it is not served.

        Args:
            settings: The settings of the service.
            readers: The readers of users' credentials.

        Raises:
            SettingsError: As for :meth:`check`.
        """
        raise NotImplementedError


@cache
def find_installed() -> tuple[type[ServiceExtension], ...]:
    """Returns the extensions of the installed distributions, sorted by the names of their entry points.

    Raises:
        SettingsError: An extension cannot be imported, or is not a subclass of :class:`ServiceExtension`.
    """
    return tuple(_load_extensions())


def _load_extensions() -> Iterator[type[ServiceExtension]]:
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        owner = "a distribution" if entry.dist is None else entry.dist.name
        try:
            extension = entry.load()
        except Exception as error:
            text = f"The extension {entry.name!r} cannot be imported ({error}). Install {owner} again."
            raise SettingsError(text) from error
        if not (isinstance(extension, type) and issubclass(extension, ServiceExtension)):
            raise SettingsError(
                f"The extension {entry.name!r} of {owner} is {entry.value}, not a subclass of ServiceExtension."
            )
        yield extension
