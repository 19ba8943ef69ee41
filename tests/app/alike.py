"""Compares answers that a page shows with real ones: equal but for ids and the like, which later requests use."""

from __future__ import annotations

import json
import re
from typing import Any


def is_like(one: Any, other: Any) -> bool:  # noqa: ANN401 - JSON
    """Returns whether two values have the same names, lengths and kinds of values.

    An integer is like a float, and null is like anything.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_like(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_like, one, other))
    kinds = [float if type(each) is int else type(each) for each in (one, other)]
    return kinds[0] is kinds[1] or None in (one, other)


def values_in(output: str) -> list[Any]:
    values, decoder = [], json.JSONDecoder()
    while begins := re.search(r"[{\[]", output):
        try:
            value, end = decoder.raw_decode(output, begins.start())
        except ValueError:
            value, end = None, begins.end()
        values += [value] if value is not None else []
        output = output[end:]
    return values


class AnsweredValues:
    """Maps values of shown answers to those of the real answers."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def translate(self, text: str) -> str:
        if not self._known:
            return text
        return re.sub("|".join(map(re.escape, self._known)), lambda found: self._known[found[0]], text)

    def learn(self, shown: Any, answered: Any) -> None:  # noqa: ANN401 - JSON
        """Remembers each text that differs from the shown one, also in nested values."""
        if isinstance(shown, dict) and isinstance(answered, dict):
            for name in shown.keys() & answered.keys():
                self.learn(shown[name], answered[name])
        elif isinstance(shown, list) and isinstance(answered, list):
            for one, other in zip(shown, answered, strict=False):
                self.learn(one, other)
        elif isinstance(shown, str) and isinstance(answered, str) and shown != answered:
            self._known[shown] = answered
