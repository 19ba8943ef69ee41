"""Use cases about queues themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

import msgspec

from queuey import ids
from queuey.access import format_principal, matches
from queuey.api import queues as api
from queuey.deadletters import SUFFIX, holds_dead, queue_for
from queuey.errors import ApplicationNotFound, InvalidRequest, QueueExists, QueueNotFound
from queuey.messages import Backoff, ChosenOptions, PartitionInfo, Queue, QueueSpec
from queuey.queue_options import CONSISTENCIES
from queuey.service.core import Core
from queuey.service.limits import Limits
from queuey.service.queue_access import QueueAccess
from queuey.storage import Store, bridge, catalogue_rows

_CONTROL = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0))))


def queue_name_error(name: str, longest: int) -> str | None:
    """Returns the error of a new queue's name, or None.

    A queue must be reachable under ``/v1/{app}/{queue}``, and names that begin with an underscore are kept for the
    API's own resources. A queue of any name has room for its dead letters, and those for theirs: their endings do not
    count.
    """
    if not name:
        return "Required"
    if len(name.removesuffix(SUFFIX).removesuffix(SUFFIX)) > longest:
        return f"Longer than maximum length {longest}"
    if "/" in name or not _CONTROL.isdisjoint(name) or name in {".", ".."} or name[0] == "_":
        return "A queue name has no slash and no control character, is not . or .. and does not begin with _"
    return None


MAX_FILTERED = 100_000
"""Max queues that one listing reads to find those that match."""
PAGE_FILTERED = 1000
"""Number of queues that it reads at a time."""
TOO_FEW_MATCH = (
    "Too few of the application's queues match the patterns of the credential to find them here. "
    "List with a credential whose patterns begin with text, such as orders-*."
)


def prefixes(patterns: Sequence[str]) -> list[str]:
    """Returns the prefixes of the names that match, sorted; none of them begins with another."""
    found: list[str] = []
    for prefix in sorted(pattern.partition("*")[0] for pattern in patterns):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


class Queues:
    def __init__(self, store: Store, limits: Limits, core: Core, *, max_filtered: int = MAX_FILTERED) -> None:
        self._store = store
        self._limits = limits
        self._core = core
        self._max_filtered = max_filtered

    def require_application(self, application: str) -> None:
        if not bridge.run(self._store.applications.has_application(application)):
            raise ApplicationNotFound(application)

    def create(
        self, application: str, name: str | None, spec: QueueSpec, *, longest: int | None = None
    ) -> tuple[Queue, bool]:
        """Creates a queue, or finds the one that has every field given; returns it, and whether it is new.

        Args:
            application: The owner.
            name: None: a random one.
            spec: Fields that are not given take their defaults.
            longest: Max characters of the name; None: the usual number.

        Raises:
            InvalidRequest: The name cannot be used, or options do not go together.
            QueueExists: It exists with other fields.
        """
        if name is None:
            name = uuid4().hex
        elif (error := queue_name_error(name, longest or self._limits.max_queue_name)) is not None:
            raise InvalidRequest({"queue_name": error})
        self._check(name, spec, longest)
        self._check_expiry(Queue(application=application, name=name, uid=0, qid=0, **catalogue_rows.of_new(spec)))
        try:
            return bridge.run(self._store.catalogue.create_queue(application, name, spec))
        except QueueExists as error:
            given = spec.principals
            if given is None or set(given) != set(error.queue.principals):
                raise
            # The same principals in another order are the same principals.
            spec = msgspec.structs.replace(spec, principals=error.queue.principals)
        return bridge.run(self._store.catalogue.create_queue(application, name, spec))

    def claimable(self, spec: QueueSpec) -> QueueSpec:
        """Returns a spec whose messages can be claimed: at the first level, from the usual one on, that allows it."""
        for level in CONSISTENCIES[1:]:
            row = Queue(application="", name="", uid=0, qid=0, consistency=level)
            if self._store.claim_logs.claims_refusal(row) is None:
                return msgspec.structs.replace(spec, consistency=level)
        return spec

    def _check(self, name: str, spec: QueueSpec, longest: int | None) -> None:
        """Refuses a queue of dead letters that cannot be named (InvalidRequest)."""
        if not spec.dead_letter:
            return
        error = queue_name_error(spec.dead_letter, longest or self._limits.max_queue_name)
        if spec.dead_letter == name:
            error = "Names the queue itself; dead letters need another queue"
        if error is not None:
            raise InvalidRequest({"dead_letter": error})

    def _check_expiry(self, queue: Queue) -> None:
        """Refuses a queue whose expired messages cannot become dead letters (InvalidRequest)."""
        if queue.on_expiry != "dead-letter":
            return
        problem = None
        if queue.on_ack != "delete":
            problem = f"needs on_ack=delete, and on_ack is {queue.on_ack}. Set both"
        elif holds_dead(queue.name):
            problem = f"is not for queues of dead letters, such as {queue.name!r}. Leave it out"
        elif (refusal := self._store.claim_logs.claims_refusal(queue)) is not None:
            problem = f"needs a queue that can be claimed from: {refusal}"
        if problem is not None:
            raise InvalidRequest({"on_expiry": f"dead-letter {problem.removesuffix('.')}."})

    def _matching(
        self, application: str, start: str, patterns: Sequence[str], limit: int
    ) -> tuple[list[Queue], str | None]:
        found: list[Queue] = []
        left, some = self._max_filtered, limit + 1
        for prefix in prefixes(patterns):
            at = max(start, prefix)
            while at.startswith(prefix):
                if len(found) == limit or (found and left < 0):
                    # Looking for the next one could mean reading thousands that do not match.
                    return found, found[-1].name + "\0"
                if left < 0:
                    raise InvalidRequest({"offset": TOO_FEW_MATCH})
                page = bridge.run(self._store.catalogue.list_queues(application, start=at, limit=some))
                for queue in page:
                    if not queue.name.startswith(prefix):
                        break
                    if any(matches(pattern, queue.name) for pattern in patterns):
                        if len(found) == limit:
                            return found, queue.name
                        found.append(queue)
                if len(page) < some:
                    break
                at, left, some = page[-1].name + "\0", left - some, max(some, PAGE_FILTERED)
        return found, None

    def list(
        self, application: str, *, start: str, limit: int, patterns: Sequence[str] = ("*",)
    ) -> tuple[list[Queue], str | None]:
        """Lists queues by name from ``start`` on, inclusive.

        Args:
            application: The owner.
            start: A name.
            limit: Max queues.
            patterns: Of their names, as for :func:`queuey.access.matches`.

        Returns:
            Queues, and the name at which the next page starts, None at the end. With patterns a page may be shorter,
            and there need not be a queue where the next one starts.

        Raises:
            InvalidRequest: Too many queues would have to be read to find the first match.
        """
        if "*" not in patterns:
            return self._matching(application, start, patterns, limit)
        found = bridge.run(self._store.catalogue.list_queues(application, start=start, limit=limit + 1))
        return found[:limit], found[limit].name if len(found) > limit else None

    def applications(self, *, start: str, limit: int) -> tuple[Sequence[str], str | None]:
        """Lists applications by name in the same way."""
        names = bridge.run(self._store.applications.application_names(start=start, limit=limit + 1))
        return names[:limit], names[limit] if len(names) > limit else None

    def count(self, queue: Queue) -> int | None:
        """Returns how many messages a listed queue has, None if it has gone meanwhile."""
        partitions = self.partitions(queue)
        return None if partitions is None else sum(partition.count for partition in partitions)

    def partitions(self, queue: Queue, *, rough: bool = False) -> Sequence[PartitionInfo] | None:
        """Returns the partitions of a listed queue, None if it has gone meanwhile."""
        try:
            access = QueueAccess(self._core, self._store, queue, lambda _: None)
            return access.use(lambda row: bridge.run(self._store.messages.inspect(row, rough=rough)))[1]
        except QueueNotFound:
            return None

    def update(
        self,
        access: QueueAccess,
        changes: QueueSpec | Callable[[Queue], QueueSpec],
        clear: Sequence[str] = (),
        *,
        longest: int | None = None,
    ) -> Queue:
        """Changes the given fields, those of ``changes`` or of its result for a row, and resets those of ``clear``.

        The name of a queue for dead letters may have ``longest`` characters, as at its creation.

        Raises:
            InvalidRequest: It would have fewer partitions (code ``InvalidUpdate``), or options that do not go together.
        """

        def update(queue: Queue) -> Queue:
            spec = changes(queue) if callable(changes) else changes
            self._check(queue.name, spec, longest)
            self._check_expiry(msgspec.structs.replace(queue, **catalogue_rows.changed(queue, spec, clear)))
            return bridge.run(self._store.catalogue.update_queue(queue, spec, clear=clear))

        return access.use(update)

    def delete(self, access: QueueAccess) -> None:
        access.use(lambda queue: bridge.run(self._store.catalogue.delete_queue(queue)))

    def purge(self, access: QueueAccess) -> None:
        access.use(lambda queue: bridge.run(self._store.catalogue.purge_queue(queue)))

    def describe(self, access: QueueAccess) -> api.QueueInfo:
        store = self._store

        def describe(queue: Queue) -> api.QueueInfo:
            horizon, partitions = bridge.run(store.messages.inspect(queue))
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
                acknowledgement=bridge.run(store.acknowledgement()),
                horizon=ids.to_hex((horizon, ids.LOW_MIN)),
                count=sum(part.count for part in partitions),
                exact=all(part.exact for part in partitions),
                partition_info={
                    part.partition: api.PartitionInfo(
                        count=part.count,
                        exact=part.exact,
                        oldest=None if part.oldest is None else ids.to_hex(part.oldest),
                        newest=None if part.newest is None else ids.to_hex(part.newest),
                    )
                    for part in partitions
                },
            )

        return access.use(describe)
