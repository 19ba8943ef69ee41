"""Rooms: parts of the service that are entry points, with settings of their own."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import pytest
from msgspec import Meta

from queuey import settings
from queuey.errors import SettingsError
from queuey.settings import Include, Room, Settings, rooms
from tests.replacing import replace_in

Installing = Callable[..., AbstractContextManager[None]]


class Gallery(Room, frozen=True, kw_only=True):
    """A room of somebody else's."""

    group = "Service"
    pictures: Annotated[int, Meta(description="Number of pictures.", ge=0)] = 3

    def include(self, settings: Settings, readers: Sequence[object]) -> Include | None:
        """Adds nothing."""
        return None


@contextmanager
def installing(**found: str) -> Iterator[None]:
    """Has these rooms installed and no others."""
    entries = [EntryPoint(name, place, rooms.ENTRY_POINTS) for name, place in found.items()]
    with replace_in(rooms, entry_points, lambda group: entries):
        rooms.installed.cache_clear()
        try:
            yield
        finally:
            rooms.installed.cache_clear()


def test_a_room_has_settings() -> None:
    """They stand in the table and come from where others do; a part of the service asks for them by their type."""
    with installing(gallery=f"{__name__}:Gallery"):
        lines = [line for line in settings.table() if line.name == "pictures"]
        assert [(line.group, line.option, line.default) for line in lines] == [("Service", "--pictures", "`3`")]
        loaded = settings.load({}, {"QUEUEY_PICTURES": "5"})
        assert (loaded.settings.of(Gallery).pictures, loaded.sources["pictures"]) == (5, "QUEUEY_PICTURES")
        assert settings.value_of(loaded.settings, lines[0]) == 5
        assert pickle.loads(pickle.dumps(loaded.settings)) == loaded.settings
        with pytest.raises(SettingsError, match="pictures"):
            settings.load({"pictures": "-1"}, {})
    assert Settings().of(Gallery) == Gallery()


def test_a_service_without_rooms() -> None:
    """What only rooms know is no setting."""
    with installing():
        assert not {"console", "facades"} & {line.name for line in settings.table()}
        assert settings.load({}, {}).settings.rooms == ()
        for name, value in (("console", "on"), ("facades", "only=mq")):
            with pytest.raises(SettingsError, match=f"Unknown setting {name}"):
                settings.load({name: value}, {})


def test_a_room_that_cannot_be_imported() -> None:
    """An entry point without its module is named, with what to install."""
    with (
        installing(gallery="queuey.no_gallery:Gallery"),
        pytest.raises(SettingsError, match=r"The part 'gallery' .*queuey\.no_gallery.* Install"),
    ):
        settings.table()
