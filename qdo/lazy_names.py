"""Packages whose public names are loaded when they are used first, so that what needs few of them starts soon."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib import import_module


def lazily(package: str, names: Collection[str], homes: Sequence[str]) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of a package.

    Args:
        package: Its name.
        names: Its public names.
        homes: Its modules that have them; what is quick to load comes first.
    """

    def find(name: str) -> object:
        if name in names:
            for home in homes:
                module = import_module(f"{package}.{home}")
                if name in getattr(module, "__all__", vars(module)):
                    return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
