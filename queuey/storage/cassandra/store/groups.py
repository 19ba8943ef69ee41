"""Consumer groups in Cassandra."""

from __future__ import annotations

from collections.abc import Container, Sequence

from queuey.groups.state import GroupChange, Head, StoredGroup
from queuey.messages import GroupSessions, OwnedOffset, OwnedOffsets, Queue
from queuey.storage import ConsumerGroups
from queuey.storage.cassandra.store.connected import ConnectedStore


class CassandraGroups(ConnectedStore, ConsumerGroups):
    def groups_refusal(self) -> str | None:
        raise NotImplementedError

    def group_head(self, application: str, name: str, *, serial: bool = False) -> Head | None:
        raise NotImplementedError

    def group_state(self, application: str, name: str) -> StoredGroup | None:
        raise NotImplementedError

    def change_group(self, application: str, name: str, version: int, change: GroupChange) -> Head | None:
        raise NotImplementedError

    def remove_group(self, application: str, name: str, version: int) -> bool:
        raise NotImplementedError

    def group_names(self, application: str, *, start: str = "", limit: int = 100) -> list[str]:
        raise NotImplementedError

    def renew_session(self, application: str, name: str, member: int, session: int) -> int:
        raise NotImplementedError

    def confirm_clock(self) -> None:
        raise NotImplementedError

    def group_sessions(self, application: str, name: str) -> GroupSessions:
        raise NotImplementedError

    def ask_member(self, application: str, name: str, member: int, uid: int, session: int) -> None:
        raise NotImplementedError

    def note_search(self, application: str, name: str, when: int) -> None:
        raise NotImplementedError

    def owned_offsets(self, queue: Queue, group: str, notes: Container[int] = ()) -> OwnedOffsets:
        raise NotImplementedError

    def hand_over(self, queue: Queue, group: str, version: int | None, owners: Sequence[OwnedOffset]) -> bool:
        raise NotImplementedError
