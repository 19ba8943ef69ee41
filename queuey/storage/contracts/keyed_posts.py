"""The contract of posts that carry an idempotency key: stored once, however often they are repeated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.ids import Position
    from queuey.messages import NewMessage, PostKey, PostResult, Queue


class KeyedPosts(ABC):
    """New messages under idempotency keys.

    A key belongs to ``queue.qid``: a purge or a delete forgets it. It is remembered for ``key.seconds`` after its post
    was carried out.

    Of all posts under one key, in all processes, at most one is carried out; every other one that succeeds has its
    result, whatever happened to the messages since. Where the post of one process broke off at any point, the next one
    finishes it: the first one's messages are removed before anything is stored anew, so that in the end the messages
    are there once. On a store whose reads stay behind the clock, a reader may in that case see a message that is
    removed.
    """

    @abstractmethod
    async def append_once(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, *, after: Position | None = None
    ) -> PostResult:
        """:meth:`.messages.Messages.append` that finds the messages that were stored under the key before.

        Raises:
            InvalidRequest: As in ``append``.
            KeyReused: The key is that of a post with another ``content``.
            KeyInUse: Another caller is about to carry out this post, or was until a moment ago.
            StoreUnavailable: ``outcome`` is that of this call's writes; an earlier one may have stored
                the messages. Repeating it with the same key is always safe.
        """
