"""The contract of acts at the console: a plan, which a page shows for confirmation, and its execution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from queuey.console import pages
from queuey.console.sessions import PageRequest
from queuey.model.rights import Action


class Field(msgspec.Struct, frozen=True):
    """A field of a form.

    Attributes:
        name: The name in the request.
        label: The label for people.
        value: The initial value.
        kind: The kind of input.
        hint: A description of valid values.
        choices: For a choice, pairs of value and label.
    """

    name: str
    label: str
    value: str = ""
    kind: Literal["line", "text", "choice"] = "line"
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()


class ActPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of an act.

    Attributes:
        about: Description of the effects; each line is a paragraph.
        hidden: Fields that the page sends back unchanged, besides the given ones.
        head, rows: A table of the changes.
        button: The text of the button; blank if the act cannot be executed yet.
    """

    about: str = ""
    hidden: Mapping[str, str] = {}
    head: tuple[str, ...] = ()
    rows: Sequence[Sequence[object]] = ()
    button: str = ""


class ActResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an act.

    Attributes:
        text: The result in a sentence.
        partly: Whether a part was not done; the text says which.
        details: Details for the audit log, besides the fields of the form.
        secret: A secret that is shown once and not stored.
    """

    text: str
    partly: bool = False
    details: Mapping[str, str] = {}
    secret: str = ""


class Act(ABC):
    """An operation that people execute at the console.

    Attributes:
        name: The name in addresses and in the audit log.
        title: The title for people.
        about: Description of the effects; each line is a paragraph.
        button: The text of the button; blank for the title.
        needs: The rights that the caller needs with the queue, or each with at least one queue of the application.
        fields: The fields of its form.
        logged_fields: The fields that the audit log keeps.
        previews: Whether the page shows the changes after the fields are filled in, before the act is executed.
        types_name: Whether the user must type the name of the subject.
        destroys: Whether the act cannot be undone.
        longest: Max bytes of the form.
        place: Where the pages of a queue offer it: in their head, in the danger zone, or with each group. Blank if it
            is offered next to its subject.
    """

    name: str
    title: str
    about = ""
    button = ""
    needs: tuple[Action, ...]
    fields: tuple[str, ...] = ()
    logged_fields: tuple[str, ...] = ()
    previews = False
    types_name = False
    destroys = False
    longest = 16 * 1024
    place: Literal["", "acts", "dangers", "group_acts"] = ""

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        return ()

    async def require_queue(self, page_request: PageRequest) -> str:
        """Returns the name of the queue for the audit log, or blank if the act is about the application.

        Raises:
            InvalidRequest: A schedule was changed since its form was shown; or a new one exists already, or the caller
                may not use its queue.
        """
        return page_request.name

    def subject(self, page_request: PageRequest) -> str:
        """Returns the name of the subject, as the user must type it."""
        return page_request.name

    def page_address(self, page_request: PageRequest) -> str:
        return pages.link(*filter(None, ("a", page_request.application, page_request.name)))

    async def effects(self, page_request: PageRequest) -> str:
        """Returns ``about`` with the subject of the request filled in. Raises as :meth:`plan`."""
        return self.about

    async def plan(self, page_request: PageRequest) -> ActPlan:
        """Describes the effects, without changing anything.

        Raises:
            InvalidRequest: A field is invalid.
            NotFound, NotAllowed: As for :meth:`do`.
        """
        return ActPlan(about=await self.effects(page_request), button=self.button or self.title)

    @abstractmethod
    async def do(self, page_request: PageRequest) -> ActResult:
        """Executes the act.

        Raises:
            QueueyError: The act failed, or its outcome is unknown.
        """
