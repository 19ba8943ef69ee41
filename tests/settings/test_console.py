"""The setting ``console``: its spellings, and where ``auto`` serves the console."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuey import settings
from queuey.console import ConsoleExtension, LocalConsoleExtension


@pytest.mark.parametrize(
    ("text", "value"),
    [(None, "auto"), ("auto", "auto")]
    + [(text, "on") for text in ("on", "true", "True", "yes", "1", "ON")]
    + [(text, "off") for text in ("off", "false", "no", "0")],
)
def test_spellings_of_the_console(text: str | None, value: str) -> None:
    """The setting console has ``auto`` beside each spelling of a switch."""
    assert settings.load({"console": text}, {}).settings.of(ConsoleExtension).console == value
    variables = {} if text is None else {"QUEUEY_CONSOLE": text}
    assert settings.load({}, variables).settings.of(ConsoleExtension).console == value


@pytest.mark.parametrize(("text", "value"), [("true", "on"), ("false", "off"), ('"on"', "on"), ('"auto"', "auto")])
def test_the_console_in_a_file(tmp_path: Path, text: str, value: str) -> None:
    """A settings file may use booleans, as before."""
    path = tmp_path / "queuey.toml"
    path.write_text(f"console = {text}\n")
    assert settings.load({}, {}, config=path).settings.of(ConsoleExtension).console == value


@pytest.mark.parametrize(
    ("options", "address", "terminal", "served"),
    [
        ({}, "127.0.0.1", True, True),
        ({"host": "localhost"}, "127.0.0.1", True, True),
        ({"host": "::1"}, "::1", True, True),
        ({}, "127.0.0.1", False, False),
        ({"host": "localhost"}, "10.0.0.1", True, False),
        ({"host": "127.0.0.2"}, "127.0.0.2", True, False),
        ({"host": "0.0.0.0"}, "0.0.0.0", True, False),
        ({"host": "::"}, "::", True, False),
        ({"host": "queues.example.org"}, "127.0.0.1", True, False),
        ({"facades": "only=mq"}, "127.0.0.1", True, False),
        ({"console": "off"}, "127.0.0.1", True, False),
        ({"console": "on"}, "127.0.0.1", True, False),
    ],
)
def test_where_auto_serves_the_console(options: dict[str, str], address: str, terminal: bool, served: bool) -> None:  # noqa: FBT001
    """With ``auto`` the console is served on loopback alone, at a terminal, and if no facade has all paths."""
    loaded = settings.load(options, {}).settings
    extension = loaded.of(ConsoleExtension).resolve(loaded, address, terminal=terminal)
    assert isinstance(extension, LocalConsoleExtension) is served


def test_what_a_terminal_shows() -> None:
    """A terminal shows a link with a new token, or the address alone without a profile."""
    extension = LocalConsoleExtension()
    first, _ = extension.welcome("http://localhost:5", lambda: "token")
    assert first == "Console: http://localhost:5/console/login/once/token"
    assert extension.welcome("http://localhost:5", None) == ("Console: http://localhost:5/console",)
    assert ConsoleExtension(console="on").welcome("http://localhost:5", lambda: "token") == ()
