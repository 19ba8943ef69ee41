"""Rooms: parts of the service that the core does without, such as the console and the facades.

A room is a subclass of :class:`Room`, which a distribution registers as an entry point of the group ``queuey.rooms``.
Its module is imported wherever settings are read, so it imports what it serves only when that is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from queuey.errors import SettingsError
from queuey.messages import Acknowledgement

if TYPE_CHECKING:
    from queuey.settings.definitions import Settings

ENTRY_POINTS = "queuey.rooms"
OWN = ("console", "facades")
"""The rooms of this distribution. Each has a setting of its name."""
Include = Callable[[Any], None]
"""Adds to a configuration of Pyramid's; see ``docs/extending.md``."""


class Applications(Protocol):
    """What a room may ask a store for before the service starts."""

    async def has_application(self, name: str, /) -> bool: ...

    async def create_application(self, name: str, /) -> None: ...


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the service: its fields are settings of the service, and its methods what the service does with it.

    Attributes:
        group: The group in which its settings are shown.
    """

    group: ClassVar[str]

    @property
    def alone(self) -> str | None:
        """The setting by which this room serves all paths instead of the service's own API; None if it does not."""
        return None

    def longest_body(self, otherwise: int) -> int:
        """Returns the longest body in bytes that the service has to accept; ``otherwise``: without this room."""
        return otherwise

    def mistakes(self, alone: str | None) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Yields what is wrong with values that are valid by themselves, and the settings that it is about.

        Args:
            alone: The setting by which a room serves all paths; None if none does.
        """
        return ()

    def check(self, settings: Settings, readers: Sequence[object]) -> None:
        """Checks what a start can check without a store.

        Args:
            settings: The settings in force.
            readers: The readers of users' credentials.

        Raises:
            SettingsError: A library is not installed, or a secret or file cannot be used.
        """

    def prepare(self, settings: Settings, applications: Applications) -> None:
        """Makes, or requires, what this room needs in the store.

        Raises:
            Failed: It is not there.
        """

    def notes(self, settings: Settings, promise: Acknowledgement | None) -> Sequence[str]:
        """Returns what a start says about this room.

        Args:
            settings: The settings in force.
            promise: What the store promises; None if it cannot be reached.

        Raises:
            Failed, SettingsError: The room cannot be served.
        """
        return ()

    def resolved(self, settings: Settings, address: str, *, terminal: bool) -> Room:
        """Returns the room as a start serves it, by what only the process that starts knows.

        Args:
            settings: The settings in force.
            address: Where the service listens, without the port.
            terminal: Whether the start has a terminal.
        """
        return self

    def welcome(self, url: str, link: Callable[[], str] | None) -> Sequence[str]:
        """Returns lines for the terminal of a start alone. They may hold secrets, so no log has them.

        Args:
            url: Where the service answers.
            link: Makes a token that logs in once, with the key of the profile; None if there is no profile.
        """
        return ()

    def beside(self, settings: Settings, address: tuple[str, int]) -> AbstractContextManager[Callable[[], object]]:
        """Runs what the parent process has beside its workers.

        Args:
            settings: The settings in force.
            address: Where the service listens.

        Returns:
            A context manager, for as long as the service runs. It gives what is to be called once the service answers.

        Raises:
            Failed: It cannot run.
        """
        return nullcontext(lambda: None)

    def include(self, settings: Settings, readers: Sequence[object]) -> Include | None:
        """Returns what adds this room to the application, in a worker, or None if it is not served.

        Args:
            settings: The settings in force.
            readers: The readers of users' credentials.

        Raises:
            SettingsError: As :meth:`check`.
        """
        raise NotImplementedError


@cache
def installed() -> tuple[type[Room], ...]:
    """Returns the rooms of the distributions that are installed.

    Raises:
        SettingsError: One cannot be imported, or is something else.
    """
    return tuple(_load())


def _load() -> Iterator[type[Room]]:
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        owner = "a distribution" if entry.dist is None else entry.dist.name
        try:
            room = entry.load()
        except Exception as error:
            text = f"The part {entry.name!r} of the service cannot be imported ({error}). Install {owner} again."
            raise SettingsError(text) from error
        if not (isinstance(room, type) and issubclass(room, Room)):
            raise SettingsError(
                f"The part {entry.name!r} of {owner} is {entry.value}, which is not a subclass of Room."
            )
        yield room
