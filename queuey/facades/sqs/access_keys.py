"""Access keys: an id that every request names, and a secret that signs it.

The store keeps a digest of the id, as it does of an application's key, with what the key may do. It keeps no secret:
that follows from the id and one secret of the deployment. ``docs/decisions/0037-access-keys.md`` says why.
"""

from __future__ import annotations

import hmac
import os
import secrets
from base64 import b32encode, b64encode
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from queuey.errors import SettingsError
from queuey.facades.settings import SqsFacade
from queuey.settings import SecretName, Settings

FILE = "sqs.secret"
"""In the data directory: the secret of a deployment that has SQLite and names no other one."""
MIN_SECRET = 32
"""Min characters of the secret."""
_OF_IDS, _OF_SECRETS = b"sqs access key\0", b"sqs secret\0"
"""Prefix of an id before hashing, so that no other kind of key has the same hash."""


def new_access_key() -> str:
    """Makes an id: 90 random bits."""
    return "QK" + b32encode(secrets.token_bytes(12)).decode()[:18]


def digest_of(access_key: str) -> bytes:
    """Returns what the store keeps of an id. No key of version 1 of the API has it: those have no zero byte."""
    return sha256(_OF_IDS + access_key.encode()).digest()


@lru_cache(1024)
def secret_of(deployment: bytes, access_key: str) -> str:
    """Returns the secret of an access key: 40 characters, as those of Amazon have."""
    return b64encode(hmac.digest(deployment, _OF_SECRETS + access_key.encode(), "sha256")[:30]).decode()


def deployment_secret(sqs: SqsFacade, settings: Settings, environ: Mapping[str, str]) -> bytes:
    """Returns the secret from which those of access keys follow.

    Args:
        sqs: May name it.
        settings: The settings in force.
        environ: The environment.

    Raises:
        SettingsError: It is not there, or too short.
    """
    named = sqs.secret
    if named is None and settings.store.startswith("cassandra:"):
        raise SettingsError(
            "facades.sqs.secret is not set: on Cassandra all processes have to derive the same secrets. Write "
            f'{MIN_SECRET} or more random characters into a file, and name it: secret = "file:/etc/queuey/{FILE}"'
        )
    if named is None:
        path = (settings.data.parent if settings.data.is_file() else settings.data) / FILE
        if not path.exists():
            _write(path)
        named = f"file:{path}"
    secret = SecretName.parse(named).read(environ)
    if len(secret) < MIN_SECRET:
        raise SettingsError(
            f"The secret {named} has {len(secret)} characters; it needs {MIN_SECRET} or more, random ones."
        )
    return secret.encode()


def _write(path: Path) -> None:
    """Writes a new secret, unless another process does so at the same moment."""
    mine = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    mine.touch(mode=0o600)
    mine.write_text(f"{secrets.token_hex(32)}\n", "utf-8")
    try:
        os.link(mine, path)
    except FileExistsError:
        pass
    finally:
        mine.unlink()
