"""A group belongs to one data centre. Another one names it, and takes the group over by a command."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.groups.by_hand import FIRST_ID, GROUP, MEMBERS, QUEUE, REQUEST_TIMEOUT, SECOND_ID, Member, ask
from tests.faults.webs import Span, Webs
from tests.faults.wire import Line, Unanswered, make_queue
from tests.servers.served import environment
from tests.waiting import until

if TYPE_CHECKING:
    from tests.faults.centres import Centres

pytestmark = pytest.mark.slow


def test_moved(tmp_path: Path, centres: Centres) -> None:
    """A group is served where it began, by the other data centre after a move, and never by both."""
    from queuey.storage.cassandra.cluster import Driver  # noqa: PLC0415 - likewise
    from queuey.storage.cassandra.cluster.options import parse_url  # noqa: PLC0415 - likewise
    from tests.faults.centres import NAMES, make_keyspace_on  # noqa: PLC0415 - most tests here do not need the driver
    from tests.faults.cluster import APPLICATION, prepare_store_between  # noqa: PLC0415 - likewise
    from tests.faults.test_two_centres import options_of, replicate, stores_on  # noqa: PLC0415 - likewise

    url, (east_name, west_name) = make_keyspace_on(centres), NAMES
    store = prepare_store_between(centres, url, Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    webs = Webs(tmp_path, store, 2)
    with stores_on(url), webs.serving():
        lines = [Line(web, webs.account) for web in webs.addresses]
        with closing(lines[0]) as east, closing(lines[1]) as west:
            make_queue(webs.addresses[0], webs.account, queue_name=QUEUE, partitions=2, consistency="very_strong")
            former = Member(east, 6)
            until(lambda: former.owns(2), every=0.3)
            assert former.commit(FIRST_ID).status == 200
            for refused in (ask(west, "POST", MEMBERS, {"queues": [QUEUE]}), former.send_heartbeat(west)):
                assert (refused.status, refused.content["code"]) == (409, "GroupElsewhere")
                assert east_name in refused.content["detail"]
            centres.link.cut()
            driver = Driver(parse_url(url), options_of(west_name))
            with closing(driver):
                assert driver.ready(REQUEST_TIMEOUT), driver.problem()
                replicate(driver, f"'{west_name}': 1")
            command = [sys.executable, "-m", "queuey", "group", "move", APPLICATION, GROUP]
            command += ["--to", west_name, "--store", url]
            variables = environment(QUEUEY_CASSANDRA_LOCAL_DC=west_name, QUEUEY_CONSISTENCY_CATALOGUE=store.options[-1])
            until(lambda: subprocess.run(command, env=variables, check=False).returncode == 0, every=1.0)
            present = Member(west, 6)
            until(lambda: present.owns(2), every=0.3)
            assert present.taken_offsets == {"1": (FIRST_ID, "lost"), "2": (None, "lost")}
            assert present.commit(SECOND_ID).status == 200
            centres.link.heal()
            until(lambda: _code(former) in {"GroupElsewhere", "MemberGone"}, every=0.5)
            late = former.commit(FIRST_ID)
            assert late.content["code"] in {"NotOwner", "MemberGone", "GroupElsewhere"}
            assert present.send_heartbeat().status == 200


def _code(member: Member) -> str:
    try:
        return str(member.send_heartbeat().content.get("code", ""))
    except Unanswered:
        return ""
