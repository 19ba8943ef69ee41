"""Acts made from the API's operations: one on a queue that declares its right is offered without further code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from queuey.access.operations import QUEUE, Operation
from queuey.console.acts.act import Act, ActPlan, ActResult, Field
from queuey.console.sessions import PageRequest
from queuey.model.errors import InvalidRequest, NotAllowed
from queuey.web.openapi import JSON, Schema, describe_fields


class OperationAct(Act):
    """Calls an operation's view with the names in its path and the fields of its body.

    An operation that deletes what belongs to the whole queue needs the typed name, and shows how many messages it has.
    """

    def __init__(self, operation: Operation, view: Callable[..., Any]) -> None:
        assert operation.action is not None  # noqa: S101 - make_acts leaves others out
        self.title = operation.summary.partition(",")[0]
        self.name = self.title.lower().replace(" ", "-")
        self.about = operation.about
        self.needs = (operation.action,)
        self.path_names = operation.path_names
        self.destroys = operation.method == "DELETE"
        self.types_name = self.destroys and not self.path_names
        self.place = "dangers" if self.types_name else "group_acts" if self.path_names == ["group"] else "acts"
        self._view = view
        self._body = (
            {name: _make_field(name, schema) for name, schema in describe_fields(kind).items()}
            if (kind := operation.body.get(JSON))
            else None
        )
        self.fields = self.logged_fields = (*self.path_names, *(self._body or ()))

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        names = (Field(name, name.capitalize(), page_request.get(name)) for name in self.path_names)
        return (*names, *(self._body or {}).values())

    async def plan(self, page_request: PageRequest) -> ActPlan:
        count = await _count_text(page_request) if self.types_name else ""
        end = "This cannot be undone." if self.destroys else ""
        return ActPlan(about="\n".join(filter(None, (self.about, count, end))), button=self.title)

    async def do(self, page_request: PageRequest) -> ActResult:
        names = {name: page_request.get(name) for name in self.path_names}
        if missing := {name: "Missing" for name, text in names.items() if not text}:
            raise InvalidRequest(missing)
        body = {
            name: _read(field, text) for name, field in (self._body or {}).items() if (text := page_request.get(name))
        }
        access = await page_request.enter(self.needs[0])
        answer = await self._view(access, *names.values(), *([] if self._body is None else [body]))
        values = {} if answer is None else msgspec.to_builtins(answer)
        parts = (f"{name}: {msgspec.json.encode(value).decode()}" for name, value in values.items() if name != "status")
        return ActResult(text=f"{self.title}: done. {', '.join(parts)}".rstrip())


def make_acts(operations: Iterable[tuple[Operation, Callable[..., Any]]]) -> list[OperationAct]:
    """Returns the acts of all operations on queues that change something, read no query and declare their right."""
    return [
        OperationAct(operation, view)
        for operation, view in operations
        if operation.path.startswith(QUEUE)
        and operation.method != "GET"
        and operation.action not in {None, "read", "measure"}
        and operation.query is None
    ]


def _make_field(name: str, schema: Schema) -> Field:
    forms = {form.get("type"): form for form in schema.get("anyOf", [schema])}
    words = ("true", "false") if "boolean" in forms else forms.get("string", {}).get("enum", ())
    about = schema.get("description") or next(
        (form["description"] for form in forms.values() if "description" in form), ""
    )
    return Field(
        name,
        name.replace("_", " ").capitalize(),
        kind="choice" if words else "text" if forms.keys() & {"array", "object"} else "line",
        hint=about,
        choices=tuple((word, word) for word in ("", *words)) if words else (),
    )


def _read(field: Field, text: str) -> object:
    """Returns the value of a field: that of JSON for a list or an object; the view reads all others from text.

    Raises:
        InvalidRequest: The text is not JSON.
    """
    try:
        return msgspec.json.decode(text) if field.kind == "text" else text
    except msgspec.DecodeError as error:
        raise InvalidRequest({field.name: f"Not a JSON value: {error}"}) from None


async def _count_text(page_request: PageRequest) -> str:
    """Returns a text with the estimated number of messages, or an empty one if the caller may not count them."""
    try:
        access = await page_request.enter("measure")
    except NotAllowed:
        return ""
    return f"The queue has about {await page_request.service.queues.count(access.queue) or 0:,} messages now."
