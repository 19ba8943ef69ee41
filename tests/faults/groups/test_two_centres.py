"""A group has its data centre: another one names it, and takes it over by a command when it is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.webs import Span, Webs
from tests.faults.wire import Answer, Line, Unanswered, make_queue
from tests.servers.served import environment
from tests.waiting import until

if TYPE_CHECKING:
    from tests.faults.centres import Centres

pytestmark = pytest.mark.slow

SECONDS = 100.0
JSON = {"Content-Type": "application/json", "Accept": "application/problem+json"}
FIRST_ID = "00000001000010008080808080808080"
SECOND_ID = "00000002000010008080808080808080"
GROUP = "/_groups/crew"


def ask(line: Line, method: str, path: str, body: object = None) -> Answer:
    """Sends a request."""
    data = None if body is None else json.dumps(body).encode()
    return line.ask(method, path, body=data, headers=JSON, timeout=SECONDS)


class Member:
    """A member of the group, at one web process."""

    def __init__(self, line: Line) -> None:
        self.owned: dict[str, int] = {}
        self.taken: dict[str, dict[str, object]] = {}
        self._line = line
        joined = ask(line, "POST", f"{GROUP}/members", {"queues": ["jobs"], "session": 6})
        assert joined.status == 201, joined
        self.id = joined.content["member"]

    def beat(self, line: Line | None = None) -> Answer:
        """Sends a heartbeat."""
        answer = ask(line or self._line, "POST", f"{GROUP}/members/{self.id}", {"owned": {"jobs": self.owned}})
        if answer.status == 200:
            self.taken |= answer.content.get("take", {}).get("jobs", {})
            self.owned |= {number: each["epoch"] for number, each in self.taken.items()}  # type: ignore[misc]
        return answer

    def commit(self, offset: str, line: Line | None = None) -> Answer:
        """Commits for the first partition."""
        commits = {"1": {"epoch": self.owned["1"], "offset": offset}}
        return ask(line or self._line, "PUT", "/jobs/offsets/crew", {"member": self.id, "commits": commits})


def test_moved(tmp_path: Path, centres: Centres) -> None:
    """The group is served where it began; when that data centre is lost, by the other one, and never by both."""
    from queuey.storage.cassandra.driver import Driver  # noqa: PLC0415 - likewise
    from queuey.storage.cassandra.options import parse_url  # noqa: PLC0415 - likewise
    from tests.faults.centres import NAMES, keyspace_on  # noqa: PLC0415 - only who uses it needs the driver
    from tests.faults.cluster import APPLICATION, store_between  # noqa: PLC0415 - likewise
    from tests.faults.test_two_centres import options_of, replicate, stores_on  # noqa: PLC0415 - likewise

    url, (east_name, west_name) = keyspace_on(centres), NAMES
    store = store_between(centres, url, Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    webs = Webs(tmp_path, store, 2)
    with stores_on(url), webs.serving():
        lines = [Line(web, webs.account) for web in webs.addresses]
        with closing(lines[0]) as east, closing(lines[1]) as west:
            make_queue(webs.addresses[0], webs.account, queue_name="jobs", partitions=2, consistency="very_strong")
            former = Member(east)
            until(lambda: former.beat().status == 200 and len(former.owned) == 2, every=0.3)
            assert former.commit(FIRST_ID).status == 200
            for refused in (ask(west, "POST", f"{GROUP}/members", {"queues": ["jobs"]}), former.beat(west)):
                assert (refused.status, refused.content["code"]) == (409, "GroupElsewhere")
                assert east_name in refused.content["detail"]
            centres.link.cut()
            driver = Driver(parse_url(url), options_of(west_name))
            with closing(driver):
                assert driver.ready(SECONDS), driver.problem()
                replicate(driver, f"'{west_name}': 1")
            command = [sys.executable, "-m", "queuey", "group", "move", "crew", "--to", west_name]
            command += ["--app", APPLICATION, *store.options]
            variables = environment(QUEUEY_CASSANDRA_LOCAL_DC=west_name)
            until(lambda: subprocess.run(command, env=variables, check=False).returncode == 0, every=1.0)
            present = Member(west)
            until(lambda: present.beat().status == 200 and len(present.owned) == 2, every=0.3)
            assert {(taken["offset"], taken["from"]) for taken in present.taken.values()} == {
                (FIRST_ID, "lost"),
                (None, "lost"),
            }
            assert present.commit(SECOND_ID).status == 200
            centres.link.heal()
            until(lambda: _code(former) in {"GroupElsewhere", "MemberGone"}, every=0.5)
            late = former.commit(FIRST_ID)
            assert late.content["code"] in {"NotOwner", "MemberGone", "GroupElsewhere"}
            assert present.beat().status == 200


def _code(member: Member) -> str:
    try:
        return str(member.beat().content.get("code", ""))
    except Unanswered:
        return ""
