"""Replaces a part of the product while a test runs.

The part is passed as an object, never as a string, so refactoring tools rename it here, and mypy reports it when it is
gone::

    with replace(Writer._end_batch, judge_nothing): ...
    with replace_in(writer, Fence, endless): ...  # under the name by which the module writer has imported it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import MethodType, ModuleType
from typing import Any, TypeVar

N = TypeVar("N", bound=tuple[Any, ...])


@contextmanager
def replace(function: object, by: object) -> Iterator[None]:
    """Replaces a part during the block where it is defined, for all code that looks it up there.

    Args:
        function: A function or class of a module, or a method, staticmethod, classmethod or property of a class.
        by: The replacement. A plain function becomes a property, staticmethod or classmethod if the original is one.

    Raises:
        TypeError: The part is not where its names say that it is defined.
    """
    plain = _unwrap(function)
    module, path = getattr(plain, "__module__", None), getattr(plain, "__qualname__", None)
    if module is None or path is None or isinstance(plain, MethodType):
        raise TypeError(f"{function!r} does not say where it is defined: give the function itself, as Class.method")
    *outer, name = path.split(".")
    owner: Any = sys.modules.get(module)
    for outer_name in outer:
        owner = None if owner is None else vars(owner).get(outer_name)
    present = None if owner is None else vars(owner).get(name)
    if present is None or _unwrap(present) is not plain:
        raise TypeError(f"{module}.{path} is {present!r}, not {function!r}")
    with _replace_names(owner, [name], _wrap_like(present, by)):
        yield


@contextmanager
def replace_in(owner: ModuleType | type, function: object, by: object) -> Iterator[None]:
    """Replaces a part during the block, under every name that a module or class has for it.

    Raises:
        TypeError: The module or class has no name for it.
    """
    names = [name for name, there in vars(owner).items() if there is function or _unwrap(there) is function]
    if not names:
        raise TypeError(f"{owner.__name__} has no name for {function!r}")
    with _replace_names(owner, names, _wrap_like(vars(owner)[names[0]], by)):
        yield


@contextmanager
def _replace_names(owner: ModuleType | type, names: list[str], by: object) -> Iterator[None]:
    before = {name: vars(owner)[name] for name in names}
    try:
        for name in names:
            setattr(owner, name, by)
        yield
    finally:
        for name, there in before.items():
            setattr(owner, name, there)


def _unwrap(part: Any) -> object:  # noqa: ANN401 - anything
    """Returns the function within a property, cached property, staticmethod, classmethod or bound class method.

    Returns anything else as it is.
    """
    if isinstance(part, property):
        return part.fget
    if isinstance(part, cached_property):
        return part.func
    if isinstance(part, staticmethod | classmethod) or (
        isinstance(part, MethodType) and isinstance(part.__self__, type)
    ):
        return part.__func__
    return part


def _wrap_like(there: object, by: Any) -> object:  # noqa: ANN401 - anything
    if isinstance(there, property | staticmethod | classmethod) and not isinstance(by, type(there)):
        return type(there)(by)
    return by


def with_fields(row: N, **changes: object) -> N:
    """Returns a named tuple with other values of some fields."""
    changed: N = row._replace(**changes)  # type: ignore[attr-defined] # of named tuples
    return changed
