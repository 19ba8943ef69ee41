"""Users and their own queues. Queue names are computed, so no list of users is needed.

The name of a user also serves as a principal of a queue:

* ``bid:ann@example.org``: a mail address, proved by a BrowserID assertion;
* ``user:nhabavi2.ann``: the user ``ann`` in the tokens of one issuer. The eight characters before the point identify
  the issuer, so ``ann`` of another issuer is another user.

A pattern such as ``inbox-{user}`` gives each user one queue: ``inbox-bid.ann@example.org``, ``inbox-nhabavi2.ann``.
Letters, digits and ``-_.@`` of a user's name are kept. Each UTF-8 byte of other characters becomes ``~`` and two hex
digits. So does the point of a final ``.dead``, because such a name would be a queue of dead letters, and the first
letter of the user name ``dead``. A name that is too long becomes ``~`` and 26 characters of its SHA-256. So two users
never have the same queue.
"""

from __future__ import annotations

import re
import string
from base64 import b32encode
from hashlib import sha256

from queuey.model.deadletters import SUFFIX

MAX_QUEUE_NAME = 50
MAX_USER_NAME = 255
"""Max characters of a user's name at its issuer."""

_USER_PLACEHOLDER = "{user}"
_TAG_LENGTH, _HASH_LENGTH = 8, 26
_ROOM = MAX_QUEUE_NAME - len(SUFFIX)
MAX_TEXT_LENGTH = _ROOM - 1 - _HASH_LENGTH
"""Max characters of a pattern before ``{user}``."""
_MAX_ENCODED_LENGTH = 64
_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\{user\}")
_PLAIN_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-_.@")
_TOKEN_USER = re.compile(r"user:([A-Za-z0-9._@~-]+)")
_MAIL_USER = re.compile(r"bid:([^@\s]+@[^@\s]+)")


def user_name(issuer: str, user: str) -> str:
    """Returns the name of a user with tokens of an issuer.

    Args:
        issuer: The claim ``iss`` of the tokens, unchanged.
        user: The claim of the tokens that the setting ``users`` names; by default ``sub``.

    Raises:
        ValueError: The user's name is empty, too long, or cannot be encoded.

    Example:
        >>> from queuey.client import user_name
        >>> user_name("https://accounts.example.org", "ann")
        'user:nhabavi2.ann'
    """
    if not 0 < len(user) <= MAX_USER_NAME:
        raise ValueError(f"The user's name has {len(user)} characters. It must have 1 to {MAX_USER_NAME}.")
    encoded = f"{issuer_tag(issuer)}.{_escape(user)}"
    return f"user:{_hash_if_longer(encoded, _MAX_ENCODED_LENGTH, of=f'{issuer} {user}')}"


def queue_name(pattern: str, user: str) -> str:
    """Returns the name of a user's queue for a pattern.

    Args:
        pattern: A pattern of the setting ``users``, such as ``inbox-{user}``.
        user: The result of :func:`user_name`, or ``bid:`` and a mail address.

    Raises:
        ValueError: The pattern or the user's name is not valid.

    Example:
        >>> from queuey.client import queue_name, user_name
        >>> queue_name("inbox-{user}", user_name("https://accounts.example.org", "ann"))
        'inbox-nhabavi2.ann'
        >>> queue_name("inbox-{user}", "bid:ann@example.org")
        'inbox-bid.ann@example.org'
    """
    check_pattern(pattern)
    text = pattern.removesuffix(_USER_PLACEHOLDER)
    if (token := _TOKEN_USER.fullmatch(user)) is not None:
        encoded = token[1]
    elif (mail := _MAIL_USER.fullmatch(user)) is not None:
        encoded = f"bid.{_escape(mail[1])}"
    else:
        raise ValueError(f'The user "{user[:80]}" is neither bid:<mail address> nor from user_name().')
    return text + _hash_if_longer(encoded, _ROOM - len(text), of=user)


def issuer_tag(issuer: str) -> str:
    return _short_hash(issuer, _TAG_LENGTH)


def check_pattern(pattern: str) -> None:
    """Checks a pattern of queue names.

    Raises:
        ValueError: The pattern is not valid; the message describes a valid one.
    """
    if _PATTERN.fullmatch(pattern) is None or len(pattern) - len(_USER_PLACEHOLDER) > MAX_TEXT_LENGTH:
        raise ValueError(
            f'The pattern "{pattern[:80]}" is not 1 to {MAX_TEXT_LENGTH} letters, digits and ._- followed by '
            f"{_USER_PLACEHOLDER}, such as inbox-{_USER_PLACEHOLDER}."
        )


def may_overlap(one: str, other: str) -> bool:
    """Returns whether one of two different patterns begins like the other, so that two users could get one queue."""
    shorter, longer = sorted((one.removesuffix(_USER_PLACEHOLDER), other.removesuffix(_USER_PLACEHOLDER)), key=len)
    return one != other and longer.startswith(shorter)


def _escape(user: str) -> str:
    """Escapes characters that names may not have, and what would look like a dead-letter suffix."""
    try:
        text = "".join(c if c in _PLAIN_CHARACTERS else "".join(f"~{byte:02x}" for byte in c.encode()) for c in user)
    except UnicodeEncodeError as error:
        raise ValueError("The user's name has half of a surrogate pair, which is not a character.") from error
    if text == SUFFIX[1:]:  # It follows a point, the one after the issuer.
        return f"~{ord(text[0]):02x}{text[1:]}"
    return f"{text[: -len(SUFFIX)]}~2e{SUFFIX[1:]}" if text.endswith(SUFFIX) else text


def _hash_if_longer(part: str, room: int, *, of: str) -> str:
    return part if len(part) <= room else f"~{_short_hash(of, _HASH_LENGTH)}"


def _short_hash(text: str, length: int) -> str:
    return b32encode(sha256(text.encode()).digest()).decode().lower()[:length]
