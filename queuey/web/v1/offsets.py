"""Views of consumer offsets."""

from __future__ import annotations

from queuey import ids
from queuey.messages import OffsetChange
from queuey.service import Service
from queuey.web import fields
from queuey.web.answers import Answer, Environ, json_answer
from queuey.web.bodies import bad_json, read_body, read_object
from queuey.web.endpoint import Match
from queuey.web.fields import Errors
from queuey.web.gate import Gate
from queuey.web.v1 import structs


def _position(value: object) -> ids.Position:
    """Reads the id that an offset stands at."""
    try:
        return ids.parse_position(fields.text(value))
    except ValueError:
        raise fields.BadField(f'"{fields.show(value)}" is not a message id') from None


def _is_number(number: str, field: str, errors: Errors) -> bool:
    """Tells whether a text can number a partition; one that cannot is noted in ``errors``."""
    if number.isascii() and number.isdigit() and len(number) <= 3:  # noqa: PLR2004 - no partition is longer
        return True
    errors[field] = f'"{number[:40]}" is not a partition'
    return False


def _change(number: str, item: object, errors: Errors) -> OffsetChange | None:
    """Reads one partition's compare-and-set; what is bad is noted in ``errors``."""
    field = f"partitions.{number[:40]}"
    if not _is_number(number, field, errors):
        return None
    if not isinstance(item, dict):
        errors[field] = f'"{fields.show(item)}" is not an object'
        return None
    position = errors.take(f"{field}.offset", _position, item.get("offset"))
    expected = errors.take(f"{field}.expected", _position, item.get("expected"))
    if position is None:
        errors.setdefault(f"{field}.offset", fields.REQUIRED)
        return None
    return OffsetChange(int(number), position, expected, compare="expected" in item)


class OffsetViews:
    """Views of ``/v1/{app}/{queue}/offsets`` and of the groups under it."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._offsets = service.offsets
        self._limits = service.limits
        self._gate = gate

    def groups(self, environ: Environ, match: Match) -> Answer:
        """Lists the groups."""
        entry = self._gate.enter(environ, self._gate.find(match), "read")
        return json_answer(structs.GroupList(groups=self._offsets.groups(entry)))

    def show(self, environ: Environ, match: Match) -> Answer:
        """Shows how far a group is."""
        entry = self._gate.enter(environ, self._gate.find(match), "read")
        progress = self._offsets.progress(entry, match["group"])
        partitions = {
            str(part.partition): structs.OffsetState(
                offset=None if part.offset is None else ids.to_hex(part.offset.position),
                updated=None if part.offset is None else part.offset.updated,
                lag=part.lag.count,
                lag_exact=part.lag.exact,
                lag_seconds=part.lag.seconds,
            )
            for part in progress
        }
        lag = sum(part.lag.count for part in progress)
        return json_answer(structs.GroupState(group=match["group"], partitions=partitions, lag=lag))

    def record(self, environ: Environ, match: Match) -> Answer:
        """Records offsets by compare-and-set."""
        entry = self._gate.enter(environ, self._gate.find(match), "commit")
        given = read_object(read_body(environ, self._limits.max_body)).get("partitions")
        if not isinstance(given, dict):
            raise bad_json('It has no object "partitions"')
        errors = Errors()
        changes = [_change(number, item, errors) for number, item in given.items()]
        numbers = [change.partition for change in changes if change is not None]
        if len(set(numbers)) < len(numbers):
            errors["partitions"] = "Names a partition twice"
        errors.check()
        recorded = self._offsets.record(entry, match["group"], [change for change in changes if change is not None])
        partitions = {str(o.partition): structs.RecordedOffset(ids.to_hex(o.position)) for o in recorded}
        return json_answer(structs.RecordedOffsets(group=match["group"], partitions=partitions))

    def lag(self, environ: Environ, match: Match) -> Answer:
        """Tells what lies behind cursors that the caller has; nothing is recorded."""
        entry = self._gate.enter(environ, self._gate.find(match), "read")
        given = read_object(read_body(environ, self._limits.max_body)).get("partitions")
        if not isinstance(given, dict):
            raise bad_json('It has no object "partitions"')
        errors = Errors()
        cursors: dict[int, ids.Position | None] = {}
        for number, item in given.items():
            field = f"partitions.{number[:40]}"
            if _is_number(number, field, errors):
                if int(number) in cursors:
                    errors["partitions"] = "Names a partition twice"
                cursors[int(number)] = None if item is None else errors.take(field, _position, item)
        errors.check()
        lags = self._offsets.lag(entry, cursors)
        partitions = {
            str(number): structs.LagState(lag=lag.count, lag_exact=lag.exact, lag_seconds=lag.seconds)
            for number, lag in lags
        }
        return json_answer(structs.LagRead(partitions=partitions, lag=sum(lag.count for _, lag in lags)))

    def forget(self, environ: Environ, match: Match) -> Answer:
        """Forgets a group."""
        self._offsets.forget(self._gate.enter(environ, self._gate.find(match), "commit"), match["group"])
        return json_answer(structs.Done())
