"""Names of secrets: a setting names the place of a secret and never contains the secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from queuey.model.errors import SettingsError


@dataclass(frozen=True)
class SecretName:
    """The place of a secret: ``env:NAME`` or ``file:PATH``.

    Attributes:
        kind: ``env`` for an environment variable, ``file`` for the first line of a file.
        name: Name of the variable, or path of the file.
    """

    kind: Literal["env", "file"]
    name: str

    @classmethod
    def parse(cls, text: str, base: Path | None = None) -> SecretName:
        """Parses the text form; a path is relative to ``base``.

        Raises:
            ValueError: The text has another form. The error does not contain the text, which may be the secret itself.
        """
        kind, _, name = text.partition(":")
        if kind == "env" and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            return cls("env", name)
        if kind == "file" and name:
            return cls("file", str((base or Path()) / Path(name).expanduser()))
        raise ValueError("Expected env:NAME or file:PATH: the name of the secret, not the secret")

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, environ: Mapping[str, str]) -> str:
        """Returns the secret.

        Raises:
            SettingsError: The variable is not set, or the file cannot be read or is empty.
        """
        if self.kind == "env":
            secret = environ.get(self.name, "")
        else:
            try:
                secret = Path(self.name).read_text("utf-8").partition("\n")[0].rstrip("\r")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                raise SettingsError(f"The secret {self} cannot be read: {reason}.") from error
        if not secret:
            raise SettingsError(f"The secret {self} is {'not set' if self.kind == 'env' else 'empty'}.")
        return secret
