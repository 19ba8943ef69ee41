"""The commands that install something, as pages, samples and messages print them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.dist.building import ROOT, is_cache

COMMAND = re.compile(r"\bpip install ([^`\n]*)")
END = re.compile(r"\s(?:&&|\|\||[;|])\s")
WITH_VALUE = {"-c"}
PLAIN = {"-e", "-q", "--quiet", "--disable-pip-version-check"}


class InstallLine(NamedTuple):
    """A command.

    Attributes:
        place: The file, and the line in it.
        arguments: What follows ``pip install``, as a shell reads it.
    """

    place: str
    arguments: str

    def command(self) -> str:
        """The command, for whichever pip comes first on the path."""
        return f"pip install {self.arguments}"

    def constraints(self) -> list[str]:
        """The files that it takes versions from."""
        words = shlex.split(self.arguments, comments=True)
        return [value for option, value in zip(words, words[1:], strict=False) if option in WITH_VALUE]

    def targets(self) -> list[str]:
        """What it installs.

        Raises:
            ValueError: An option is not one of the few that are known here.
        """
        words = iter(shlex.split(self.arguments, comments=True))
        found = []
        for word in words:
            if word in WITH_VALUE:
                next(words)
            elif not word.startswith("-"):
                found.append(word)
            elif word not in PLAIN:
                raise ValueError(f"{self.place}: option {word!r}")
        return found


def lines_in(text: str, place: str) -> Iterator[InstallLine]:
    """The commands in a text that install something; one that installs nothing is mentioned, not printed."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in COMMAND.finditer(line):
            one = InstallLine(f"{place}:{number}", END.split(found[1])[0].strip())
            if one.targets():
                yield one


def texts(*folders: str, suffix: str = "") -> Iterator[tuple[str, str]]:
    """The path and the text of each file that people read, in folders of the checkout and on its top."""
    inner = (path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))
    for path in sorted({*ROOT.glob("*.md"), *inner}):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and not is_cache(name):
            yield name, path.read_text("utf-8", "replace")


def printed() -> list[InstallLine]:
    """Every command of a page or a sample, in order."""
    return [line for name, text in texts("docs", "deploy") for line in lines_in(text, name)]
