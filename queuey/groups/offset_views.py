"""Views of the offsets of consumer groups in queues."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, NamedTuple

from queuey.access.authorization import Authorization
from queuey.access.operations import QUEUE, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api import progress as api
from queuey.api.groups import MAX_EPOCH, MemberCommits
from queuey.api.values import Done
from queuey.groups.groups import GroupUseCases
from queuey.groups.offsets import OffsetUseCases
from queuey.model import ids
from queuey.model.groups import MAX_NOTE_BYTES
from queuey.model.messages import OffsetChange
from queuey.runtime.limits import Limits
from queuey.web import validators
from queuey.web.endpoint import Match
from queuey.web.openapi import JSON, Tag
from queuey.web.requests import Request, read_body
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors, bad_json, read_object


def _read_position(value: object) -> ids.Position:
    try:
        return ids.parse_position(validators.parse_text(value))
    except ValueError:
        raise validators.BadField(f'"{validators.show(value)}" is not a message id') from None


def _require_object(body: dict[str, Any], field: str = "partitions") -> dict[str, Any]:
    partitions = body.get(field)
    if not isinstance(partitions, dict):
        raise bad_json(f'It has no object "{field}"')
    return partitions


def _is_partition_number(number: str, field: str, errors: Errors) -> bool:
    if number.isascii() and number.isdigit() and len(number) <= 3:  # noqa: PLR2004 - no partition is longer
        return True
    errors[field] = f'"{number[:40]}" is not a partition'
    return False


def _read_change(number: str, item: object, errors: Errors, parent: str = "partitions") -> OffsetChange | None:
    field = f"{parent}.{number[:40]}"
    if not _is_partition_number(number, field, errors):
        return None
    if not isinstance(item, dict):
        errors[field] = f'"{validators.show(item)}" is not an object'
        return None
    position = errors.parse_field(f"{field}.offset", _read_position, item.get("offset"))
    expected = errors.parse_field(f"{field}.expected", _read_position, item.get("expected"))
    if position is None:
        errors.setdefault(f"{field}.offset", validators.REQUIRED)
        return None
    return OffsetChange(int(number), position, expected, compare="expected" in item)


class _Commits(NamedTuple):
    """A member's commits: offsets, and their epochs and notes by partition."""

    changes: list[OffsetChange]
    epochs: dict[int, int]
    notes: dict[int, bytes | None]


def _read_note(value: object) -> bytes:
    try:
        content = b64decode(validators.parse_text(value), validate=True)
    except (binascii.Error, UnicodeError):
        raise validators.BadField("Is not base64") from None
    if len(content) > MAX_NOTE_BYTES:
        raise validators.BadField(f"Longer than maximum length {MAX_NOTE_BYTES} bytes")
    return content


def _read_commits(body: dict[str, Any], common_epoch: int | None, errors: Errors) -> _Commits:
    commits = _Commits([], {}, {})
    for number, item in _require_object(body, "commits").items():
        field = f"commits.{number[:40]}"
        if (change := _read_change(number, item, errors, "commits")) is None:
            continue
        commits.changes.append(change)
        epoch = errors.parse_field(f"{field}.epoch", validators.parse_integer, item.get("epoch"), 0, MAX_EPOCH)
        if epoch is None and common_epoch is None:
            errors.setdefault(f"{field}.epoch", validators.REQUIRED)
        commits.epochs[change.partition] = (common_epoch or 0) if epoch is None else epoch
        if "note" in item:
            commits.notes[change.partition] = errors.parse_field(f"{field}.note", _read_note, item["note"])
    return commits


def _read_changes(body: dict[str, Any]) -> list[OffsetChange]:
    errors = Errors()
    parsed = (_read_change(number, item, errors) for number, item in _require_object(body).items())
    changes = [change for change in parsed if change is not None]
    _refuse_repeated_partitions(changes, "partitions", errors)
    errors.check()
    return changes


def _refuse_repeated_partitions(changes: Sequence[OffsetChange], field: str, errors: Errors) -> None:
    if len({change.partition for change in changes}) < len(changes):
        errors[field] = "Names a partition twice"


class OffsetViews(Views):
    """Views of ``/v1/{app}/{queue}/offsets`` and of the groups under it."""

    def __init__(
        self, authorization: Authorization, limits: Limits, offsets: OffsetUseCases, groups: GroupUseCases
    ) -> None:
        super().__init__(authorization, limits)
        self._offsets = offsets
        self._groups = groups

    async def groups(self, access: QueueAccess) -> api.GroupList:
        return api.GroupList(groups=tuple(await self._offsets.list_groups(access)))

    async def show(self, access: QueueAccess, group: str) -> api.Offsets:
        return await self._offsets.read_progress(access, group)

    async def record(self, request: Request, match: Match) -> Response:
        """Records offsets in ``partitions``, or the commits of a member of the group, which have epochs."""
        access = await self._authorization.admit(request, match, "claim")
        body = await request.parse_body(lambda: read_object(read_body(request, self._limits.max_body)))
        if "commits" not in body and "member" not in body:
            self.fields(api.NewOffsets).record_unknown_names(request, body)
            is_admin = (await self._authorization.identify(request)).administers(match["app"])
            changes = _read_changes(body)
            return json_response(await self._offsets.record(access, match["group"], changes, is_admin=is_admin))
        fields = self.fields(MemberCommits)
        errors = Errors()
        if body.pop("partitions", None) is not None:
            errors["partitions"] = "A member must use commits, in which each offset has its epoch"
        terms = fields.read(body, errors, request)
        errors.check()
        commits = _read_commits(body, terms.epoch, errors)
        _refuse_repeated_partitions(commits.changes, "commits", errors)
        errors.check()
        credential = await self._authorization.find_member_credential(request)
        recorded = await self._groups.commit(access, match["group"], terms.member, credential, *commits)
        return json_response(recorded)

    async def lag(self, access: QueueAccess, body: dict[str, Any]) -> api.LagRead:
        """Counts the messages after each partition's cursor; null counts all of the partition."""
        errors = Errors()
        cursors: dict[int, ids.Position | None] = {}
        for number, item in _require_object(body).items():
            field = f"partitions.{number[:40]}"
            if _is_partition_number(number, field, errors):
                if int(number) in cursors:
                    errors["partitions"] = "Names a partition twice"
                cursors[int(number)] = None if item is None else errors.parse_field(field, _read_position, item)
        errors.check()
        return await self._offsets.read_lag(access, cursors)

    async def forget(self, access: QueueAccess, group: str) -> None:
        await self._offsets.forget(access, group)


OFFSETS_TAG = Tag("Offsets", "How far a consumer group has processed a queue, and its lag.")
GROUP = QUEUE + "/offsets/{group}"
OPERATIONS = (
    declare(OFFSETS_TAG, f"GET {QUEUE}/offsets", "List groups", api.GroupList, OffsetViews.groups, "measure"),
    declare(OFFSETS_TAG, f"GET {GROUP}", "Show offsets", api.Offsets, OffsetViews.show, "measure"),
    declare(
        OFFSETS_TAG,
        f"PUT {GROUP}",
        "Record offsets",
        api.RecordedOffsets,
        OffsetViews.record,
        about="409: an offset is not the expected one (`partitions` shows which), or the queue has 1,000 groups. While "
        "the group has members, only they can commit, with `commits`. Then 409 means that the member does not own the "
        "partitions in `not_owned`; all others were recorded. 404 `MemberGone`: join again.",
        body={JSON: (api.NewOffsets, MemberCommits)},
        further_errors=(409,),
    ),
    declare(
        OFFSETS_TAG,
        f"DELETE {GROUP}",
        "Delete group",
        Done,
        OffsetViews.forget,
        "claim",
        about="Deletes the offsets of the group in this queue.",
        further_errors=(409,),
    ),
    declare(
        OFFSETS_TAG,
        f"POST {QUEUE}/lag",
        "Measure lag, behind cursors",
        api.LagRead,
        OffsetViews.lag,
        "measure",
        body=api.Cursors,
    ),
)
