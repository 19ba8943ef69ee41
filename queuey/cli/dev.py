"""Trying Queuey on one machine: ``queuey demo``, and ``queuey dev``, an issuer of tokens until there is a real one.

``queuey demo`` runs the program of ``deploy/demo``, which wheels contain as ``queuey/demo``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from queuey.model.errors import SettingsError
from queuey.model.extras import require
from queuey.settings import DEV_ISSUER
from queuey.terminal import output, times
from queuey.terminal.commands import make_group, with_json

app = make_group()
KEY_FILE, KEY_SET_FILE, CONFIG_FILE = "dev-key.pem", "dev-keys.json", "queuey-dev.toml"
AUDIENCE = "queuey-dev"

Directory = Annotated[Path, typer.Option(help="Directory of the issuer's keys and the settings.", file_okay=False)]
PACKAGE = Path(__file__).parents[1]


@app.command("setup")
def setup(
    directory: Directory = Path(),
    application: Annotated[str, typer.Option("--app", help="Application of the users.")] = "queuey",
    origin: Annotated[
        list[str] | None, typer.Option(help="Origin of a page, such as http://localhost:8000; several may be given.")
    ] = None,
) -> None:
    """Create an issuer, and settings with which `queuey serve` trusts it. Each user gets an inbox.

    Fails if the directory has such settings already.
    """
    path = directory / CONFIG_FILE
    if path.exists():
        raise SettingsError(f"{path} already exists. Remove it to create another one.")
    directory.mkdir(parents=True, exist_ok=True)
    _make_keys(directory)
    path.write_text(_settings_text(application, origin or []), "utf-8")
    output.print_line(f"Created {path}. Serve with it: queuey serve --config {path}")


@app.command("token")
@with_json
def token(
    user: Annotated[str, typer.Option(help="Name of the user at the issuer.")],
    directory: Directory = Path(),
    seconds: Annotated[
        int, times.duration("Lifetime of the token.", minimum=1, maximum=86_400, whole=True, show_default="1h")
    ] = 3600,
) -> None:
    """Print a token of a user. With --json, also print its expiry, and the names of the user and the inbox."""
    from queuey.model.user_queues import queue_name, user_name

    signed, expires = sign_token(directory, user, seconds)
    name = user_name(DEV_ISSUER, user)
    document = {"token": signed, "expires": expires, "user": name, "inbox": queue_name("inbox-{user}", name)}
    output.show(document, signed)


def sign_token(directory: Path, user: str, seconds: int) -> tuple[str, int]:
    """Returns a token and its expiry, in seconds since 1970.

    Raises:
        SettingsError: The directory has no issuer, or a library is missing.
    """
    jwt = _import_jwt()
    try:
        key = (directory / KEY_FILE).read_text("ascii")
    except OSError as error:
        raise SettingsError(f"There is no issuer in {directory.absolute()}. Create one: queuey dev setup") from error
    expires = int(time.time()) + seconds
    claims = {"iss": DEV_ISSUER, "aud": AUDIENCE, "sub": user, "exp": expires}
    return jwt.encode(claims, key, "ES256", headers={"kid": "dev"}), expires


def _make_keys(directory: Path) -> None:
    jwt = _import_jwt()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = directory / KEY_FILE
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    (directory / KEY_SET_FILE).write_text(
        json.dumps({"keys": [{**public, "kid": "dev", "alg": "ES256", "use": "sig"}]})
    )


def _settings_text(application: str, origins: list[str]) -> str:
    name = json.dumps(application)
    lines = [
        f"[users.{name}]",
        f"issuer = {json.dumps(DEV_ISSUER)}",
        f"audience = {json.dumps(AUDIENCE)}",
        f"keys = {json.dumps(KEY_SET_FILE)}",
        'queues = { "inbox-{user}" = ["read", "delete"] }',
    ]
    if origins:
        lines.append(f"origins = {json.dumps(origins)}")
    return "\n".join([*lines, ""])


def _import_jwt() -> Any:  # noqa: ANN401 - an extra
    require("users", "This", SettingsError)
    import jwt
    import jwt.algorithms

    return jwt


def demo() -> None:
    """Run the service, workers and jobs on a real feed, kill them, and show that nothing is lost.

    It uses its own directory and port, does not touch other services or their data, and ends within a minute.
    """
    require("server", "The demo", SettingsError)
    installed = PACKAGE / "demo"
    directory = installed if installed.is_dir() else PACKAGE.parent / "deploy" / "demo"
    os.execv(sys.executable, [sys.executable, str(directory / "run.py")])  # noqa: S606 - without a shell
