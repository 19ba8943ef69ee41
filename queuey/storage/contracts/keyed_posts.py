"""The contract of posts with an idempotency key: they are stored once, however often they are repeated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.ids import Position
    from queuey.model.messages import NewMessage, PostKey, PostResult, Queue


class KeyedPosts(ABC):
    """Posts messages under idempotency keys.

    A key belongs to ``queue.qid``: a purge or a delete removes it. It is remembered for ``key.seconds`` after its post
    was carried out.

    At most one of all posts with the same key, in all processes, is carried out. Every other post that succeeds returns
    the same result, even if the messages have been removed since. If a post was interrupted, the next one with the key
    removes its messages before it stores any, so that in the end each message is stored once. On a store with a read
    delay a reader may then see a message that is removed afterwards.
    """

    @abstractmethod
    async def append_once(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, *, after: Position | None = None
    ) -> PostResult:
        """Stores messages like :meth:`.messages.Messages.append`, unless a post with the key has stored them before.

        Raises:
            InvalidRequest: See ``append``.
            KeyReused: The key was used for a post with another ``content``.
            KeyInUse: Another caller is carrying out this post, or was doing so a moment ago.
            StoreUnavailable: ``outcome`` refers to the writes of this call; an earlier call may have stored the
                messages. Repeating the call with the same key is always safe.
        """
