"""What a start prints about facades, and when it refuses them."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.cli.operations.serving import Start, add_extension_notes
from queuey.facades import FacadesExtension
from queuey.facades.settings import EmodbFacade, Facades, MqFacade, RqmsFacade
from queuey.model.messages import Acknowledgement
from queuey.settings import Settings
from queuey.terminal.output import BAD_STORE, Failed

SYNCED = Acknowledgement("fsync", "on a disk")
EARLY = Acknowledgement("memory", "in the memory of two nodes")


def collect_notes(host: str = "127.0.0.1", promise: Acknowledgement | None = SYNCED, **fields: Any) -> str:  # noqa: ANN401
    settings = Settings(host=host, extensions=(FacadesExtension(facades=Facades(app="shop", **fields)),))
    return "\n".join(add_extension_notes(settings, Start("facts", ("first",), promise)).notes)


@pytest.mark.parametrize(
    ("host", "warned"), [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("web-1", True)]
)
def test_hosts_that_others_reach(host: str, warned: bool) -> None:  # noqa: FBT001 - a column of the table
    """Facades that ask for no key are warned of by name if other machines can reach them."""
    notes = collect_notes(host, mq=MqFacade(prefix="/mq"), rqms=RqmsFacade(prefix="/rqms"))
    assert (f"reaches {host} can use the facade mq and rqms: no key" in notes) == warned
    assert notes.startswith("first\nThe facade mq serves queues of shop at /mq.")
    assert ("can use the facade rqms" in collect_notes(host, only="rqms")) == warned
    assert "no key" not in collect_notes(host, emodb=EmodbFacade(beside=True))


@pytest.mark.parametrize(("promise", "reason"), [(EARLY, "in the memory of two nodes"), (None, "cannot be reached")])
def test_stores_that_answer_early(promise: Acknowledgement | None, reason: str) -> None:
    """MQ is refused on a store that answers before a message is on a disk, or cannot say, unless that is allowed.

    Cassandra answers so unless its nodes are told otherwise. The other protocols promise nothing.
    """
    with pytest.raises(Failed) as refused:
        collect_notes(promise=promise, mq=MqFacade(prefix="/mq"))
    assert refused.value.exit_code == BAD_STORE
    assert reason in str(refused.value)
    assert "unsynced = true under [facades.mq]" in str(refused.value)
    assert reason in collect_notes(promise=promise, mq=MqFacade(prefix="/mq", unsynced=True))
    assert reason not in collect_notes(promise=promise, only="rqms")
    assert reason not in collect_notes(mq=MqFacade(prefix="/mq"))
