"""Every argument of every command that calls the service is refused, or reaches exactly what it names.

The arguments are those that the commands declare. What a server reads is compared as for the client itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from queuey.cli import COMMANDS, load, main
from queuey.client._sync.sender import Sender
from tests.client.http.test_arguments import ID, MARKERS, MOVE, read_request, replace_marker
from tests.client.scripted import Script
from tests.commands import make_runner
from tests.replacing import replace

PARTS_OF_PATHS = ("", ".", "..", "/", "?", "%2F", "../payroll", "_me", "ü\n", "\udcff", f"{ID}/..")
TEXTS = ("", "..", "ü\n", "\udcff")
"""Values for options, few of which become parts of a path."""
USUAL = {"id": ID, "ids": ID, "move": MOVE, "offset": f"1={ID}", "cron": "* * * * *"}
"""Arguments that are not free texts."""
LOCAL = {"profile", "ca", "token_file", "receipts", "source", "file", "key", "url", "then"}
"""Options that name files, or that :mod:`tests.client.http.test_arguments` tests."""
OWN_FORMS = {"body", "header", "command", "json_body", "reason"}
"""Arguments with a format of their own, which is neither a name nor a time."""


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - of typer
    if hasattr(command, "commands"):
        for name, subcommand in command.commands.items():
            yield from _commands(command.load(name) if hasattr(command, "load") else subcommand, (*path, name))
    elif any(each.name == "url" for each in command.params) and path != ("profile",):
        yield path, command


CASES = {
    f"{' '.join(path)} {each.opts[0]}": (path, command, each)
    for name in COMMANDS
    for path, command in _commands(load(name), (name,))
    for each in command.params
    if each.name not in LOCAL | OWN_FORMS and not getattr(each, "is_flag", False)
}


def _command_line(path: tuple[str, ...], command: Any, tried: Any, text: str) -> list[str]:  # noqa: ANN401 - of typer
    """Returns a command line: a text for the tried parameter, usual values for required ones, ``--yes`` if known."""
    options, arguments = [], []
    for parameter in command.params:
        value = text if parameter is tried else USUAL.get(parameter.name, "usual")
        if not parameter.opts[0].startswith("-"):
            if parameter is tried or parameter.required or parameter.name in USUAL:
                arguments.append(value)
        elif parameter is tried or parameter.required:
            options += [parameter.opts[0], value]
        elif parameter.name == "yes":
            options.append("--yes")
    return [*path, "--url", "http://127.0.0.1:9", "--key", "key", *options, "--", *arguments]


@pytest.mark.needs_histories
@pytest.mark.parametrize("name", CASES)
def test_every_argument(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ends with 2 and an error, or sends it as it is, and where it belongs."""
    script = Script(httpx2.Response(400, json={"status": "error", "error_msg": {}}))
    begin = Sender.__init__

    def scripted(sender: Sender, *given: Any, transport: Any = None, **options: Any) -> None:  # noqa: ANN401
        begin(sender, *given, transport=httpx2.MockTransport(script), **options)

    run = make_runner("queuey", main, monkeypatch)

    def sent(text: str) -> dict[str, Any] | None:
        script.requests.clear()
        with replace(Sender.__init__, scripted):
            ended = run(*_command_line(*CASES[name], text))
        assert ended.code in ({0, 1} if script.requests else {2}), ascii((text, ended))
        assert "Traceback" not in ended.err
        return read_request(script.requests[0]) if script.requests else None

    usual = {marker: actual for marker in MARKERS if (actual := sent(marker)) and marker in repr(actual)}
    for text in TEXTS if name.rpartition(" ")[2].startswith("--") else PARTS_OF_PATHS:
        actual = sent(text)
        expected = [replace_marker(each, marker, text) for marker, each in usual.items()]
        from_the_beginning = (name, text) == ("queue list --start", "")
        assert actual is None or actual in expected or not usual or from_the_beginning, ascii((text, actual, expected))
