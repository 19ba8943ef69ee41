"""A real 0.1.0 next to a group with members (O9)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.crashes.conftest import APP, KEY, make_account
from tests.faults.groups.by_hand import FIRST_ID, MEMBERS, OFFSETS, QUEUE, SECOND_ID, Member, ask, read_offsets
from tests.faults.webs import Program
from tests.faults.wire import Account, Line, Web
from tests.servers import keyspaces
from tests.servers.served import Served
from tests.waiting import until

pytestmark = pytest.mark.slow

ZEROS = "00000000000010008080808080808080"


def test_beside_the_release(tmp_path: Path, contract_keyspace: str, release: Program) -> None:
    """The release reads the offsets of groups with members, and refuses requests of members only."""
    from queuey.storage import cassandra  # noqa: PLC0415 - most tests here do not need the driver

    keyspaces.empty(contract_keyspace)
    with closing(cassandra.open_store(contract_keyspace)) as opened:
        make_account(opened)
    store, account = ["--store", contract_keyspace], Account(APP, KEY)
    with (
        Served(tmp_path / "old", store, variables=release.variables, program=release.words) as old,
        Served(tmp_path / "new", store) as new,
        closing(Line(Web("old", old.port), account)) as former,
        closing(Line(Web("new", new.port), account)) as present,
    ):
        assert ask(present, "POST", "", {"queue_name": QUEUE, "partitions": 2}).status == 201
        assert ask(former, "POST", MEMBERS, {"queues": [QUEUE]}).status == 404
        member = Member(present, 60)
        until(lambda: member.owns(2), every=0.2)
        assert (read_offsets(present), read_offsets(former)) == ([None, None], [ZEROS, ZEROS])

        assert member.commit(FIRST_ID, former).status == 400
        assert read_offsets(present) == [None, None]
        assert member.commit(FIRST_ID).status == 200
        assert member.send_heartbeat(former).status == 404
        assert read_offsets(former) == [FIRST_ID, ZEROS]

        plain = {"partitions": {"2": {"offset": SECOND_ID}}}
        refused = ask(present, "PUT", OFFSETS, plain)
        assert (refused.status, refused.content["code"]) == (409, "GroupActive")
        assert ask(former, "PUT", OFFSETS, plain).status == 200
        assert read_offsets(present) == [FIRST_ID, SECOND_ID]
        before = dict(member.owned)
        assert member.owns(2)
        assert member.owned == before

        assert ask(former, "DELETE", OFFSETS).status in {200, 204}
        late = member.commit(FIRST_ID)
        assert (late.status, late.content["code"]) == (409, "NotOwner")
        member.owned.clear()  # it drops lost partitions and gets them again: no other member took them
        until(lambda: member.owns(2), every=0.2)
        assert member.owned == before
        assert set(member.taken_offsets.values()) == {(None, "new")}
        assert member.commit(SECOND_ID).status == 200
        assert read_offsets(former) == [SECOND_ID, ZEROS]
