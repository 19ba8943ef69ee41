"""The profile: a private file with the address of a service and a key.

``queuey serve`` writes it at its first start; the command line and the client read it. TOML with the keys ``url``,
``application`` and ``key``; in place of ``key``, ``token_file`` may name a file that holds a token. The file is made
readable for its owner alone before the key is in it, and a profile that others may read is refused, as the key in it is
no secret any more.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from queuey.client.errors import ProfileExposed, ProfileInvalid, ProfileNotFound

ENVIRONMENT = "QUEUEY_PROFILE"
"""Variable that names another file."""

_OTHERS = 0o077
_PRIVATE_FILE = 0o600
_PRIVATE_DIRECTORY = 0o700
_LIMIT = 65_536
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a service, an application, and its key or token file.

    Example:
        >>> from queuey.client import Profile
        >>> Profile(url="http://127.0.0.1:5000", application="queuey", key="secret")
        Profile(url='http://127.0.0.1:5000', application='queuey', key=...)

    Attributes:
        url: Address of the server, or several with commas, with or without ``/v1/<application>/``.
        application: The application's name.
        key: Its key. Never shown by ``repr``.
        token_file: In place of a key, a file that holds a token; a relative path begins where the profile is.
    """

    url: str
    application: str
    key: str = ""
    token_file: str = ""

    def __post_init__(self) -> None:
        """Refuses values that cannot be written or sent."""
        for name, value in self.written().items():
            if not value or _UNPRINTABLE.search(value):
                raise ProfileInvalid(f"the profile's {name} is empty or has control characters")
        if self.key and self.token_file:
            raise ProfileInvalid("the profile has a key and a token_file: remove one of them")

    def __repr__(self) -> str:
        """Leaves the key out."""
        opened = f"token_file={self.token_file!r}" if self.token_file else "key=..."
        return f"Profile(url={self.url!r}, application={self.application!r}, {opened})"

    def written(self) -> dict[str, str]:
        """Returns the content of the file."""
        last = {"token_file": self.token_file} if self.token_file else {"key": self.key}
        return {"url": self.url, "application": self.application, **last}


def default_path() -> Path:
    """Returns the path in ``QUEUEY_PROFILE``, else one in the user's configuration directory."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named)
    import platformdirs  # noqa: PLC0415 - only needed for profiles

    return Path(platformdirs.user_config_dir("queuey")) / "profile.toml"


def read_profile(path: Path | None = None) -> Profile:
    """Reads a profile, by default that of :func:`default_path`.

    Raises:
        ProfileNotFound: There is no such file.
        ProfileExposed: Group or others may read or write it.
        ProfileInvalid: It cannot be read, is no TOML, or a key is missing or no text.
    """
    import tomllib  # noqa: PLC0415 - only needed for profiles

    path = default_path() if path is None else path
    try:
        values = tomllib.loads(_private_bytes(path).decode())
    except FileNotFoundError as error:
        raise ProfileNotFound(f"there is no profile {path}") from error
    except OSError as error:
        raise ProfileInvalid(f"the profile {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        # The text of the error may quote the line that holds the key, so it is neither repeated nor kept.
        raise ProfileInvalid(f"the profile {path} is not TOML ({type(error).__name__})") from None
    return _profile(values, path)


def write_profile(profile: Profile, path: Path | None = None) -> Path:
    """Writes a profile, replacing the present one in one step; returns its path.

    Missing directories are made, for the owner alone.

    Raises:
        ProfileInvalid: It cannot be written.
    """
    path = default_path() if path is None else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
        _replace(path, _toml(profile).encode())
    except OSError as error:
        raise ProfileInvalid(f"the profile {path} cannot be written: {error.strerror}") from error
    return path


def _private_bytes(path: Path) -> bytes:
    """Reads a file that only its owner may use; checks the file that it opened, not the name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        mode = os.fstat(descriptor).st_mode
        if mode & _OTHERS:
            raise ProfileExposed(f"others may use the profile {path}; run: chmod 600 {path}")
        return file.read(_LIMIT)


def _replace(path: Path, content: bytes) -> None:
    """Puts a file in place whole: written beside, made durable, renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _toml(profile: Profile) -> str:
    lines = (f'{name} = "{_escaped(value)}"' for name, value in profile.written().items())
    return "# Opens the service: keep it private.\n" + "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _profile(values: dict[str, Any], path: Path) -> Profile:
    fields = {name: values.get(name, "") for name in Profile.__struct_fields__}
    needed = ("url", "application", "token_file" if fields["token_file"] else "key")
    wrong = [name for name, value in fields.items() if not isinstance(value, str) or (name in needed and not value)]
    if wrong:
        raise ProfileInvalid(f"the profile {path} lacks {', '.join(wrong)}: add it, or have queuey serve write another")
    return Profile(**{name: str(value) for name, value in fields.items()})
