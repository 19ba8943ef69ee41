"""What can be chosen about a consumer."""

from __future__ import annotations

from typing import Any

import pytest

from qdo.consumer.settings import ConsumerSettings
from qdo.errors import InvalidArgument


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", "now"),
        ("page", 0),
        ("page", 1001),
        ("prefetch_messages", 0),
        ("prefetch_bytes", 0),
        ("wait", 0),
        ("wait", 20.5),
        ("wait", float("nan")),
        ("discover", 0),
        ("settle", -1),
        ("grace", -1),
        ("revoke_timeout", 0),
        ("commit_every", 0),
    ],
)
def test_what_cannot_work_is_refused_by_name(name: str, value: Any) -> None:  # noqa: ANN401 - any value
    """A setting out of its bounds never becomes a consumer that spins or stands still."""
    with pytest.raises(InvalidArgument, match=name):
        ConsumerSettings(**{name: value})


def test_settings_are_usable_as_they_come() -> None:
    """Nothing has to be chosen, and the extremes can be."""
    assert ConsumerSettings().start == "earliest"
    assert ConsumerSettings(page=1, prefetch_messages=1, prefetch_bytes=1, settle=0, commit_every=0.1).page == 1
