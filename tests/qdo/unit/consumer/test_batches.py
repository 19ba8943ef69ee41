"""What the bodies of an answer weigh."""

from __future__ import annotations

from qdo.consumer.fetch_buffer import weigh
from tests.qdo.unit.samples import message


def test_bodies_of_all_kinds_are_weighed() -> None:
    """Text, bytes and JSON count by their length; a number too large for packing is no obstacle."""
    light = weigh([message(1, body="x" * 10)])
    assert weigh([message(1, body="x" * 1010)]) - light in range(1000, 1010)
    assert weigh([message(1, body=b"x" * 100_000)]) >= 100_000
    assert weigh([message(1, body={"list": ["x" * 100] * 10})]) >= 1000
    assert weigh([message(1, body=10**500)]) >= 500
