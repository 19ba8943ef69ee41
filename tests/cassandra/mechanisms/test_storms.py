"""Whatever happens at once: the promises hold."""

from __future__ import annotations

import pytest

from tests.cassandra.mechanisms import storm
from tests.cassandra.scene import Scene

FEW = 8
MANY = 200


@pytest.mark.parametrize("seed", range(FEW))
def test_promises_hold(scene: Scene, seed: int) -> None:
    """Acknowledged messages are shown once and stay; those that were not written are never shown."""
    assert storm.play(scene, seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, MANY))
def test_promises_hold_for_long(scene: Scene, seed: int) -> None:
    """The same, many times over."""
    assert storm.play(scene, seed) == []
