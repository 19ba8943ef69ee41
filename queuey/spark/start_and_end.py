"""Start and end of a read: the options of Spark's Kafka source, with message ids in place of offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from queuey.model import ids
from queuey.model.ids import LOW_MIN, TICKS_MAX, Position
from queuey.spark.errors import OptionError

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

_SYMBOLS: dict[object, Literal["earliest", "latest"]] = {EARLIEST: EARLIEST, -2: EARLIEST, LATEST: LATEST, -1: LATEST}
_TICKS_PER_MS = ids.TICKS_PER_SECOND // 1000


class At(msgspec.Struct, frozen=True, gc=False):
    """A bound: inclusive as a start, exclusive as an end."""

    position: Position


Bound = Literal["earliest", "latest"] | At


class Bounds(msgspec.Struct, frozen=True):
    """The starts or the ends of partitions.

    Attributes:
        option: Name of the option, for error messages.
        everywhere: The bound for all partitions; None if ``each`` has one for each partition.
        each: Queue -> partition -> bound.
    """

    option: str
    everywhere: Bound | None = None
    each: dict[str, dict[int, Bound]] = {}

    def find_bound(self, queue: str, partition: int) -> Bound:
        """Returns the bound of a partition.

        Raises:
            OptionError: The option names partitions, but not this one.
        """
        bound = self.each.get(queue, {}).get(partition, self.everywhere)
        if bound is None:
            raise OptionError(
                f"Option {self.option} does not name partition {partition} of queue {queue!r}: it has to name all "
                f"partitions that are read."
            )
        return bound

    def check(self, partitions: Mapping[str, int]) -> None:
        """Checks that all named queues are read and have the named partitions.

        Args:
            partitions: Queue -> number of partitions.

        Raises:
            OptionError: The option names another queue or partition.
        """
        for queue, queue_bounds in self.each.items():
            count = partitions.get(queue)
            if count is None:
                raise OptionError(f"Option {self.option} names queue {queue!r}, which is not among those read.")
            if beyond := [number for number in queue_bounds if number > count]:
                raise OptionError(
                    f"Option {self.option} names partition {min(beyond)} of queue {queue!r}, which has {count}."
                )


def read_bounds(options: Mapping[str, str], which: Literal["starting", "ending"], default: Bound) -> Bounds:
    """Parses the options for the start or the end: one timestamp overrides timestamps, and these override offsets.

    Args:
        options: Options by canonical name.
        which: Start or end.
        default: The bound without an option.

    Raises:
        OptionError: An option is malformed.
    """
    if (text := options.get(name := f"{which}Timestamp")) is not None:
        return Bounds(name, _parse_timestamp(name, text))
    if (text := options.get(name := f"{which}OffsetsByTimestamp")) is not None:
        return Bounds(name, each=_parse_bounds_by_partition(name, text, lambda value: _parse_timestamp(name, value)))
    name = f"{which}Offsets"
    text = options.get(name)
    if text is None:
        return Bounds(name, default)
    if (symbol := _SYMBOLS.get(text.strip().lower())) is not None:
        return Bounds(name, symbol)
    return Bounds(name, each=_parse_bounds_by_partition(name, text, lambda value: _parse_offset(name, value)))


def parse_partition_numbers(option: str, text: str) -> range:
    """Parses a partition number or a range of them, such as ``3`` or ``1-4``.

    Raises:
        OptionError: The text is neither.
    """
    first, dash, last = text.strip().partition("-")
    try:
        numbers = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        numbers = range(0)
    if not numbers or numbers[0] < 1:
        raise OptionError(f"Option {option} has {text!r} instead of a partition number from 1 on.")
    return numbers


def parse_object(option: str, text: str, shape: str) -> dict[str, Any]:
    """Parses a JSON object with at least one member.

    Raises:
        OptionError: The text is not such an object. The message contains ``shape``, an example.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not value:
        raise OptionError(f"Option {option} is not of the form {shape}.")
    return value


def _parse_bounds_by_partition(option: str, text: str, bound: Callable[[Any], Bound]) -> dict[str, dict[int, Bound]]:
    shape = '{"queue":{"1":…,"2":…}}'
    result: dict[str, dict[int, Bound]] = {}
    for queue, partitions in parse_object(option, text, shape).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"Option {option} is not of the form {shape}.")
        result[queue] = {
            number: bound(value) for key, value in partitions.items() for number in parse_partition_numbers(option, key)
        }
    return result


def _parse_offset(option: str, value: object) -> Bound:
    if isinstance(value, int | str) and (symbol := _SYMBOLS.get(value)) is not None:
        return symbol
    if isinstance(value, str):
        try:
            return At(ids.parse_position(value))
        except ValueError:
            pass
    raise OptionError(f"Option {option} has {value!r} instead of a message id, earliest (-2) or latest (-1).")


def _parse_timestamp(option: str, value: object) -> Bound:
    try:
        milliseconds = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else -1
    except ValueError:
        milliseconds = -1
    if milliseconds < 0:
        raise OptionError(f"Option {option} has {value!r} instead of milliseconds since 1970.")
    return At((min(milliseconds * _TICKS_PER_MS + ids.EPOCH_TICKS, TICKS_MAX), LOW_MIN))
