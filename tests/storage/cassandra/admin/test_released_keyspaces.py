"""Tests of keyspaces that recorded versions filled."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.backends import CassandraLocation, Clock
from tests.releases import keyspaces, recording
from tests.releases.compared import differences


@pytest.mark.parametrize("folder", recording.folders(), ids=[folder.name for folder in recording.folders()])
def test_rows(folder: Path, contract_keyspace: str) -> None:
    """Every row of a recorded version's keyspace is read correctly by the present version."""
    released = keyspaces.read(folder)
    location = CassandraLocation(contract_keyspace)
    location.make_fresh()
    keyspaces.load(contract_keyspace, released.tables)
    with closing(location.open(Clock(released.clock))) as store:
        assert differences(released.rows, recording.rows(store)) == []
