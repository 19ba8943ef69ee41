"""Renders messages as JSON for responses.

One format string renders a whole page. Most parts repeat from message to message: the last digits of the id, the second
of the timestamp, the partition, the metadata. So a message costs a check whether these have changed, five values and an
encoded body.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from queuey.messages.ranges import RangeAnswer
from queuey.model import ids
from queuey.model.ids import EPOCH_TICKS, LOW_MIN, TICKS_PER_SECOND
from queuey.model.messages import Message, Meta
from queuey.web.responses import PIECE_SIZE, encode

_MESSAGE = b"%b%08x%b%07d%b%b%b"
_FIRST = b'{"message_id":"'
_NEXT = b',{"message_id":"'
EARLY_FIELD = b',"early":true'
_MAX_CACHED_TAILS = 1024

_tails: dict[Meta, bytes] = {}


def _render_tail(meta: Meta) -> bytes:
    """Returns the JSON after the body of a message with this metadata, with the closing brace."""
    tail = _tails.get(meta)
    if tail is None:
        tail = b""
        if meta.content_type is not None:
            tail += b',"content_type":' + encode(meta.content_type)
        if meta.headers:
            tail += b',"headers":' + encode(dict(meta.headers))
        if meta.key is not None:
            tail += b',"message_key":' + encode(meta.key)
        tail += b"}"
        if len(_tails) >= _MAX_CACHED_TAILS:
            _tails.clear()
        _tails[meta] = tail
    return tail


def render_messages(messages: Sequence[Message], more: Sequence[bytes] = ()) -> list[bytes]:
    """Returns the messages as the inside of a JSON array, in pieces.

    Args:
        more: Further fields of each message, beginning with a comma; empty for none.
    """
    parts: list[bytes | int] = []
    pieces: list[bytes] = []
    size = 0
    separator = _FIRST
    low: int | None = None
    high = -1
    start = end = 0  # ticks of the second in `middle`
    partition = 0
    id_tail = middle = location = b""
    for number, message in enumerate(messages):
        ticks = message.ticks
        if ticks >> 32 != high or message.low != low:
            high, low = ticks >> 32, message.low
            id_tail = b'%b","timestamp":"' % ids.last_digits(high, low)
            end = 0
        if not start <= ticks < end:
            seconds = (ticks - EPOCH_TICKS) // TICKS_PER_SECOND
            start = seconds * TICKS_PER_SECOND + EPOCH_TICKS
            end = start + TICKS_PER_SECOND
            middle = b"%b%d." % (id_tail, seconds)
            if seconds < 0:
                # Before 1970 the fraction counts away from zero, so `middle` is not reused for the next message.
                whole, fraction = divmod(EPOCH_TICKS - ticks, TICKS_PER_SECOND)
                middle, start, end = b"%b-%d." % (id_tail, whole), ticks - fraction, 0
        if message.partition != partition:
            partition = message.partition
            location = b'","partition":%d,"body":' % partition
        body, tail = message.body, b"}"
        if (meta := message.meta) is not None:
            tail = _render_tail(meta)
        if isinstance(body, bytes):
            text = b'"%b"' % b64encode(body)
            tail = tail[:-1] + b',"encoding":"base64"}'
        else:
            text = body.encode() if meta is not None and meta.json else encode(body)
        if more:
            tail = b"%b%b}" % (tail[:-1], more[number])
        parts += (separator, ticks & 0xFFFFFFFF, middle, ticks - start, location, text, tail)
        separator = _NEXT
        size += len(text)
        if size > PIECE_SIZE:
            pieces.append(_format(parts))
            parts, size = [], 0
    pieces.append(_format(parts))
    return pieces


def _format(parts: Sequence[bytes | int]) -> bytes:
    return _MESSAGE * (len(parts) // 7) % tuple(parts)


def render_fetched(messages: Sequence[Message]) -> list[bytes]:
    return [b'{"status":"ok","messages":[', *render_messages(messages), b"]}"]


def render_range_answer(answer: RangeAnswer, queue_name: str | None = None) -> list[bytes]:
    following, cursors = [], []
    for number, position in answer.next.items():
        if position is None:
            following.append(b'"%d":null' % number)
        else:
            text = ids.to_hex(position).encode()
            following.append(b'"%d":"%b"' % (number, text))
            cursors.append(b"%d:%b" % (number, text))
    name = b"" if queue_name is None else b',"queue_name":' + encode(queue_name)
    messages = render_messages(answer.messages)
    if answer.early:
        messages += [b","] * bool(answer.messages) + render_messages(answer.early, [EARLY_FIELD] * len(answer.early))
    ending = b'],"horizon":"%b","next":{%b},"cursor":"%b","more":%b%b%b}' % (
        ids.to_hex((answer.horizon, LOW_MIN)).encode(),
        b",".join(following),
        b",".join(cursors),
        b"true" if answer.more else b"false",
        b"" if answer.cursor_safe else b',"cursor_safe":false',
        b',"partitions":%d,"read":%b' % (answer.partitions, encode(list(answer.next))) if answer.partitions else b"",
    )
    return [b'{"status":"ok"%b,"messages":[' % name, *messages, ending]
