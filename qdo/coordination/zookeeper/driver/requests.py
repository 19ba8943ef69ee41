"""Transactions in the form of kazoo."""

from __future__ import annotations

from typing import Any

from qdo.coordination.tree import Change, Create, Delete, SetData


def send(client: Any, change: Change) -> Any:  # noqa: ANN401 - kazoo has no types
    """Sends operations that are done all or not at all; returns kazoo's answer to come."""
    transaction = client.transaction()
    for operation in change:
        match operation:
            case Create(path, data, ephemeral, sequence):
                transaction.create(path, data, ephemeral=ephemeral, sequence=sequence)
            case SetData(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path):
                transaction.delete(path)
            case _:
                transaction.check(operation.path, operation.version)
    return transaction.commit_async()
