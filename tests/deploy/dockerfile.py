"""Parses Dockerfiles, as far as ours use the language: instructions, stages, build arguments, JSON and shell forms."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction: its name in capitals, and the rest with continuation lines joined."""

    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """Returns its arguments: the members of a JSON array, or the words without options."""
        if self.rest.startswith("["):
            members: list[str] = json.loads(self.rest)
            return members
        return [word for word in shlex.split(self.rest) if not word.startswith("--")]

    @property
    def options(self) -> dict[str, str]:
        return dict(re.findall(r"(?<!\S)--([a-z-]+)=(\S+)", self.rest))


class Stage(NamedTuple):
    """The instructions after one FROM."""

    image: str
    name: str
    instructions: list[Instruction]

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]

    def last(self, name: str) -> Instruction:
        return self.all(name)[-1]

    @property
    def environment(self) -> dict[str, str]:
        pairs = (word.partition("=") for one in self.all("ENV") for word in one.words)
        return {name: value for name, _, value in pairs}


def read(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """Returns the arguments before the first ``FROM``, and the stages; arguments are put in only in names of images."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(str.strip, lines):
        name, _, words = line.strip().partition(" ")
        instruction = Instruction(name.upper(), words.strip())
        if instruction.name == "ARG" and not stages:
            key, _, value = instruction.rest.partition("=")
            arguments[key] = value
        elif instruction.name == "FROM":
            image, *alias = instruction.words
            stages.append(
                Stage(re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], image), alias[-1] if alias else "", [])
            )
        else:
            stages[-1].instructions.append(instruction)
    return arguments, stages
