"""Messages that tell users what to install."""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import queuey
from queuey.model.extras import DISTRIBUTION, install_command

PIP = [sys.executable, "-m", "pip", "install"]


def set_requirements(monkeypatch: pytest.MonkeyPatch, lines: Sequence[str] | None) -> None:
    """Sets the packages that the distribution requires; None: it is not installed."""
    monkeypatch.setattr(importlib.metadata, "requires", {DISTRIBUTION: lines}.__getitem__)


def test_packages_of_one_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names the packages of the extra, with their versions, and no other extra's."""
    set_requirements(
        monkeypatch,
        [
            *("anyio<5,>=4.12", "uvloop<0.24,>=0.22; sys_platform != 'win32'"),
            *("kazoo<2.12,>=2.11; extra == 'zookeeper'", "kazoo<2.12,>=2.11; extra == 'zookeeper-sasl'"),
            *('pure-sasl<0.7,>=0.6.2; extra == "zookeeper-sasl"', "pyjwt[crypto]<3,>=2.15; extra == 'oidc'"),
        ],
    )
    assert shlex.split(install_command("zookeeper")) == [*PIP, "kazoo<2.12,>=2.11"]
    assert shlex.split(install_command("zookeeper-sasl")) == [*PIP, "kazoo<2.12,>=2.11", "pure-sasl<0.7,>=0.6.2"]
    assert install_command("oidc") == shlex.join([*PIP, "pyjwt[crypto]<3,>=2.15"])


@pytest.mark.parametrize("lines", [None, [], ["anyio<5,>=4.12"]])
def test_an_older_installation(lines: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the installed version does not know the extra, the command names the running checkout."""
    set_requirements(monkeypatch, lines)
    checkout = Path(queuey.__file__).parents[1]
    assert shlex.split(install_command("spark")) == [*PIP, f"{checkout}[spark]"]


def test_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that was not installed is named itself."""

    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    checkout = Path(queuey.__file__).parents[1]
    assert shlex.split(install_command("spark")) == [*PIP, f"{checkout}[spark]"]
