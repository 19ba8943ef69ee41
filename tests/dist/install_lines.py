"""The commands that install something, as pages, samples and messages print them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.dist.building import ROOT, is_cache

COMMAND = re.compile(r"\bpip install ([^`\n]*)")
END = re.compile(r"\s(?:&&|\|\||[;|])\s")
WITH_VALUE = {"-c", "-r"}
PLAIN = {"-e", "-q", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"}


class InstallLine(NamedTuple):
    """An installation command.

    Attributes:
        place: The file, and the line in it.
        arguments: The text after ``pip install``, as a shell reads it.
    """

    place: str
    arguments: str

    def command(self) -> str:
        return f"pip install {self.arguments}"

    def constraints(self) -> list[str]:
        words = shlex.split(self.arguments, comments=True)
        return [value for option, value in pairwise(words) if option == "-c"]

    def targets(self) -> list[str]:
        """Returns what it installs.

        Raises:
            ValueError: An option is not one of the few that are known here.
        """
        words = iter(shlex.split(self.arguments, comments=True))
        names = []
        for word in words:
            if word in WITH_VALUE:
                next(words)
            elif not word.startswith("-"):
                names.append(word)
            elif word not in PLAIN:
                raise ValueError(f"{self.place}: option {word!r}")
        return names


def lines_in(text: str, place: str) -> Iterator[InstallLine]:
    for number, line in enumerate(text.splitlines(), 1):
        for match in COMMAND.finditer(line):
            install_line = InstallLine(f"{place}:{number}", END.split(match[1])[0].rstrip("\\").strip())
            if install_line.targets():
                yield install_line


def texts(*folders: str, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Yields path and text of each file for readers, in folders of the checkout and at its top."""
    inner = (path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))
    for path in sorted({*ROOT.glob("*.md"), *inner}):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and not is_cache(name):
            yield name, path.read_text("utf-8", "replace")


def find_install_lines() -> list[InstallLine]:
    return [line for name, text in texts("docs", "deploy") for line in lines_in(text, name)]
