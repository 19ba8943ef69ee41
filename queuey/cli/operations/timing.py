"""``queuey timing``: shows and changes the times that every process of a Cassandra store goes by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from queuey.cli.operations.store_options import ConfiguredStore, be_quiet, on_store
from queuey.terminal import output, times

if TYPE_CHECKING:
    from queuey.settings import Settings
    from queuey.storage.cassandra.admin.stored_timing import Standing
    from queuey.storage.cassandra.driver import Driver
    from queuey.storage.cassandra.options import CassandraOptions
    from queuey.storage.cassandra.timing import Timing

CONNECT_WITHIN = 20.0


@on_store
def timing(
    store_at: ConfiguredStore,
    write_deadline: Annotated[float | None, times.duration("W: time within which a write is acknowledged.")] = None,
    undo: Annotated[float | None, times.duration("U: time that undoing a failed write takes.")] = None,
    clock_difference: Annotated[float | None, times.duration("S: time by which clocks differ at most.")] = None,
    delay: Annotated[
        float | None,
        times.duration("D: time that reads stay behind.", show_default="the least that the others allow"),
    ] = None,
    row_age: Annotated[
        float | None,
        times.duration(
            "C: time for which a queue's row is used unread, and after which its changes answer.",
            show_default="the longest that the others allow, 1 at most",
        ),
    ] = None,
    level: Annotated[
        Literal["strong", "very_strong"] | None,
        typer.Option(help="Change the times of this consistency level only.", show_default="both"),
    ] = None,
    soon: Annotated[bool, typer.Option("--soon", help="For a new keyspace: W 0.4, U 0.35, S 0.25, D 1 s.")] = False,
    patient: Annotated[bool, typer.Option("--patient", help="For several data centres: W 3, U 1, S 1, D 5 s.")] = False,
) -> None:
    """Show or set the timing parameters of a Cassandra store."""
    from queuey.storage.cassandra.admin import stored_timing

    be_quiet()
    given = {
        "deadline": write_deadline,
        "undo": undo,
        "clock_difference": clock_difference,
        "delay": delay,
        "row_age": row_age,
    }
    named = {name: value for name, value in given.items() if value is not None}
    with _connected(store_at.settings) as (driver, options):
        standing = stored_timing.standing(driver, options)
        if named or soon or patient:
            wanted = _wanted(standing, named, level, soon=soon, patient=patient)
            stored_timing.change(driver, options, wanted, output.note)
            standing = stored_timing.standing(driver, options)
    stored = standing.stored
    found = {"settled": stored.settled, "kept": stored.kept, "assumed": stored.assumed, "measured": standing.measured}
    output.show(found | {"data_centres": standing.centres}, _described(standing))


@contextmanager
def _connected(settings: Settings) -> Iterator[tuple[Driver, CassandraOptions]]:
    from queuey.errors import SettingsError
    from queuey.storage import opening

    if not opening.is_cassandra(settings):
        raise SettingsError("On SQLite messages are seen at once; name a Cassandra store by --store.")
    target = opening.cassandra_target(settings)
    from queuey.storage.cassandra.driver import connected

    options = opening.cassandra_options(settings)
    with connected(target, options, CONNECT_WITHIN) as driver:
        yield driver, options


def _wanted(standing: Standing, named: dict[str, float], level: str | None, *, soon: bool, patient: bool) -> Timing:
    from queuey.errors import SettingsError
    from queuey.storage.cassandra.timing import PATIENT, SOON, changed

    stored = standing.stored
    if level is not None and level not in stored.kept.levels:
        raise SettingsError(f"--level {level} is not known: it is one of {', '.join(stored.kept.levels)}.")
    if soon or patient:
        if named or level or (soon and patient):
            raise SettingsError("--soon and --patient name all times; give one of them alone.")
        return SOON if soon else PATIENT
    if not stored.settled and not {"deadline", "undo", "clock_difference"} <= named.keys():
        raise SettingsError(
            "A change of the times is under way, or was stopped. To finish it, or to make another, name all of "
            "--write-deadline, --undo and --clock-difference, or give --soon or --patient."
        )
    levels = [level] if level else list(stored.kept.levels)
    return changed(stored.kept, levels, named)


def _described(standing: Standing) -> Iterator[str]:
    from queuey.storage.cassandra.admin import doctor_rules
    from queuey.storage.cassandra.admin.stored_timing import shown

    stored = standing.stored
    if stored.settled:
        yield shown(stored.kept)
    else:
        yield f"kept:    {shown(stored.kept)}"
        yield f"assumed: {shown(stored.assumed)}"
    finding = doctor_rules.timing(stored, standing.measured)
    yield finding.text
    if finding.advice:
        yield finding.advice
