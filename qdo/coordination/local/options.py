"""The settings of local coordination."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from qdo.coordination.paths import split_url
from qdo.errors import InvalidArgument

SESSION_TIMEOUT = 3.0
SHORTEST = 0.2
"""Min seconds of a session; a busy machine alone ends a shorter one."""
_FORM = "local: or local:///path/to/file"
SYNC = {"normal": False, "full": True}


@dataclass(frozen=True)
class LocalOptions:
    """The settings of local coordination.

    Args:
        path: The file. All processes that use it are of one machine: its file system must not be a network's.
        session_timeout: Seconds after which a member that was not heard of is gone.
        sync: Every commit waits for the disk, so that offsets also outlive a crash of the machine.
    """

    path: Path
    session_timeout: float = SESSION_TIMEOUT
    sync: bool = False

    def __post_init__(self) -> None:
        if not self.session_timeout >= SHORTEST:
            raise InvalidArgument(f"a session lasts {SHORTEST} seconds or longer, not {self.session_timeout}")


def default_path() -> Path:
    """Returns the file that the processes of this user share if they say nothing else."""
    import platformdirs  # noqa: PLC0415 - only needed if no file is named

    return Path(platformdirs.user_state_dir("qdo", appauthor=False)) / "coordination.sqlite3"


def parse_url(url: str, *, session_timeout: float | None = None, **options: Any) -> LocalOptions:  # noqa: ANN401 - checked here
    """Reads ``local:`` or ``local:///path/to/file?sync=full``.

    Args:
        url: The URL.
        session_timeout: Seconds; None: the default.
        **options: ``sync`` ("normal" or "full"), which wins over the URL's.

    Raises:
        InvalidArgument: It is something else.
    """
    parts = split_url(url, "local", _FORM)
    path = unquote(parts.path)
    if parts.netloc or (path and not path.startswith("/")):
        raise InvalidArgument(f"coordination is {url!r}: give {_FORM}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True)) | options
    if unknown := given.keys() - {"sync"}:
        raise InvalidArgument(f"local coordination has no option {', '.join(sorted(unknown))}")
    sync = given.get("sync", "normal")
    if sync not in SYNC:
        raise InvalidArgument(f"sync is one of {', '.join(SYNC)}, not {sync!r}")
    found = LocalOptions(Path(path) if path else default_path(), sync=SYNC[sync])
    return found if session_timeout is None else replace(found, session_timeout=session_timeout)
