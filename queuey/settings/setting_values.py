"""Setting values for both command lines: reads files, checks names and converts values.

A setting names the place of a secret, and never contains the secret.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from queuey.model.errors import SettingsError
from queuey.model.texts import did_you_mean
from queuey.model.time_parsing import parse_duration

__all__ = [
    "Given",
    "SettingsError",
    "check_known",
    "choices_of",
    "convert",
    "file_values",
    "type_text",
    "variables_with_prefix",
    "without_none",
]

_KUBERNETES_VARIABLE = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)=.*|\w+_PORT=(tcp|udp|sctp)://.*|\w+_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*"
)
"""Variables that Kubernetes sets for each Service; those of a Service ``queuey`` look like settings."""
_SWITCHES = {"on": "true", "off": "false", "yes": "true", "no": "false"}


class Given(NamedTuple):
    """A given value.

    Attributes:
        value: A text, or a value of TOML.
        source: Where the value came from, for messages.
        base: The directory that paths are relative to; None for the working directory.
    """

    value: Any
    source: str
    base: Path | None = None


def file_values(path: Path) -> dict[str, Any]:
    """Returns the contents of a settings file.

    Raises:
        SettingsError: The file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not TOML: {error}.") from error


def variables_with_prefix(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Returns the variables with a prefix, without empty ones and those that Kubernetes sets."""
    ours = {name: text for name, text in environ.items() if name.startswith(prefix) and text}
    return {name: text for name, text in ours.items() if _KUBERNETES_VARIABLE.fullmatch(f"{name}={text}") is None}


def check_known(key: str, names: Iterable[str], where: str) -> None:
    """Checks that a setting is known.

    Raises:
        SettingsError: The setting is unknown; the text suggests similar names.
    """
    known = list(names)
    if key not in known:
        raise SettingsError(f"Unknown setting {key} {where}{did_you_mean([key], known)}")


def without_none(hint: Any) -> Any:  # noqa: ANN401 - a type
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        (hint,) = (member for member in typing.get_args(hint) if member is not types.NoneType)
    return hint


def type_text(kind: Any, meta: msgspec.Meta, *, seconds: bool) -> str:  # noqa: ANN401 - a type
    if choices := choices_of(kind):
        *others, last = (f"`{choice}`" for choice in choices)
        return f"{', '.join(others)} or {last}" if others else last
    lengths = {int: "whole seconds", float: "seconds"}
    names = {str: "text", Path: "path", int: "whole number", float: "number"} | (lengths if seconds else {})
    limits = f", {meta.ge} to {meta.le}" if meta.ge is not None and meta.le is not None else ""
    return names[kind] + limits


def choices_of(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a type
    return ("on", "off") if kind is bool else typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def convert(
    name: str,
    kind: Any,  # noqa: ANN401 - a type
    meta: msgspec.Meta,
    given: Given,
    shown: Callable[[str, object], str],
    *,
    expected: str,
    seconds: bool = False,
    strict: bool = False,
) -> Any:  # noqa: ANN401 - of that type
    """Converts a text or a TOML value. Paths in a file are relative to that file.

    Args:
        name: Name of the setting.
        kind: Type of the setting.
        meta: Limits of its values.
        given: The value.
        shown: Returns a printable form of a value, by the name of its setting.
        expected: The type as the table of settings describes it.
        seconds: Whether a text may have units: ``1h30m``.
        strict: Whether the value must already have the type, instead of being converted.

    Raises:
        SettingsError: The value is invalid; the text names the setting, the source of the value, and the reason.
    """
    value = given.value
    if {"on", "off"}.issubset(choices_of(kind)):
        value = _normalize_switch(value, kind)
    try:
        if kind is Path:
            text = msgspec.convert(value, Annotated[str, msgspec.Meta(min_length=1)])
            return (given.base or Path()) / Path(text).expanduser()
        if seconds and isinstance(value, str):
            value = parse_duration(value)
        return msgspec.convert(value, Annotated[kind, meta], strict=strict)
    except ValueError as error:
        limits = (meta.ge is None) == (meta.le is None) and meta.gt is None
        is_described = typing.get_origin(kind) is Literal or (kind in {int, float, bool} and limits)
        reason = f"Expected: {expected.replace('`', '')}" if is_described else str(error).removesuffix(".")
        printable = shown(name, given.value)
        raise SettingsError(f"Setting {name} (from {given.source}) is {printable!r}. {reason}.") from error


def _normalize_switch(value: Any, kind: Any) -> Any:  # noqa: ANN401 - a text or a TOML value, and a type
    """Spells a switch true or false for ``bool``, else on or off. Other values stay as they are."""
    text = _SWITCHES.get(value.lower(), value.lower()) if isinstance(value, str) else value
    if kind is bool:
        return text
    try:
        return "on" if msgspec.convert(text, bool, strict=False) else "off"
    except msgspec.ValidationError:
        return value


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
