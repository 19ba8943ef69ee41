"""Stands between the service and its store, so that a test can fail, hold or watch calls of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from queuey.storage import Store


class InterposedStore:
    """Passes everything on to a store, except what a test puts in the place of a method.

    Args:
        store: The real one.

    Attributes:
        waits_for_network, ids_follow_clocks: What the service is told instead of the store's own word.
    """

    def __init__(self, store: Store) -> None:
        self.waits_for_network = store.waits_for_network
        self.ids_follow_clocks = store.ids_follow_clocks
        self._store = store
        self._instead: dict[str, Callable[..., Any]] = {}

    @property
    def store(self) -> Store:
        """The store to hand to the service."""
        return cast("Store", self)

    def instead(self, method: Callable[..., Any], by: Callable[..., Any]) -> None:
        """Calls ``by`` in the place of a method of :class:`Store`, from now on: ``instead(Store.append, fail)``."""
        name = method.__name__
        assert getattr(Store, name) is method
        self._instead[name] = by

    def before(self, method: Callable[..., Any], first: Callable[[], object]) -> None:
        """Calls ``first`` each time before a method of :class:`Store` does its work."""
        real = getattr(self._store, method.__name__)

        def both(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what the method returns
            first()
            return real(*args, **kwargs)

        self.instead(method, both)

    def passing(self, method: Callable[..., Any]) -> None:
        """Calls the method itself again."""
        del self._instead[method.__name__]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of the store
        return self._instead.get(name) or getattr(self._store, name)
