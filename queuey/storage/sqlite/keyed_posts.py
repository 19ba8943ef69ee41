"""Posts with idempotency keys in the embedded store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queuey.errors import Outcome
from queuey.ids import Position
from queuey.messages import NewMessage, PostKey, Queue
from queuey.storage import items as items_of
from queuey.storage.contracts.keyed_posts import Done, KeyedPosts
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Append


class SqliteKeyedPosts(KeyedPosts):
    _db: Database

    def begin_append_once(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        key: PostKey,
        done: Done,
        *,
        after: Position | None = None,
    ) -> Callable[[], Outcome]:
        return self._db.writer.begin_append(Append(queue, items_of.checked(queue, items), after, key), done)
