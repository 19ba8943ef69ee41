"""Open stores in Spark's processes: one for each process and set of options.

Stores are never pickled: plans and checkpoints hold :class:`~queuey.spark.options.StoreOptions`, with names of secrets
only, and each Python worker opens its own store when it first needs it.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from queuey import settings as table
from queuey.app import opening
from queuey.model.errors import QueueNotFound, SettingsError
from queuey.model.messages import Queue
from queuey.queues.queues import queue_name_error
from queuey.runtime.limits import Limits
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Selection, StoreOptions
from queuey.storage import Store, bridge

PAGE_SIZE = 1000
_MAX_SHOWN = 10

_open_stores: dict[tuple[int, StoreOptions], Store] = {}
_lock = threading.Lock()


def opened(options: StoreOptions) -> Store:
    """Returns this process's store. The first call opens it, and it is closed when the process ends.

    Raises:
        OptionError: The store does not exist.
        SettingsError: The settings are not valid.
        StoreUnavailable: The store does not answer.
    """
    key = (os.getpid(), options)
    with _lock:
        if key not in _open_stores:
            _open_stores[key] = _open_existing(options)
        return _open_stores[key]


def close_all() -> None:
    with _lock:
        for key in [key for key in _open_stores if key[0] == os.getpid()]:
            _open_stores.pop(key).close()


def application(store: Store, options: StoreOptions) -> str:
    """Returns the application that owns the queues: the one in the options, else the only one of the store.

    Raises:
        OptionError: The store does not have the application, or has several and the options name none.
    """
    if options.application is not None:
        if not bridge.run(store.applications.has_application(options.application)):
            raise OptionError(
                f"There is no application {options.application!r} in the store. It has {_describe_applications(store)}."
            )
        return options.application
    names = bridge.run(store.applications.application_names(limit=2))
    if len(names) != 1:
        raise OptionError(
            f"Option application (--app) is needed unless the store has exactly one. "
            f"It has {_describe_applications(store)}."
        )
    return names[0]


def _describe_applications(store: Store) -> str:
    names = bridge.run(store.applications.application_names(limit=_MAX_SHOWN + 1))
    if not names:
        return "none; queuey app create makes one"
    if len(names) > _MAX_SHOWN:
        return f"more than {_MAX_SHOWN}: {', '.join(names[:_MAX_SHOWN])}, …"
    return f"{len(names)}: {', '.join(names)}"


def find_queue(store: Store, options: StoreOptions, name: str) -> Queue:
    """Returns the present state of a queue.

    Raises:
        QueueNotFound: The queue does not exist.
    """
    return _read_queue(store, application(store, options), name)


def find_existing_queue(store: Store, options: StoreOptions, name: str, qid: int | None = None) -> Queue | None:
    try:
        present = find_queue(store, options, name)
    except QueueNotFound:
        return None
    return present if qid in {None, present.qid} else None


def find_selected_queues(options: StoreOptions, selection: Selection, *, page: int = PAGE_SIZE) -> list[Queue]:
    """Returns the selected queues in their present state, sorted by name. A pattern has to match a whole name.

    Args:
        options: The store.
        selection: The queues.
        page: Max queues in one listing.

    Raises:
        QueueNotFound: A named queue does not exist. A pattern that matches nothing is not an error.
    """
    store = opened(options)
    owner = application(store, options)
    if isinstance(selection, Pattern):
        regex = re.compile(selection.regex)
        queues = [
            queue
            for listed in list_queue_pages(store, owner, page=page)
            for queue in listed
            if regex.fullmatch(queue.name)
        ]
    else:
        names = [name for name, _ in selection.partitions] if isinstance(selection, Assign) else selection.names
        queues = [_read_queue(store, owner, name) for name in names]
    return sorted(queues, key=lambda queue: queue.name)


def list_queue_pages(store: Store, owner: str, start: str = "", *, page: int) -> Iterator[list[Queue]]:
    more = True
    while more:
        listed = bridge.run(store.catalogue.list_queues(owner, start=start, limit=page))
        if listed:
            yield listed
            start = listed[-1].name + "\0"
        more = len(listed) == page


def read_settings(options: StoreOptions) -> table.Settings:
    """Returns the effective settings in this process.

    Raises:
        SettingsError: A setting is not valid; the message names the option.
    """
    config = None if options.config is None else Path(options.config)
    try:
        loaded = table.load(dict(options.settings), os.environ, config=config)
        opening.check_store_settings(loaded)
    except SettingsError as error:
        # The texts name options of the command line; replace them with options of Spark.
        names = {line.option: line.name for line in table.table()}
        text = re.sub(r"from (--[a-z-]+)", lambda found: f"from option {names[found[1]]}", str(error))
        raise SettingsError(text) from error
    return loaded.settings


def check_name(name: str) -> None:
    """Checks the name of a new queue.

    Raises:
        OptionError: The service would not accept the name, so the queue could not be reached through it.
    """
    error = queue_name_error(name, Limits().max_queue_name)
    if error is not None:
        raise OptionError(f"{name!r} cannot be the name of a queue: {error[0].lower()}{error[1:]}.")


def _open_existing(options: StoreOptions) -> Store:
    settings = read_settings(options)
    remote = opening.is_cassandra(settings)
    if not remote and not opening.store_file_exists(settings):
        raise OptionError(f"There is no store at {settings.data}: set option store or data.")
    store = opening.open_store(settings, jobs=False)
    try:
        if remote:
            opening.retry_until_available(lambda: bridge.run(store.applications.application_names()), settings.deadline)
    except BaseException:
        store.close()
        raise
    return store


def _read_queue(store: Store, owner: str, name: str) -> Queue:
    try:
        return bridge.run(store.catalogue.queue(owner, name, fresh=True))
    except QueueNotFound as error:
        raise QueueNotFound(name, f"application {owner!r} has no queue {name!r}") from error


atexit.register(close_all)
