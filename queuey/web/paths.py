"""The one place that decides what the path of a request names.

The path is percent-decoded once. A name that holds an encoded slash would look like two names afterwards, and ``.`` and
``..`` are taken for something else by proxies and HTTP libraries, so no resource has such a name: 404. Whatever is
encoded twice (``%252F``) stands for the text that one decoding gives (``%2F``), which is a name like any other.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from queuey.web.answers import Environ
from queuey.web.errors import NoSuchResource

RAW = ("RAW_URI", "REQUEST_URI")
"""Where WSGI servers hand over the path as it was sent. PEP 3333 knows only the decoded one."""
_DOTS = frozenset({".", ".."})


def decode_path(raw: bytes) -> str:
    """Decodes the path of a request as it was sent; returns it as WSGI has it, bytes as Latin-1.

    Raises:
        NoSuchResource: A name holds a slash, or is ``.`` or ``..``.
    """
    if b"%" in raw:
        _refuse_slash(raw.decode("latin-1"))
        raw = unquote_to_bytes(raw)
    path = raw.decode("latin-1")
    if "." in path:
        _refuse_dots(path)
    return path


def check_path(environ: Environ) -> None:
    """Does the same for a request whose path a WSGI server has decoded, as far as the server tells.

    Raises:
        NoSuchResource: A name holds a slash, or is ``.`` or ``..``.
    """
    for name in RAW:
        if name in environ:
            _refuse_slash(environ[name].partition("?")[0])
    _refuse_dots(environ["PATH_INFO"])


def _refuse_slash(path: str) -> None:
    if "%2f" in path.lower():
        raise NoSuchResource("A name holds an encoded slash.")


def _refuse_dots(path: str) -> None:
    if not _DOTS.isdisjoint(path.split("/")):
        raise NoSuchResource("No resource is named . or ..")
