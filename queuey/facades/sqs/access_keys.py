"""Access keys: an id that every request names, and a secret that signs the request.

The store keeps a digest of the id with the key's rights, as it does for an application key. It does not keep the
secret, which is derived from the id and one secret of the deployment: see ``docs/decisions/0037-access-keys.md``.
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

from queuey.facades.settings import SqsFacade
from queuey.model.errors import SettingsError
from queuey.settings import SecretName, Settings

FILE_NAME = "sqs.secret"
"""File in the data directory with the secret of a deployment on SQLite that does not configure one."""
MIN_SECRET_LENGTH = 32
_ID_HASH_PREFIX, _SECRET_HASH_PREFIX = b"sqs access key\0", b"sqs secret\0"
"""Prefixes of an id before it is hashed, so that no other kind of key has the same hash."""


def new_access_key() -> str:
    return "QK" + b32encode(secrets.token_bytes(12)).decode()[:18]


@lru_cache(1024)
def digest_of(access_key: str) -> bytes:
    return sha256(_ID_HASH_PREFIX + access_key.encode()).digest()


@lru_cache(1024)
def secret_of(deployment: bytes, access_key: str) -> str:
    return b64encode(hmac.digest(deployment, _SECRET_HASH_PREFIX + access_key.encode(), "sha256")[:30]).decode()


def deployment_secret(sqs: SqsFacade, settings: Settings, environ: Mapping[str, str]) -> bytes:
    """Returns the deployment's secret, from which those of access keys are derived. On SQLite, creates one if needed.

    Args:
        sqs: Settings of the facade, which may name a variable or file with the secret.

    Raises:
        SettingsError: The secret is missing or too short, or not set on Cassandra.
    """
    location = sqs.secret
    if location is None and settings.store.startswith("cassandra:"):
        raise SettingsError(
            "facades.sqs.secret is not set: on Cassandra all processes have to derive the same secrets. Write "
            f"{MIN_SECRET_LENGTH} or more random characters into a file, and name it: "
            f'secret = "file:/etc/queuey/{FILE_NAME}"'
        )
    if location is None:
        path = (settings.data.parent if settings.data.is_file() else settings.data) / FILE_NAME
        if not path.exists():
            _create_secret_file(path)
        location = f"file:{path}"
    secret = SecretName.parse(location).read(environ)
    if len(secret) < MIN_SECRET_LENGTH:
        raise SettingsError(
            f"The secret {location} has {len(secret)} characters. Use {MIN_SECRET_LENGTH} or more random characters."
        )
    return secret.encode()


def _create_secret_file(path: Path) -> None:
    # The link fails if the file exists.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.touch(mode=0o600)
    temporary.write_text(f"{secrets.token_hex(32)}\n", "utf-8")
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
