"""Views of consumer offsets."""

from __future__ import annotations

from typing import Any

from queuey import ids
from queuey.api import progress as api
from queuey.messages import OffsetChange
from queuey.service import QueueAccess
from queuey.web import validators
from queuey.web.v1.views import Views
from queuey.web.validators import Errors, bad_json


def _position(value: object) -> ids.Position:
    try:
        return ids.parse_position(validators.text(value))
    except ValueError:
        raise validators.BadField(f'"{validators.show(value)}" is not a message id') from None


def _partitions(body: dict[str, Any]) -> dict[str, Any]:
    """Returns what is asked of each partition."""
    partitions = body.get("partitions")
    if not isinstance(partitions, dict):
        raise bad_json('It has no object "partitions"')
    return partitions


def _is_number(number: str, field: str, errors: Errors) -> bool:
    """Returns whether a text can number a partition; one that cannot is noted in ``errors``."""
    if number.isascii() and number.isdigit() and len(number) <= 3:  # noqa: PLR2004 - no partition is longer
        return True
    errors[field] = f'"{number[:40]}" is not a partition'
    return False


def _change(number: str, item: object, errors: Errors) -> OffsetChange | None:
    """Reads one partition's compare-and-set; bad values are noted in ``errors``."""
    field = f"partitions.{number[:40]}"
    if not _is_number(number, field, errors):
        return None
    if not isinstance(item, dict):
        errors[field] = f'"{validators.show(item)}" is not an object'
        return None
    position = errors.take(f"{field}.offset", _position, item.get("offset"))
    expected = errors.take(f"{field}.expected", _position, item.get("expected"))
    if position is None:
        errors.setdefault(f"{field}.offset", validators.REQUIRED)
        return None
    return OffsetChange(int(number), position, expected, compare="expected" in item)


class OffsetViews(Views):
    """Views of ``/v1/{app}/{queue}/offsets`` and of the groups under it."""

    def groups(self, access: QueueAccess) -> api.GroupList:
        return api.GroupList(groups=tuple(self._service.offsets.groups(access)))

    def show(self, access: QueueAccess, group: str) -> api.Offsets:
        return self._service.offsets.progress(access, group)

    def record(self, access: QueueAccess, group: str, body: dict[str, Any]) -> api.RecordedOffsets:
        errors = Errors()
        read = (_change(number, item, errors) for number, item in _partitions(body).items())
        changes = [change for change in read if change is not None]
        numbers = [change.partition for change in changes]
        if len(set(numbers)) < len(numbers):
            errors["partitions"] = "Names a partition twice"
        errors.check()
        return self._service.offsets.record(access, group, changes)

    def lag(self, access: QueueAccess, body: dict[str, Any]) -> api.LagRead:
        errors = Errors()
        cursors: dict[int, ids.Position | None] = {}
        for number, item in _partitions(body).items():
            field = f"partitions.{number[:40]}"
            if _is_number(number, field, errors):
                if int(number) in cursors:
                    errors["partitions"] = "Names a partition twice"
                cursors[int(number)] = None if item is None else errors.take(field, _position, item)
        errors.check()
        return self._service.offsets.lag(access, cursors)

    def forget(self, access: QueueAccess, group: str) -> None:
        self._service.offsets.forget(access, group)
