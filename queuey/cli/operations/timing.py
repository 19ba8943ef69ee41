"""``queuey timing``: shows and changes the times that every process of a Cassandra store goes by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey.cli import output
from queuey.cli.operations.store_options import BAD_SETTINGS, ConfiguredStore, be_quiet, on_store
from queuey.cli.output import Json

if TYPE_CHECKING:
    from queuey.settings import Settings
    from queuey.storage.cassandra.admin.stored_timing import Standing
    from queuey.storage.cassandra.driver import Driver
    from queuey.storage.cassandra.options import CassandraOptions
    from queuey.storage.cassandra.timing import Timing

CONNECT_WITHIN = 20.0

WriteDeadline = Annotated[
    float | None,
    typer.Option("--write-deadline", help="W: seconds within which a write is acknowledged.", metavar="SECONDS"),
]
Undo = Annotated[
    float | None, typer.Option("--undo", help="U: seconds that undoing a failed write takes.", metavar="SECONDS")
]
Difference = Annotated[
    float | None,
    typer.Option("--clock-difference", help="S: seconds by which clocks differ at most.", metavar="SECONDS"),
]
Delay = Annotated[
    float | None,
    typer.Option(
        "--delay",
        help="D: seconds that reads stay behind.",
        metavar="SECONDS",
        show_default="the least that the others allow",
    ),
]
RowAge = Annotated[
    float | None,
    typer.Option(
        "--row-age",
        help="C: seconds for which a queue's row is used unread, and after which its changes answer.",
        metavar="SECONDS",
        show_default="the longest that the others allow, 1 at most",
    ),
]
Level = Annotated[
    str | None,
    typer.Option("--level", help="strong or very_strong.", metavar="LEVEL", show_default="both"),
]
Soon = Annotated[bool, typer.Option("--soon", help="Those of a new keyspace: W 0.4, U 0.35, S 0.25, D 1 s.")]
Patient = Annotated[bool, typer.Option("--patient", help="Those of several data centres: W 3, U 1, S 1, D 5 s.")]


@on_store
def timing(
    store_at: ConfiguredStore,
    write_deadline: WriteDeadline = None,
    undo: Undo = None,
    clock_difference: Difference = None,
    delay: Delay = None,
    row_age: RowAge = None,
    level: Level = None,
    soon: Soon = False,
    patient: Patient = False,
    json: Json = False,
) -> None:
    """Show the times that all processes of a Cassandra store go by, or have them go by others."""
    from queuey.errors import SettingsError
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
    try:
        with _connected(store_at.settings) as (driver, options):
            standing = stored_timing.standing(driver, options)
            if named or soon or patient:
                wanted = _wanted(standing, named, level, soon=soon, patient=patient)
                stored_timing.change(driver, options, wanted, output.note)
                standing = stored_timing.standing(driver, options)
    except SettingsError as error:
        output.fail(str(error))
        raise typer.Exit(BAD_SETTINGS) from error
    output.emit(_described(standing)) if json else _show(standing)


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


def _described(standing: Standing) -> dict[str, Any]:
    stored = standing.stored
    return {
        "settled": stored.settled,
        "kept": stored.kept,
        "assumed": stored.assumed,
        "measured": standing.measured,
        "data_centres": standing.centres,
    }


def _show(standing: Standing) -> None:
    from queuey.storage.cassandra.admin import doctor_rules
    from queuey.storage.cassandra.admin.stored_timing import shown

    stored = standing.stored
    if stored.settled:
        output.say(shown(stored.kept))
    else:
        output.say(f"kept:    {shown(stored.kept)}")
        output.say(f"assumed: {shown(stored.assumed)}")
    finding = doctor_rules.timing(stored, standing.measured)
    output.say(finding.text)
    if finding.advice:
        output.say(finding.advice)


app = typer.Typer(add_completion=False)
app.command()(timing)
