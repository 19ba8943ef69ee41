"""``queuey schedule``: messages that the service posts at certain times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from queuey.api.schedules import ListedSchedule
from queuey.cli.sending import headers_of
from queuey.cli.service_options import complete_queue_names, connected
from queuey.model import time_parsing
from queuey.model.titles import Column
from queuey.terminal import output, times
from queuey.terminal.commands import make_group
from queuey.terminal.output import ToStderr

if TYPE_CHECKING:
    from queuey.api.schedules import Tick
    from queuey.client import Client
    from queuey.client.results import Schedule

app = make_group()

Name = Annotated[str, typer.Argument(help="Name of the schedule.", show_default=False)]


@app.command("put")
@connected
def put(
    client: Client,
    name: Name,
    queue: Annotated[
        str | None, typer.Option(help="Queue that gets the messages.", autocompletion=complete_queue_names)
    ] = None,
    body: Annotated[str | None, typer.Option(help="Body of the message.")] = None,
    json_body: Annotated[str | None, typer.Option("--json-body", help="Body of the message, as a JSON value.")] = None,
    message_key: Annotated[str | None, typer.Option(help="Message key: picks the partition.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="Header of the message: NAME=VALUE.")] = None,
    content_type: Annotated[str | None, typer.Option(help="Content type of the message.")] = None,
    ttl: Annotated[int | None, times.ttl("Time to live of the message, such as 12h.")] = None,
    cron: Annotated[str | None, typer.Option(help="Times: minute, hour, day, month, day of the week.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Zone of --cron, such as Europe/Berlin; at first UTC.")] = None,
    every: Annotated[int | None, times.duration("Interval, such as 5m.", whole=True)] = None,
    missed: Annotated[
        Literal["skip", "catch_up"] | None, typer.Option(help="What to do about times at which no service ran.")
    ] = None,
) -> None:
    """Create a schedule, or change the given fields of one."""
    message: Any = None
    if body is not None or json_body is not None:
        message = _make_message(body, json_body, message_key, header, content_type, ttl)
    elif not (message_key is None and header is None and content_type is None and ttl is None):
        raise typer.BadParameter("a change replaces the whole message: add --body or --json-body")
    plan = {"queue": queue, "cron": cron, "timezone": timezone, "every": every, "missed": missed}
    _show_schedule(client.schedules.put(name, message=message, **plan))  # type: ignore[arg-type] # by their names


def _make_message(
    body: str | None,
    json_body: str | None,
    key: str | None,
    header: list[str] | None,
    content_type: str | None,
    ttl: int | None,
) -> Any:  # noqa: ANN401 - of the client, which is imported late
    from queuey.client import Outgoing

    fields: dict[str, Any] = {"key": key, "headers": headers_of(header), "content_type": content_type, "ttl": ttl}
    if body is not None and json_body is not None:
        raise typer.BadParameter("give one of --body and --json-body")
    if json_body is not None:
        try:
            msgspec.json.decode(json_body)
        except msgspec.DecodeError as error:
            raise typer.BadParameter(f"not JSON: {error}", param_hint="--json-body") from error
        return Outgoing(json=msgspec.Raw(json_body.encode()), **fields)
    return Outgoing(body or "", **fields)


@app.command("show")
@connected
def show(client: Client, name: Name) -> None:
    """Show a schedule, its next times and the result of the last one."""
    _show_schedule(client.schedules.get(name))


@app.command("list")
@connected
def list_schedules(client: Client) -> None:
    """List schedules by name; with --json one per line."""
    last: tuple[Column, ...] = (
        ("last", lambda schedule: "-" if schedule.last is None else schedule.last.state),
        ("of", lambda schedule: "-" if schedule.last is None else time_parsing.format_instant(schedule.last.instant)),
    )
    following = ("next", lambda schedule: _next_text(schedule, 1))
    output.show_each(ListedSchedule, client.schedules.list(), "name", "queue", ("when", _when_text), following, *last)


@app.command("pause")
@connected
def pause(client: Client, name: Name) -> None:
    """Pause a schedule: nothing is posted until it is resumed."""
    _show_schedule(client.schedules.pause(name))


@app.command("resume")
@connected
def resume(client: Client, name: Name) -> None:
    """Resume a schedule at its next time. Times during the pause are skipped."""
    _show_schedule(client.schedules.resume(name))


@app.command("run")
@connected
def run(client: Client, name: Name) -> None:
    """Post a schedule's message now, even if the schedule is paused."""
    schedule = client.schedules.run(name)
    output.show(schedule, () if schedule.last is None else f"Schedule {schedule.name}: {_tick_text(schedule.last)}.")
    if schedule.last is None or schedule.last.state != "published":
        raise typer.Exit(1)


@app.command("delete")
@connected
def delete(client: Client, name: Name) -> None:
    """Delete a schedule. Its posted messages stay."""
    client.schedules.delete(name)
    output.show({"schedule": name, "deleted": True}, ToStderr(f"Deleted schedule {name}."))


def _show_schedule(schedule: Schedule) -> None:
    message = [(field.replace("_", " "), value) for field, value in (schedule.message or {}).items()]
    ends = [("next", _next_text(schedule)), ("last", "-" if schedule.last is None else _tick_text(schedule.last))]
    plan = output.fields(schedule, "name", "queue", ("when", _when_text), "missed")
    output.show(schedule, [output.TitledValues([*plan.pairs, *message, *ends])])


def _next_text(schedule: Schedule, max_times: int | None = None) -> str:
    return ", ".join(map(time_parsing.format_instant, schedule.next[:max_times])) or (
        "paused" if schedule.paused else "never"
    )


def _when_text(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {time_parsing.format_duration(schedule.every)}"
    return f"{schedule.cron} {schedule.timezone}"


def _tick_text(last: Tick) -> str:
    tick = f"the tick of {time_parsing.format_instant(last.instant)}"
    if last.state == "published":
        return f"{tick} is message {last.message_id} in partition {last.partition}"
    return f"{tick} is {last.state}: {last.error}"
