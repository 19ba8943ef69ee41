"""``queuey profile``: the file with the service, application and key that commands use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from queuey.client.credentials.profile import Profile, default_path, read_profile, write_profile
from queuey.client.errors import ProfileNotFound
from queuey.terminal import output
from queuey.terminal.commands import with_json
from queuey.terminal.output import Yes

MAX_KEY = 4096
"""Max characters of a key."""


@with_json
def profile(
    url: Annotated[
        str | None, typer.Option(help="New address of the service, or several with commas; needs --key.")
    ] = None,
    app: Annotated[str | None, typer.Option(help="New application; needs --key.")] = None,
    key: Annotated[bool, typer.Option("--key", help="New key, from a prompt or standard input.")] = False,
    file: Annotated[
        Path | None, typer.Option("--profile", help="The file.", show_default="$QUEUEY_PROFILE or the user's")
    ] = None,
    yes: Yes = False,
) -> None:
    """Show or write the profile: the service, application and key that other commands use.

    A new address or application needs --key. Reads the key from a hidden prompt or from standard input, and never
    prints it.
    """
    path = file or default_path()
    if (url or app) and not key:
        raise typer.BadParameter("a new address or application needs its key: add --key", param_hint="--url, --app")
    try:
        chosen = read_profile(path)
    except ProfileNotFound as error:
        if not (url and app and key):
            make = "queuey profile --url http://127.0.0.1:5000 --app queuey --key"
            raise output.Failed(f"there is no profile {path}. Write one: {make}") from error
    else:
        url, app = url or chosen.url, app or chosen.application
        if key:
            output.confirm(f"Replace the key in {path}?", yes=yes)
    if key:
        chosen = Profile(url=url, application=app, key=read_key())
        write_profile(chosen, path)
    about = {"file": str(path), **chosen.written()}
    if chosen.key:
        about["key"] = "not shown"
    output.show(about, [output.TitledValues(list(about.items()))])


def read_key() -> str:
    if sys.stdin.isatty():
        text = str(typer.prompt("Key (not shown)", hide_input=True, err=True))
    else:
        text = sys.stdin.readline(MAX_KEY + 2)  # so that a longer key is refused, not cut
    secret = text.strip()
    if not secret:
        what = "standard input is empty"
    elif len(secret) > MAX_KEY:
        what = f"it is longer than {MAX_KEY} characters"
    elif secret.isascii() and secret.isprintable() and not set(secret) & set(" ;,"):
        return secret
    else:
        what = "it has a character that keys do not have"
    raise output.Failed(f"no key was read: {what}. A key is one line of ASCII without spaces, commas or semicolons.")
