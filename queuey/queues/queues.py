"""Use cases that create, list, change, describe and delete queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.api import queues as api
from queuey.model import ids
from queuey.model.deadletters import SUFFIX, holds_dead, queue_for
from queuey.model.errors import InvalidRequest, QueueExists, QueueNotFound
from queuey.model.messages import Backoff, ChosenOptions, PartitionBounds, Queue, QueueSpec, is_readable
from queuey.model.queue_options import CONSISTENCIES
from queuey.model.rights import format_principal, matches
from queuey.runtime.limits import Limits
from queuey.storage import Store, catalogue_rows


def queue_name_error(name: str, max_length: int) -> str | None:
    """Returns the error message for the name of a new queue, or None.

    The name must work as a path segment in ``/v1/{app}/{queue}``; an initial underscore is reserved for the API. Up to
    two endings of dead-letter queues do not count, so every queue can have one, and that queue another one.
    """
    if not name:
        return "Required"
    if len(name.removesuffix(SUFFIX).removesuffix(SUFFIX)) > max_length:
        return f"Longer than maximum length {max_length}"
    if "/" in name or not is_readable(name) or name in {".", ".."} or name[0] == "_":
        text = "A queue name must not contain a slash or characters that do not show, begin or end with a space"
        return f"{text}, be . or .., or begin with _"
    return None


MAX_FILTERED = 100_000
"""Max queues that a listing reads to find matches."""
FILTERED_PAGE_SIZE = 1000
"""Number of queues that a filtered listing reads at a time."""
TOO_FEW_MATCH_TEXT = (
    "Too few of the application's queues match the patterns of the credential to find them here. "
    "List with a credential whose patterns begin with text, such as orders-*."
)


def shortest_prefixes(patterns: Sequence[str]) -> list[str]:
    """Returns the text of each pattern before its first star, sorted, without texts that begin with another one."""
    shortest: list[str] = []
    for prefix in sorted(pattern.partition("*")[0] for pattern in patterns):
        if not shortest or not prefix.startswith(shortest[-1]):
            shortest.append(prefix)
    return shortest


class Queues:
    """Creates, lists, changes, describes and deletes queues."""

    def __init__(self, store: Store, limits: Limits, *, max_filtered: int = MAX_FILTERED) -> None:
        self._store = store
        self._limits = limits
        self._max_filtered = max_filtered

    async def create(
        self, application: str, name: str | None, spec: QueueSpec, *, longest: int | None = None
    ) -> tuple[Queue, bool]:
        """Creates a queue, or finds an existing one with the same fields. Returns it, and whether it is new.

        Principals may be in another order.

        Args:
            application: The owner.
            name: The name; None for a random one.
            spec: Fields of the queue; missing fields get their defaults.
            longest: Max characters of the name; by default ``Limits.max_queue_name``.

        Raises:
            InvalidRequest: The name is not valid, or options conflict.
            QueueExists: The queue exists with other fields.
        """
        if name is None:
            name = uuid4().hex
        elif (error := queue_name_error(name, longest or self._limits.max_queue_name)) is not None:
            raise InvalidRequest({"queue_name": error})
        self._check_dead_letter(name, spec, longest)
        self._check_expiry(
            Queue(application=application, name=name, uid=0, qid=0, **catalogue_rows.new_queue_fields(spec))
        )
        try:
            return await self._store.catalogue.create_queue(application, name, spec)
        except QueueExists as error:
            principals = spec.principals
            if principals is None or set(principals) != set(error.queue.principals):
                raise
            # The order of principals does not matter.
            spec = msgspec.structs.replace(spec, principals=error.queue.principals)
        return await self._store.catalogue.create_queue(application, name, spec)

    def make_claimable(self, spec: QueueSpec) -> QueueSpec:
        """Returns a spec with the first consistency level, from the default on, at which messages can be claimed.

        If claims are refused at all of them, the spec is unchanged.
        """
        for level in CONSISTENCIES[1:]:
            row = Queue(application="", name="", uid=0, qid=0, consistency=level)
            if self._store.claim_logs.claims_refusal(row) is None:
                return msgspec.structs.replace(spec, consistency=level)
        return spec

    def _check_dead_letter(self, name: str, spec: QueueSpec, longest: int | None) -> None:
        if not spec.dead_letter:
            return
        error = queue_name_error(spec.dead_letter, longest or self._limits.max_queue_name)
        if spec.dead_letter == name:
            error = "Names the queue itself; dead letters need another queue"
        if error is not None:
            raise InvalidRequest({"dead_letter": error})

    def _check_expiry(self, queue: Queue) -> None:
        """Raises ``InvalidRequest`` if the queue may not make dead letters of expired messages.

        For that it must allow claims, delete acknowledged messages, and not be a queue of dead letters itself.
        """
        if queue.on_expiry != "dead-letter":
            return
        problem = None
        if queue.on_ack != "delete":
            problem = f"needs on_ack=delete, and on_ack is {queue.on_ack}. Set both"
        elif holds_dead(queue.name):
            problem = f"cannot be set for a dead-letter queue such as {queue.name!r}. Leave it out"
        elif (refusal := self._store.claim_logs.claims_refusal(queue)) is not None:
            problem = f"needs a queue that can be claimed from: {refusal}"
        if problem is not None:
            raise InvalidRequest({"on_expiry": f"dead-letter {problem.removesuffix('.')}."})

    async def _list_matching(
        self, application: str, start: str, patterns: Sequence[str], limit: int
    ) -> tuple[list[Queue], str | None]:
        """Lists queues that match a pattern, with the start of the next page.

        If too many others had to be read, ends the page early, or raises ``InvalidRequest`` without any match.
        """
        matching: list[Queue] = []
        budget, page_size = self._max_filtered, limit + 1
        for prefix in shortest_prefixes(patterns):
            name = max(start, prefix)
            while name.startswith(prefix):
                if matching and budget < 0:
                    # Not after a full page: that would tell whether the next queues match.
                    return matching, matching[-1].name + "\0"
                if budget < 0:
                    raise InvalidRequest({"offset": TOO_FEW_MATCH_TEXT})
                page = await self._store.catalogue.list_queues(application, start=name, limit=page_size)
                for queue in page:
                    if not queue.name.startswith(prefix):
                        break
                    if any(matches(pattern, queue.name) for pattern in patterns):
                        if len(matching) == limit:
                            return matching, queue.name
                        matching.append(queue)
                if len(page) < page_size:
                    break
                name, budget, page_size = page[-1].name + "\0", budget - page_size, max(page_size, FILTERED_PAGE_SIZE)
        return matching, None

    async def list(
        self, application: str, *, start: str, limit: int, patterns: Sequence[str] = ("*",)
    ) -> tuple[list[Queue], str | None]:
        """Lists queues by name from ``start`` on, inclusive.

        Args:
            application: The owner.
            start: A name.
            limit: Max queues.
            patterns: Patterns of the queues' names, as for :func:`queuey.model.rights.matches`.

        Returns:
            The queues, and the start of the next page, or None on the last page. With patterns a page may be shorter
            than ``limit``, and the start of the next page may not be the name of a queue.

        Raises:
            InvalidRequest: The first match was not found among the queues that a listing may read.
        """
        if "*" not in patterns:
            return await self._list_matching(application, start, patterns, limit)
        queues = await self._store.catalogue.list_queues(application, start=start, limit=limit + 1)
        return queues[:limit], queues[limit].name if len(queues) > limit else None

    async def list_applications(self, *, start: str, limit: int) -> tuple[Sequence[str], str | None]:
        names = await self._store.applications.application_names(start=start, limit=limit + 1)
        return names[:limit], names[limit] if len(names) > limit else None

    async def count(self, queue: Queue) -> int | None:
        partitions = await self.inspect_partitions(queue)
        return None if partitions is None else sum(partition.count for partition in partitions)

    def access_unchecked(self, queue: Queue) -> QueueAccess:
        """Returns the access of the service itself, which may do everything."""
        return QueueAccess(self._store, queue)

    async def inspect_partitions(self, queue: Queue, *, rough: bool = False) -> Sequence[PartitionBounds] | None:
        try:
            inspect = partial(self._store.messages.inspect, rough=rough)
            return (await self.access_unchecked(queue).apply(inspect))[1]
        except QueueNotFound:
            return None

    async def update(
        self,
        access: QueueAccess,
        changes: QueueSpec | Callable[[Queue], QueueSpec],
        clear: Sequence[str] = (),
        *,
        longest: int | None = None,
    ) -> Queue:
        """Changes fields of a queue.

        Args:
            access: The queue.
            changes: The fields to change, or a function that returns them for the queue's row.
            clear: Names of the fields to reset.
            longest: Max characters of the name of the dead-letter queue; by default ``Limits.max_queue_name``.

        Raises:
            InvalidRequest: The queue would have fewer partitions (code ``InvalidUpdate``), or options conflict.
        """

        async def update(queue: Queue) -> Queue:
            spec = changes(queue) if callable(changes) else changes
            self._check_dead_letter(queue.name, spec, longest)
            self._check_expiry(msgspec.structs.replace(queue, **catalogue_rows.find_changed(queue, spec, clear)))
            return await self._store.catalogue.update_queue(queue, spec, clear=clear)

        return await access.apply(update)

    async def delete(self, access: QueueAccess) -> None:
        await access.apply(self._store.catalogue.delete_queue)

    async def purge(self, access: QueueAccess) -> None:
        await access.apply(self._store.catalogue.purge_queue)

    async def describe(self, access: QueueAccess) -> api.QueueInfo:
        store = self._store

        async def describe(queue: Queue) -> api.QueueInfo:
            horizon, partitions = await store.messages.inspect(queue)
            in_force = {
                "ttl": self._limits.default_ttl if queue.ttl is None else queue.ttl,
                "read_delay": store.read_delay(queue),
                "backoff": queue.backoff or Backoff(),
                "dead_letter": queue_for(queue.name, queue.dead_letter),
            }
            return api.QueueInfo(
                **{name: getattr(queue, name) for name in ChosenOptions.__struct_fields__} | in_force,
                name=queue.name,
                application=queue.application,
                principals=tuple(map(format_principal, queue.principals)),
                created=queue.created,
                store=store.name,
                guarantee=store.guarantee(queue),
                acknowledgement=await store.acknowledgement(),
                horizon=ids.to_hex((horizon, ids.LOW_MIN)),
                count=sum(info.count for info in partitions),
                exact=all(info.exact for info in partitions),
                partition_info={
                    info.partition: api.PartitionInfo(
                        count=info.count,
                        exact=info.exact,
                        oldest=None if info.oldest is None else ids.to_hex(info.oldest),
                        newest=None if info.newest is None else ids.to_hex(info.newest),
                    )
                    for info in partitions
                },
            )

        return await access.apply(describe)
