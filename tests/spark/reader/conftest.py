"""A store that the test and the readers share, and options for a reader of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuey.spark import open_stores
from queuey.storage import Store
from tests.replacing import replace
from tests.spark.reader.micro_batches import Options

PLACE = {"data": "/nowhere"}


@pytest.fixture
def store(store: Store) -> Iterator[Store]:
    """The store on a clock, which all readers use, whatever their options."""
    with replace(open_stores.opened, lambda _options: store):
        yield store


@pytest.fixture
def options() -> Options:
    """Returns options of a read of queue ``a`` from its beginning, changed by arguments."""

    def make(**more: str) -> dict[str, str]:
        chosen = {} if {"assign", "subscribePattern"} & more.keys() else {"subscribe": "a"}
        return {**PLACE, **chosen, "startingOffsets": "earliest", **more}

    return make
