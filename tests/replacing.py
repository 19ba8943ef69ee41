"""Puts something in the place of a part of the product while a test runs.

The part is given as itself, never by a string, so a tool that renames it renames it here, and mypy misses it when it is
gone::

    with replace(Writer._judge, judge_nothing): ...
    with replace_in(writer, Fence, endless): ...  # the name under which the module writer has imported it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import MethodType, ModuleType
from typing import Any


@contextmanager
def replace(function: object, by: object) -> Iterator[None]:
    """Replaces a part where it is defined, for everybody who looks it up there.

    Args:
        function: A function or class of a module, or a method, staticmethod, classmethod or property of a class.
        by: Is there instead. A plain function in the place of one of the latter three becomes one as well.

    Raises:
        TypeError: It cannot be found where it says that it is, or something else is there.
    """
    found = _plain(function)
    module, path = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if module is None or path is None or isinstance(found, MethodType):
        raise TypeError(f"{function!r} does not say where it is defined: give the function itself, as Class.method")
    *outer, name = path.split(".")
    owner: Any = sys.modules.get(module)
    for each in outer:
        owner = None if owner is None else vars(owner).get(each)
    there = None if owner is None else vars(owner).get(name)
    if there is None or _plain(there) is not found:
        raise TypeError(f"{module}.{path} is {there!r}, not {function!r}")
    with _put(owner, [name], _like(there, by)):
        yield


@contextmanager
def replace_in(owner: ModuleType | type, function: object, by: object) -> Iterator[None]:
    """Replaces a part under every name that a module or class has for it, for everybody who looks it up there.

    Raises:
        TypeError: There is no such name.
    """
    names = [name for name, there in vars(owner).items() if there is function]
    if not names:
        raise TypeError(f"{owner.__name__} has no name for {function!r}")
    with _put(owner, names, by):
        yield


@contextmanager
def _put(owner: ModuleType | type, names: list[str], by: object) -> Iterator[None]:
    before = {name: vars(owner)[name] for name in names}
    try:
        for name in names:
            setattr(owner, name, by)
        yield
    finally:
        for name, there in before.items():
            setattr(owner, name, there)


def _plain(part: Any) -> object:  # noqa: ANN401 - anything
    """Returns the function inside of what a class has, or gives, for a method of some kind."""
    if isinstance(part, property):
        return part.fget
    if isinstance(part, cached_property):
        return part.func
    if isinstance(part, staticmethod | classmethod) or (
        isinstance(part, MethodType) and isinstance(part.__self__, type)
    ):
        return part.__func__
    return part


def _like(there: object, by: Any) -> object:  # noqa: ANN401 - anything
    """Returns the replacement in the form of what it replaces."""
    if isinstance(there, property | staticmethod | classmethod) and not isinstance(by, type(there)):
        return type(there)(by)
    return by
