"""The profile: a private file with the address of a service and a key.

``queuey serve`` writes the profile at its first start. The command line and the client read it. It is TOML with the
keys ``url``, ``application`` and ``key``, or ``token_file``, a file that contains a token, instead of ``key``. The file
is created with read permission for its owner only. A profile that others may read is refused, because its key is not
secret any more.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from queuey.client.errors import ProfileExposed, ProfileInvalid, ProfileNotFound

PATH_VARIABLE = "QUEUEY_PROFILE"
"""Environment variable with the path of another profile."""

_OTHERS_MODE_BITS = 0o077
_PRIVATE_FILE = 0o600
_PRIVATE_DIRECTORY = 0o700
_MAX_BYTES = 65_536
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a service, an application, and its key or token file.

    Example:
        >>> from queuey.client import Profile
        >>> Profile(url="http://127.0.0.1:5000", application="queuey", key="secret")
        Profile(url='http://127.0.0.1:5000', application='queuey', key=...)

    Attributes:
        url: Address of the server, or several separated by commas, with or without ``/v1/<application>/``.
        application: The application's name.
        key: The application's key. Never shown by ``repr``.
        token_file: A file that contains a token, instead of a key. A relative path starts at the profile's directory.

    Raises:
        ProfileInvalid: A needed value is empty or has control characters, or both a key and a token file are given.
    """

    url: str
    application: str
    key: str = ""
    token_file: str = ""

    def __post_init__(self) -> None:
        for name, value in self.written().items():
            if not value or _UNPRINTABLE.search(value):
                raise ProfileInvalid(f"the profile's {name} is empty or has control characters")
        if self.key and self.token_file:
            raise ProfileInvalid("the profile has a key and a token_file: remove one of them")

    def __repr__(self) -> str:
        credential = f"token_file={self.token_file!r}" if self.token_file else "key=..."
        return f"Profile(url={self.url!r}, application={self.application!r}, {credential})"

    def written(self) -> dict[str, str]:
        credential = {"token_file": self.token_file} if self.token_file else {"key": self.key}
        return {"url": self.url, "application": self.application, **credential}


def default_path() -> Path:
    path = os.environ.get(PATH_VARIABLE)
    if path:
        return Path(path)
    import platformdirs  # noqa: PLC0415 - only needed for profiles

    return Path(platformdirs.user_config_dir("queuey")) / "profile.toml"


def read_profile(path: Path | None = None) -> Profile:
    """Reads a profile, by default the one at :func:`default_path`.

    Raises:
        ProfileNotFound: The file does not exist.
        ProfileExposed: Users other than the owner may access the file.
        ProfileInvalid: The file cannot be read or is not TOML, or a key is missing or not a string.
    """
    import tomllib  # noqa: PLC0415 - only needed for profiles

    path = default_path() if path is None else path
    try:
        values = tomllib.loads(_read_private(path).decode())
    except FileNotFoundError as error:
        raise ProfileNotFound(f"the profile {path} does not exist") from error
    except OSError as error:
        raise ProfileInvalid(f"the profile {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        # The error's text may quote the line with the key, so it is neither shown nor chained.
        raise ProfileInvalid(f"the profile {path} is not TOML ({type(error).__name__})") from None
    return _make_profile(values, path)


def write_profile(profile: Profile, path: Path | None = None) -> Path:
    """Writes a profile and returns its path. Replaces an existing file atomically.

    Missing directories are created with access for their owner only.

    Raises:
        ProfileInvalid: The file cannot be written.
    """
    path = default_path() if path is None else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
        _replace(path, _to_toml(profile).encode())
    except OSError as error:
        raise ProfileInvalid(f"the profile {path} cannot be written: {error.strerror}") from error
    return path


def _read_private(path: Path) -> bytes:
    """Reads at most 64 KiB. Raises ProfileExposed if others than the owner have any right."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        mode = os.fstat(descriptor).st_mode
        if mode & _OTHERS_MODE_BITS:
            raise ProfileExposed(f"others may use the profile {path}; run: chmod 600 {path}")
        return file.read(_MAX_BYTES)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _to_toml(profile: Profile) -> str:
    lines = (f'{name} = "{_escape(value)}"' for name, value in profile.written().items())
    return "# Opens the service: keep it private.\n" + "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _make_profile(values: dict[str, Any], path: Path) -> Profile:
    fields = {name: values.get(name, "") for name in Profile.__struct_fields__}
    required = ("url", "application", "token_file" if fields["token_file"] else "key")
    missing = [name for name, value in fields.items() if not isinstance(value, str) or (name in required and not value)]
    if missing:
        raise ProfileInvalid(f"the profile {path} lacks {', '.join(missing)}: add it, or have queuey serve write one")
    return Profile(**{name: str(value) for name, value in fields.items()})
