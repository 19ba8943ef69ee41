"""A member of a group whose every request is sent by the test."""

from __future__ import annotations

import json

from tests.faults.wire import Answer, Line

REQUEST_TIMEOUT = 100.0
FIRST_ID, SECOND_ID = (f"{number:08x}000010008080808080808080" for number in (1, 2))
HEADERS = {"Content-Type": "application/json", "Accept": "application/problem+json"}
QUEUE, GROUP = "jobs", "crew"
MEMBERS = f"/_groups/{GROUP}/members"
OFFSETS = f"/{QUEUE}/offsets/{GROUP}"


def ask(line: Line, method: str, path: str, body: object = None) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    return line.ask(method, path, body=data, headers=HEADERS, timeout=REQUEST_TIMEOUT)


class Member:
    """A member that asks one web process unless told otherwise.

    Attributes:
        owned: The epoch of each owned partition.
        taken_offsets: By partition, the last offset that it was told, and how the partition came.
    """

    def __init__(self, line: Line, session: float) -> None:
        self.owned: dict[str, int] = {}
        self.taken_offsets: dict[str, tuple[str | None, str]] = {}
        self._line = line
        joined = ask(line, "POST", MEMBERS, {"queues": [QUEUE], "session": session})
        assert joined.status == 201, joined
        self._id = joined.content["member"]

    def send_heartbeat(self, line: Line | None = None) -> Answer:
        answer = ask(line or self._line, "POST", f"{MEMBERS}/{self._id}", {"owned": {QUEUE: self.owned}})
        for number, each in answer.content.get("take", {}).get(QUEUE, {}).items():
            self.owned[number] = each["epoch"]
            self.taken_offsets[number] = each["offset"], each["from"]
        return answer

    def owns(self, count: int) -> bool:
        """Sends a heartbeat. Returns whether it owns ``count`` partitions."""
        return self.send_heartbeat().status == 200 and len(self.owned) == count

    def commit(self, offset: str) -> Answer:
        commits = {"1": {"epoch": self.owned["1"], "offset": offset}}
        return ask(self._line, "PUT", OFFSETS, {"member": self._id, "commits": commits})
