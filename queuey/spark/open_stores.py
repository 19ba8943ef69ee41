"""Open stores in Spark's processes: one for each process and set of options, made where work is done.

Nothing here is ever pickled: plans and checkpoints hold :class:`~queuey.spark.options.StoreOptions`, which only name
secrets, and each Python worker opens its own store when it first needs one.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from queuey import settings as table
from queuey.errors import QueueNotFound, SettingsError
from queuey.messages import Queue
from queuey.service.limits import Limits
from queuey.service.queues import queue_name_error
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Selection, StoreOptions
from queuey.storage import Store, bridge, opening

PAGE_SIZE = 1000
"""Max queues in a listing."""
_SHOWN = 10
"""Max applications in an error."""

_open: dict[tuple[int, StoreOptions], Store] = {}
_lock = threading.Lock()


def opened(options: StoreOptions) -> Store:
    """Returns this process's store; the first call opens it, and it closes with the process.

    Raises:
        OptionError: There is no store of that name.
        SettingsError: The settings cannot be used.
        StoreUnavailable: The store does not answer.
    """
    key = (os.getpid(), options)
    with _lock:
        if key not in _open:
            _open[key] = _opened(options)
        return _open[key]


def close_all() -> None:
    """Closes the stores of this process; a later call opens them again."""
    with _lock:
        for key in [key for key in _open if key[0] == os.getpid()]:
            _open.pop(key).close()


def application(store: Store, options: StoreOptions) -> str:
    """Returns whose queues are meant.

    Raises:
        OptionError: The store has no such application, or several and none is named.
    """
    if options.application is not None:
        if not bridge.run(store.applications.has_application(options.application)):
            raise OptionError(f"There is no application {options.application!r} in the store. It has {_named(store)}.")
        return options.application
    names = bridge.run(store.applications.application_names(limit=2))
    if len(names) != 1:
        raise OptionError(
            f"Option application (--app) is needed unless the store has exactly one. It has {_named(store)}."
        )
    return names[0]


def _named(store: Store) -> str:
    names = bridge.run(store.applications.application_names(limit=_SHOWN + 1))
    if not names:
        return "none; queuey app create makes one"
    if len(names) > _SHOWN:
        return f"more than {_SHOWN}: {', '.join(names[:_SHOWN])}, …"
    return f"{len(names)}: {', '.join(names)}"


def queue(store: Store, options: StoreOptions, name: str) -> Queue:
    """Returns the queue as it is now.

    Raises:
        QueueNotFound: No such queue.
    """
    return _queue(store, application(store, options), name)


def existing(store: Store, options: StoreOptions, name: str, qid: int | None = None) -> Queue | None:
    """Returns the queue as it is now; None: it is not there, or with a ``qid`` that its messages are others."""
    try:
        found = queue(store, options, name)
    except QueueNotFound:
        return None
    return found if qid in {None, found.qid} else None


def selected(options: StoreOptions, selection: Selection, *, page: int = PAGE_SIZE) -> list[Queue]:
    """Returns the queues that a read is about, as they are now, by name.

    Args:
        options: The store.
        selection: Which queues.
        page: How many in one listing.

    Raises:
        QueueNotFound: One that is named does not exist. A pattern may match none.
    """
    store = opened(options)
    owner = application(store, options)
    if isinstance(selection, Pattern):
        regex = re.compile(selection.regex)
        found = [
            queue for part in queue_pages(store, owner, page=page) for queue in part if regex.fullmatch(queue.name)
        ]
    else:
        names = [name for name, _ in selection.partitions] if isinstance(selection, Assign) else selection.names
        found = [_queue(store, owner, name) for name in names]
    return sorted(found, key=lambda queue: queue.name)


def queue_pages(store: Store, owner: str, start: str = "", *, page: int) -> Iterator[list[Queue]]:
    """Lists an application's queues by name, from a name on, so many at a time."""
    more = True
    while more:
        listed = bridge.run(store.catalogue.list_queues(owner, start=start, limit=page))
        if listed:
            yield listed
            start = listed[-1].name + "\0"
        more = len(listed) == page


def settings_of(options: StoreOptions) -> table.Settings:
    """Returns the settings in force in this process.

    Raises:
        SettingsError: They cannot be used; the message names the option.
    """
    config = None if options.config is None else Path(options.config)
    try:
        loaded = table.load(dict(options.settings), os.environ, config=config)
        opening.check(loaded)
    except SettingsError as error:
        # The texts name an option of the command line where it is one of Spark's.
        names = {line.option: line.name for line in table.table()}
        text = re.sub(r"from (--[a-z-]+)", lambda found: f"from option {names[found[1]]}", str(error))
        raise SettingsError(text) from error
    return loaded.settings


def check_name(name: str) -> None:
    """Refuses names of new queues that the service would refuse, because they could not be reached through it.

    Raises:
        OptionError: See above.
    """
    error = queue_name_error(name, Limits().max_queue_name)
    if error is not None:
        raise OptionError(f"{name!r} cannot be the name of a queue: {error[0].lower()}{error[1:]}.")


def _opened(options: StoreOptions) -> Store:
    settings = settings_of(options)
    remote = opening.is_cassandra(settings)
    if not remote and not opening.is_made(settings):
        raise OptionError(f"There is no store at {settings.data}: options store and data say where it is.")
    store = opening.open_store(settings, jobs=False)
    try:
        if remote:
            opening.patiently(lambda: bridge.run(store.applications.application_names()), settings.deadline)
    except BaseException:
        store.close()
        raise
    return store


def _queue(store: Store, owner: str, name: str) -> Queue:
    try:
        return bridge.run(store.catalogue.queue(owner, name, fresh=True))
    except QueueNotFound as error:
        raise QueueNotFound(name, f"application {owner!r} has no queue {name!r}") from error


atexit.register(close_all)
