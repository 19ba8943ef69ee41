"""Tokens: how one is read, and when another one is requested.

A client has one credential. A key and a token given as a text stay as they are. A token from a source is requested

====================================  ======================================================================
before the first request              always
before a later one                    from 30 seconds before its known end on, or when its source has changed
after a 401                           once; the call is sent again only if the source gave another token
====================================  ======================================================================

Threads and tasks that need a token at the same moment wait for one answer, and share it if it is an error as well.

No message, attribute or repr here contains a token.
"""

from __future__ import annotations

import base64
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from queuey.client.errors import InvalidArgument, TokenError

TokenScheme = Literal["Bearer", "BrowserID"]

MOST_BYTES = 64 << 10
"""Max bytes of the output of a source: the token, and JSON around it."""
AHEAD = 30.0
"""Max seconds before its end at which a token is replaced."""

# RFC 9110, section 11.2: token68.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_JWT_PARTS = 3


class Token(msgspec.Struct, frozen=True):
    """A token and its end, which a function may return in place of a text.

    Attributes:
        token: The token, as the issuer wrote it.
        expires: Seconds since 1970, or an aware datetime. None: that of a JWT itself; of others it is unknown.

    Raises:
        InvalidArgument: No header can carry the token, or ``expires`` has no time zone.

    Example:
        >>> from queuey.client import Token
        >>> Token("eyJhbGciOi", expires=1_900_000_000)
        Token(token=..., expires=1900000000)
    """

    token: str
    expires: float | datetime | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be sent."""
        if len(self.token) > MOST_BYTES or _TOKEN.fullmatch(self.token) is None:
            raise InvalidArgument("the token is empty, too long, or has characters that no token has, such as spaces")
        if isinstance(self.expires, datetime) and self.expires.tzinfo is None:
            raise InvalidArgument(f"expires {self.expires} has no time zone: give it one, such as datetime.UTC")

    def __repr__(self) -> str:
        """Leaves the token out."""
        return f"Token(token=..., expires={self.expires!r})"

    @property
    def end(self) -> float | None:
        """Seconds since 1970 at which it ends, as far as that is known."""
        if self.expires is None:
            return _end_in(self.token)
        return self.expires.timestamp() if isinstance(self.expires, datetime) else self.expires


class TokenSource(ABC):
    """Gives tokens, one after another.

    Attributes:
        name: Names it in errors: ``token_file /run/token``.
    """

    name: str

    def changed(self) -> bool:
        """Returns whether it would give another token than last time, if that is known without waiting."""
        return False

    @abstractmethod
    def ask(self) -> Token:
        """Returns a token. It may block.

        Raises:
            TokenError: It gave none.
        """

    async def ask_async(self) -> Token:
        """Returns a token as :meth:`ask` does, without blocking the event loop."""
        from anyio.to_thread import run_sync  # noqa: PLC0415 - only needed with a source

        return await run_sync(self.ask, abandon_on_cancel=True)


class _Written(msgspec.Struct, frozen=True):
    token: str
    expires: float | Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _Claims(msgspec.Struct, frozen=True):
    exp: float | None = None


_decode_written = msgspec.json.Decoder(_Written).decode
_decode_claims = msgspec.json.Decoder(_Claims).decode


def read_token(content: bytes, name: str) -> Token:
    """Reads what a file or a command gave: a token on a line, or JSON with ``token`` and perhaps ``expires``.

    Args:
        content: At most :data:`MOST_BYTES`, and one more if there was more.
        name: Of the source, for the error.

    Raises:
        TokenError: It is neither. The error does not show it.

    Example:
        >>> read_token(b'{"token": "abc", "expires": "2030-01-01T00:00:00Z"}', "token_file t").token
        'abc'
    """
    if len(content) > MOST_BYTES:
        raise TokenError(f"{name} has more than {MOST_BYTES:,} bytes, which no token has")
    text = content.strip()
    if not text:
        raise TokenError(f"{name} is empty: it must give a token")
    try:
        if text.startswith(b"{"):
            written = _decode_written(text)
            return Token(written.token, written.expires)
        return Token(text.decode("ascii"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidArgument):
        # The text of the error may quote what was given, so it is neither repeated nor kept.
        raise TokenError(
            f'{name} gave no token: expected it on one line, or JSON such as {{"token": "...", "expires": 1900000000}}'
        ) from None


def _end_in(token: str) -> float | None:
    """Returns the end of a JWT. It is not verified: the server does so, and here it only decides when to ask again."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return None
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return _decode_claims(claims).exp
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


class KeptToken:
    """The token in use, and the last answer of its source.

    Args:
        scheme: Of the Authorization header.
        clock: Seconds since 1970.
    """

    def __init__(self, scheme: str, clock: Callable[[], float] = time.time) -> None:
        self._scheme = scheme
        self._clock = clock
        self._ahead = self._end = 0.0
        self._failure: TokenError | None = None
        self.header: str | None = None
        self.answers = 0

    def due(self) -> bool:
        """Returns whether to request another token before the next request."""
        return self.header is None or self._clock() >= self._ahead

    def keep(self, token: Token) -> None:
        """Keeps a token. One that has ended by this machine's clock is used until the server refuses it."""
        now, end = self._clock(), token.end
        self.header = f"{self._scheme} {token.token}"
        self._end = end if end is not None and end > now else float("inf")
        # Half of its life is left to a token that lives shortly.
        self._ahead = max(self._end - AHEAD, (now + self._end) / 2)
        self._failure = None
        self.answers += 1

    def failed(self, error: TokenError, *, refused: bool = False) -> None:
        """Records a failure of the source. The token in use serves until its end, unless the server refused it."""
        self.answers += 1
        if refused or self.header is None or self._clock() >= self._end:
            self._failure = error
            self.header = None
        else:
            self._ahead = self._end

    def result(self) -> str:
        """Returns the header.

        Raises:
            TokenError: The source failed, and there is no other token to use.
        """
        header = self.header
        if header is None:
            raise TokenError(str(self._failure)) from self._failure
        return header
