"""Handlers and factories found by their names, and hooks around messages."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qdo.errors import HandlerError, InvalidArgument
from qdo.worker import handlers
from qdo.worker.handlers import Hooks, Middleware, load_context, make_handler
from qdo.worker.runs import Delivery
from queuey.client import Message
from queuey.client.claims.handlers import is_coroutine_handler
from tests.qdo.unit.samples import ONE, message


def handle(message: Message, context: object) -> None:
    """A handler."""


async def handle_async(message: Message, context: object) -> None:
    """An async one."""


def lonely(message: Message) -> None:
    """Takes one argument too few."""


def demanding(message: Message, context: object, more: object) -> None:
    """Takes one argument too many."""


class Service:
    """A callable object."""

    async def __call__(self, message: Message, context: object) -> None:
        """Handles."""

    @staticmethod
    def inner(message: Message, context: object) -> None:
        """A nested handler."""


service = Service()
number = 5


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes modules that can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_name_leads_to_the_handler() -> None:
    """``module:function`` is found, also nested, and async handlers are recognised."""
    assert make_handler(f"{__name__}:handle").call is handle
    assert make_handler(f"{__name__}:Service.inner").call is Service.inner
    assert make_handler(f"{__name__}:service").call is service
    assert not is_coroutine_handler(handle)
    assert is_coroutine_handler(handle_async)
    assert is_coroutine_handler(service)
    assert is_coroutine_handler(functools.partial(handle_async))
    assert not is_coroutine_handler(functools.partial(handle))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("handle", "module:function"),
        (":handle", "module:function"),
        (f"{__name__}:", "module:function"),
        ("no_such_module:handle", "no module 'no_such_module'"),
        ("qdo.no_such_module:handle", "no module 'qdo.no_such_module'"),
        (f"{__name__}:handel", "did you mean 'handle'?"),
        (f"{__name__}:number", "cannot be called"),
        (f"{__name__}:Service", "is a class"),
        (f"{__name__}:lonely", "handler(message, context)"),
        (f"{__name__}:demanding", "handler(message, context)"),
    ],
)
def test_what_is_no_handler_is_refused_with_the_reason(name: str, said: str) -> None:
    """Each invalid name is refused with an error that names the reason."""
    with pytest.raises(HandlerError) as refused:
        make_handler(name)
    assert said in str(refused.value)


def test_a_module_that_fails_says_why(module: Callable[[str, str], None]) -> None:
    """An import error inside a module is not reported as a missing module."""
    module("needs_more", "import no_such_thing_at_all")
    module("breaks", "1 / 0")
    with pytest.raises(HandlerError, match="needs 'no_such_thing_at_all', which is not installed"):
        make_handler("needs_more:handle")
    with pytest.raises(HandlerError, match="cannot be imported: ZeroDivisionError"):
        make_handler("breaks:handle")


def test_a_context_is_called_without_arguments(module: Callable[[str, str], None]) -> None:
    """A context factory that requires arguments is refused."""
    module("contexts_of_ours", "def made(): pass\ndef unmade(x): pass")
    assert callable(load_context("contexts_of_ours:made"))
    with pytest.raises(HandlerError, match=r"factory\(\)"):
        load_context("contexts_of_ours:unmade")


def test_processes_need_a_name_that_leads_back() -> None:
    """A module's function has a name that leads back to it; a lambda, an inner function and a partial have none."""
    assert handlers.find_import_name(handle, "handler") == f"{__name__}:handle"
    for nameless in (lambda message, context: None, functools.partial(handle), service):
        with pytest.raises(HandlerError, match="name"):
            handlers.find_import_name(nameless, "handler")


PLACE = Delivery(ONE, 1)


class Noted(Middleware):
    """Records its calls."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def before(self, message: Message, delivery: Delivery) -> None:
        self.notes.append(f"{self.name} before")

    def after(self, message: Message, delivery: Delivery) -> None:
        self.notes.append(f"{self.name} after")


def test_the_first_is_the_outermost() -> None:
    """Hooks before a message are called in order, hooks after it in reverse."""
    notes: list[str] = []
    hooks = Hooks([Noted("a", notes), Noted("b", notes)], lambda name: None)
    hooks.call("before", message(1), PLACE)
    hooks.call("after", message(1), PLACE)
    assert notes == ["a before", "b before", "b after", "a after"]


def test_what_is_no_middleware_is_refused() -> None:
    """An object without hooks, or with async ones, is refused at once."""

    class Late:
        async def before(self, message: Message, delivery: Delivery) -> None:
            """Would never be awaited."""

    for wrong in (object(), Late()):
        with pytest.raises(InvalidArgument):
            Hooks([wrong], lambda name: None)
