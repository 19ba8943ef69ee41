"""Claims where two data centres are cut off from each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.claiming.run import ClaimRun
from tests.faults.claiming.test_claims import verify
from tests.faults.nemesis import Act, Span, Step

if TYPE_CHECKING:
    from tests.faults.centres import Centres

Record = Callable[[str, object], None]


@pytest.mark.slow
def test_cut_off(tmp_path: Path, record_property: Record, centres: Centres, centres_keyspace: str) -> None:
    """A web process in each data centre, and a queue that every write reaches both of: nothing is handed out twice."""
    from tests.faults.cluster import store_between  # noqa: PLC0415 - only who uses it needs the driver

    store = store_between(centres, centres_keyspace, Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    acts: list[Act] = [(Step("cut", "link", 4.0),), (Step("cut", "link", 2.0), Step("pause", "web-1", 5.0, after=1.0))]
    result = ClaimRun(tmp_path, store, seed=1, webs=2, consistency="very_strong").run(acts, rest=2.0)
    verify(result, record_property, {"posted": 25, "acknowledgements done": 25, "faults": 3})
