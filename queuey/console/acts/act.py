"""Acts at the console: a plan that a page shows and asks about, and the deed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from queuey.api.queues import Action
from queuey.console import pages
from queuey.console.sessions import Ask


class Field(msgspec.Struct, frozen=True):
    """A field of a form.

    Attributes:
        name: Under which it is sent.
        label: What people read.
        value: What it has at first.
        kind: How it is filled in.
        hint: What it may have.
        choices: Of a choice: values and what they are called.
    """

    name: str
    label: str
    value: str = ""
    kind: Literal["line", "text", "choice"] = "line"
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Effects of an act.

    Attributes:
        about: Says it, in paragraphs of a line each.
        hidden: Fields that the page sends back as they are, beside those that it was given.
        head, rows: A table of what would change.
        button: What does it; blank: nothing can be done yet.
    """

    about: str = ""
    hidden: Mapping[str, str] = {}
    head: tuple[str, ...] = ()
    rows: Sequence[Sequence[object]] = ()
    button: str = ""


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an act.

    Attributes:
        text: In a sentence.
        partly: Some of it was not done; the text says what.
        details: What the audit log keeps of it beside what was asked for.
        secret: What is shown once and kept nowhere.
    """

    text: str
    partly: bool = False
    details: Mapping[str, str] = {}
    secret: str = ""


class Act(ABC):
    """Something that people do at the console.

    Attributes:
        name: In addresses and in the audit log.
        title: For people.
        about: Its effects, in paragraphs of a line each.
        button: What does it; blank: the title.
        needs: All that the caller must be allowed with the queue, or with some queue of the application.
        fields: Those that it knows.
        noted: Those that the audit log keeps.
        previews: The fields are filled in first; then the page shows what would change.
        types_name: The name of what it is about has to be typed.
        destroys: It cannot be undone.
        longest: Bytes of the form.
    """

    name: str
    title: str
    about = ""
    button = ""
    needs: tuple[Action, ...]
    fields: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    previews = False
    types_name = False
    destroys = False
    longest = 16 * 1024

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        """Returns the fields to fill in."""
        return ()

    def queue(self, ask: Ask) -> str:
        """Returns the name of the queue that it is about, for the audit log; blank: the application."""
        return ask.name

    def subject(self, ask: Ask) -> str:
        """Returns the name of what it is about, as it has to be typed."""
        return ask.name

    def begins_on(self, ask: Ask) -> str:
        """Returns the address of the page that offers it."""
        return pages.link(*filter(None, ("a", ask.application, ask.name)))

    def effects(self, ask: Ask) -> str:
        """Returns what ``about`` says, of what the request is about. Raises as :meth:`plan`."""
        return self.about

    def plan(self, ask: Ask) -> Plan:
        """Describes the effects; changes nothing.

        Raises:
            InvalidRequest: A field cannot be.
            NotFound, NotAllowed: As for the deed.
        """
        return Plan(about=self.effects(ask), button=self.button or self.title)

    @abstractmethod
    def do(self, ask: Ask) -> Deed:
        """Does it.

        Raises:
            QueueyError: It was not done, or it is not known whether it was.
        """
