"""Extensions: parts of the service that are entry points with their own settings."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta

from queuey import settings
from queuey.app.serve import open_service
from queuey.model.errors import SettingsError
from queuey.settings import Include, ServiceExtension, Settings, extensions
from tests.replacing import replace_in


class Gallery(ServiceExtension, frozen=True, kw_only=True):
    """An extension of another package.

    Attributes:
        pictures: Number of pictures.
    """

    group = "Service"
    pictures: Annotated[int, Meta(ge=0)] = 3

    def include(self, settings: Settings, readers: Sequence[object]) -> Include | None:
        return None if self.pictures == 0 else lambda config: config.add_resource("gallery", "/gallery", {})


def forget() -> None:
    extensions.find_installed.cache_clear()
    settings.table.cache_clear()


@contextmanager
def installing(**found: str) -> Iterator[None]:
    """Replaces the installed extensions during the block; what is known of extensions is forgotten before and after."""
    entries = [EntryPoint(name, place, extensions.ENTRY_POINTS) for name, place in found.items()]
    with replace_in(extensions, entry_points, lambda group: entries):
        forget()
        try:
            yield
        finally:
            forget()


def test_an_extension_has_settings() -> None:
    """An extension's settings are in the table and come from the usual sources; the service finds them by type."""
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


@pytest.mark.parametrize(("pictures", "served"), [(0, False), (3, True)])
def test_an_extension_is_served(tmp_path: Path, pictures: int, served: bool) -> None:  # noqa: FBT001 - a column of the table
    """The application has the pages that its extensions add."""
    app = open_service(Settings(data=tmp_path, extensions=(Gallery(pictures=pictures),)))
    app.service.store.close()
    assert ("gallery" in app.endpoints) == served
    assert len(app.endpoints) > 20


class Harbour(ServiceExtension, frozen=True, kw_only=True):
    """An extension with a setting whose name is taken.

    Attributes:
        port: Number of ships.
    """

    group = "Service"
    port: int = 3


NO_EXTENSION = 7


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("tests.settings.raises:Extension", "cannot be imported .*division by zero"),
        (f"{__name__}:NO_EXTENSION", "not a subclass of ServiceExtension"),
        (f"{__name__}:Harbour", "2 parts of the service have a setting 'port'"),
    ],
)
def test_what_is_not_an_extension(place: str, text: str) -> None:
    """An invalid extension is named, in one sentence."""
    with installing(strange=place), pytest.raises(SettingsError, match=text):
        settings.table()


def test_a_service_without_extensions() -> None:
    """Without its extension an extension's setting is unknown."""
    with installing():
        assert not {"console", "facades"} & {line.name for line in settings.table()}
        assert settings.load({}, {}).settings.extensions == ()
        missing = r"which is not installed\. Install queuey-store again, or remove it\."
        for name, value in (("console", "on"), ("facades", "only=mq")):
            for options, environ in (({name: value}, {}), ({}, {f"QUEUEY_{name.upper()}": value})):
                message = rf"Unknown setting (QUEUEY_)?{name} in .*: it belongs to the extension '{name}', {missing}"
                with pytest.raises(SettingsError, match=f"(?i){message}"):
                    settings.load(options, environ)


@pytest.mark.parametrize("place", ["queuey.no_gallery:Gallery", f"{__name__}:NoGallery"])
def test_an_extension_that_cannot_be_imported(place: str) -> None:
    """An entry point whose module or class is missing is named, with the package to install."""
    name = re.escape(place.partition(":")[0])
    with installing(gallery=place), pytest.raises(SettingsError, match=rf"The extension 'gallery' .*{name}.* Install"):
        settings.table()
